// Activations as signed bytes for the int8 products, each row from its lowest number, byte -128, to its highest, 127: a warp
// a row. Zero is always among them, and a byte of its own stands for it. Hides no NaN: a row with one gets NaN for its scale.
#include "instructions.cuh"
#include "rows.cuh"
#include "order.cuh"

// The lowest and the highest of a row, at most and at least 0. Bits compare as integers like the numbers: signed, the largest
// is the highest unless all are negative; unsigned, it is the lowest unless none is. NaN is beyond both.
struct Bounds {
    __device__ __forceinline__ void widen_by(float x) {
        lowest = max(lowest, __float_as_uint(x));
        highest = max(highest, __float_as_int(x));
    }

    __device__ __forceinline__ void widen_by(float4 x) {
        widen_by(x.x);
        widen_by(x.y);
        widen_by(x.z);
        widen_by(x.w);
    }

    unsigned lowest = 0x80000000u;
    int highest = 0;
};

// Rounded to even, beyond a byte's range to its end.
__device__ __forceinline__ int byte_of(float x, float inverse, float zero) { return __float2int_rn(fmaf(x, inverse, zero)); }

__device__ __forceinline__ unsigned bytes_of(float4 x, float inverse, float zero) {
    return pack_bytes(byte_of(x.x, inverse, zero), byte_of(x.y, inverse, zero), byte_of(x.z, inverse, zero),
                      byte_of(x.w, inverse, zero));
}

// A warp keeps HELD quads a lane in registers; HELD 0 reads a row of any length twice.
template <int HELD>
__device__ __forceinline__ void quantise_row(const NUMBER* x, int stride, signed char* out, int out_stride,
                                             float2* scale) {
    const int lane = threadIdx.x % 32;
    Quad<NUMBER> held[HELD > 0 ? HELD : 1];
    Bounds bounds;
    if constexpr (HELD > 0) {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const int column = 4 * (lane + 32 * i);
            held[i] = column < stride ? load_quad(x + column) : Quad<NUMBER>{};
        }
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            bounds.widen_by(widen(held[i]));
        }
    } else {
        for (int column = 4 * lane; column < stride; column += 128) {
            bounds.widen_by(widen(load_quad(x + column)));
        }
    }
    for (int apart = 16; apart > 0; apart /= 2) {
        bounds.lowest = max(bounds.lowest, __shfl_xor_sync(ALL_LANES, bounds.lowest, apart));
        bounds.highest = max(bounds.highest, __shfl_xor_sync(ALL_LANES, bounds.highest, apart));
    }
    const float lowest = __uint_as_float(bounds.lowest);
    const float width = __int_as_float(bounds.highest) - lowest;
    const float step = width == 0.0f ? 1.0f : width / 255.0f;
    // The byte of zero.
    const float zero = rintf(-lowest / step) - 128.0f;
    if (lane == 0) {
        *scale = make_float2(step, -zero * step);
    }
    const float inverse = 1.0f / step;
    unsigned* bytes = reinterpret_cast<unsigned*>(out);
    if constexpr (HELD > 0) {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const int quad = lane + 32 * i;
            if (4 * quad < out_stride) {
                bytes[quad] = bytes_of(widen(held[i]), inverse, zero);
            }
        }
    } else {
        for (int column = 4 * lane; column < out_stride; column += 128) {
            bytes[column / 4] = column < stride ? bytes_of(widen(load_quad(x + column)), inverse, zero) : 0;
        }
    }
}

extern "C" __global__ void __launch_bounds__(128, 8)
quantise(const NUMBER* x, int stride, int rows, int columns, signed char* out, int out_stride, float2* scales) {
    let_next_begin();
    wait_for_previous();
    const int row = blockIdx.x * 4 + threadIdx.x / 32;
    if (row >= rows) {
        return;
    }
    x += size_t(row) * stride;
    out += size_t(row) * out_stride;
    // Beyond `columns` the row holds zeros; their bytes meet weights that are zero.
    const int longest = max(stride, out_stride);
    if (longest <= 384) {
        quantise_row<3>(x, stride, out, out_stride, scales + row);
    } else if (longest <= 1536) {
        quantise_row<12>(x, stride, out, out_stride, scales + row);
    } else {
        quantise_row<0>(x, stride, out, out_stride, scales + row);
    }
}
