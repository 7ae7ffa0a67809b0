// Activations as signed bytes with a scale a row, for the int8 products: a warp a row.
// Hides no NaN: a row with one gets NaN for its scale.
#include "instructions.cuh"
#include "rows.cuh"
#include "order.cuh"

// The numbers' sizes compare like their bits without the sign, and NaN is above all of them.
__device__ __forceinline__ unsigned largest_of(float4 x) {
    const unsigned a = max(__float_as_uint(fabsf(x.x)), __float_as_uint(fabsf(x.y)));
    return max(a, max(__float_as_uint(fabsf(x.z)), __float_as_uint(fabsf(x.w))));
}

// Rounded to even, beyond a byte's range to its end.
__device__ __forceinline__ unsigned bytes_of(float4 x, float inverse) {
    return pack_bytes(__float2int_rn(x.x * inverse), __float2int_rn(x.y * inverse), __float2int_rn(x.z * inverse),
                      __float2int_rn(x.w * inverse));
}

// A warp keeps HELD quads a lane in registers; HELD 0 reads a row of any length twice.
template <int HELD>
__device__ __forceinline__ void quantise_row(const NUMBER* x, int stride, signed char* out, int out_stride,
                                             float* scale) {
    const int lane = threadIdx.x % 32;
    Quad<NUMBER> held[HELD > 0 ? HELD : 1];
    unsigned largest = 0;
    if constexpr (HELD > 0) {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const int column = 4 * (lane + 32 * i);
            held[i] = column < stride ? load_quad(x + column) : Quad<NUMBER>{};
        }
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            largest = max(largest, largest_of(widen(held[i])));
        }
    } else {
        for (int column = 4 * lane; column < stride; column += 128) {
            largest = max(largest, largest_of(widen(load_quad(x + column))));
        }
    }
    for (int apart = 16; apart > 0; apart /= 2) {
        largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, apart));
    }
    const float step = largest == 0 ? 1.0f : __uint_as_float(largest) / 127.0f;
    if (lane == 0) {
        *scale = step;
    }
    const float inverse = 1.0f / step;
    unsigned* bytes = reinterpret_cast<unsigned*>(out);
    if constexpr (HELD > 0) {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const int quad = lane + 32 * i;
            if (4 * quad < out_stride) {
                bytes[quad] = bytes_of(widen(held[i]), inverse);
            }
        }
    } else {
        for (int column = 4 * lane; column < out_stride; column += 128) {
            bytes[column / 4] = column < stride ? bytes_of(widen(load_quad(x + column)), inverse) : 0;
        }
    }
}

extern "C" __global__ void __launch_bounds__(128, 8)
quantise(const NUMBER* x, int stride, int rows, int columns, signed char* out, int out_stride, float* scales) {
    let_next_begin();
    wait_for_previous();
    const int row = blockIdx.x * 4 + threadIdx.x / 32;
    if (row >= rows) {
        return;
    }
    x += size_t(row) * stride;
    out += size_t(row) * out_stride;
    // Beyond `columns` the row holds zeros, which become zero bytes.
    const int longest = max(stride, out_stride);
    if (longest <= 384) {
        quantise_row<3>(x, stride, out, out_stride, scales + row);
    } else if (longest <= 1536) {
        quantise_row<12>(x, stride, out, out_stride, scales + row);
    } else {
        quantise_row<0>(x, stride, out, out_stride, scales + row);
    }
}
