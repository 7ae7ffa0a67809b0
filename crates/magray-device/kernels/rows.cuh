// Rows that a warp reads and writes four numbers a lane, sums across a warp, and the layer norm of a row.
// Needs no header of the CUDA toolkit; takes rows that start at a multiple of 16 bytes only.
#pragma once

#include "numbers.cuh"

constexpr unsigned ALL_LANES = 0xffffffffu;

// Four numbers as they lie in memory.
template <class T>
struct Quad {
    uint2 bits;
};

template <>
struct Quad<float> {
    float4 bits;
};

template <class T>
__device__ __forceinline__ Quad<T> load_quad(const T* from) {
    return *reinterpret_cast<const Quad<T>*>(from);
}

template <class T>
__device__ __forceinline__ float4 widen(Quad<T> quad) {
    float4 x;
    unpack(quad.bits.x, x.x, x.y, T{});
    unpack(quad.bits.y, x.z, x.w, T{});
    return x;
}

__device__ __forceinline__ float4 widen(Quad<float> quad) { return quad.bits; }

template <class T>
__device__ __forceinline__ void store_quad(T* to, float4 x) {
    *reinterpret_cast<uint2*>(to) = make_uint2(pack<T>(x.x, x.y), pack<T>(x.z, x.w));
}

__device__ __forceinline__ void store_quad(float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; }

// The floats at `column` and after it, zero from `columns` on: nothing is known of what lies there. EVEN says that
// `columns` is a multiple of four.
template <bool EVEN>
__device__ __forceinline__ float4 floats_at(const float* row, int column, int columns) {
    if constexpr (EVEN) {
        return column < columns ? *reinterpret_cast<const float4*>(row + column) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    } else {
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = column + i < columns ? row[column + i] : 0.0f;
        }
        return make_float4(x[0], x[1], x[2], x[3]);
    }
}

__device__ __forceinline__ float4 add(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// The same sum, to the bit, in every lane.
__device__ __forceinline__ float warp_sum(float x) {
    for (int apart = 16; apart > 0; apart /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, apart);
    }
    return x;
}

// What a row is normalised by, and to where.
template <class T>
struct RowNorm {
    const float* gain;
    const float* shift;
    float epsilon;
    int columns;
    T* out;

    // Beyond the last column gain and shift count as zero, so that zeros are written there.
    template <bool EVEN>
    __device__ __forceinline__ void write(float4 x, float mean, float scale, int column) const {
        const float4 g = floats_at<EVEN>(gain, column, columns), s = floats_at<EVEN>(shift, column, columns);
        x.x = (x.x - mean) * scale * g.x + s.x;
        x.y = (x.y - mean) * scale * g.y + s.y;
        x.z = (x.z - mean) * scale * g.z + s.z;
        x.w = (x.w - mean) * scale * g.w + s.w;
        // Guarded here and not around it all, so that the loads of several quads wait together.
        if (column < columns) {
            store_quad(out + column, x);
        }
    }
};

__device__ __forceinline__ float sum_of(float4 x) { return (x.x + x.y) + (x.z + x.w); }

__device__ __forceinline__ float squares_of(float4 x, float mean) {
    const float a = x.x - mean, b = x.y - mean, c = x.z - mean, d = x.w - mean;
    return (a * a + b * b) + (c * c + d * d);
}

// Normalises a row. `value.fill<EVEN>(x, quad)` fills the array `x` with the row's quads `quad`, `quad + 32`, ...,
// zeros beyond the last column. The variance is of the differences from the mean: the shortcut over squares loses
// digits. A row that FITS into HELD quads a lane is asked for once; another one once more in each pass.
template <int HELD, bool FITS, bool EVEN, class T, class Value>
__device__ __forceinline__ void norm_held(const RowNorm<T>& norm, const Value& value) {
    const int lane = threadIdx.x % 32, quads = (norm.columns + 3) / 4;
    const int end = FITS ? lane + 1 : quads;
    float4 x[HELD];
    if constexpr (FITS) {
        value.template fill<EVEN>(x, lane);
    }
    const float share = 1.0f / norm.columns;
    float sum = 0.0f, squares = 0.0f;
    for (int first = lane; first < end; first += 32 * HELD) {
        if constexpr (!FITS) {
            value.template fill<EVEN>(x, first);
        }
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            sum += sum_of(x[i]);
        }
    }
    const float mean = warp_sum(sum) * share;
    for (int first = lane; first < end; first += 32 * HELD) {
        if constexpr (!FITS) {
            value.template fill<EVEN>(x, first);
        }
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            squares += first + 32 * i < quads ? squares_of(x[i], mean) : 0.0f;
        }
    }
    // The zeros beyond the last column each added the mean's square.
    const float beyond = 4 * quads - norm.columns;
    const float variance = (warp_sum(squares) - beyond * mean * mean) * share;
    const float scale = rsqrtf(variance + norm.epsilon);
    for (int first = lane; first < end; first += 32 * HELD) {
        if constexpr (!FITS) {
            value.template fill<EVEN>(x, first);
        }
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            norm.template write<EVEN>(x[i], mean, scale, 4 * (first + 32 * i));
        }
    }
}

// The widths of common models, 384, 768 and 1024, stay in registers. A lane writes only the quads that it alone reads,
// so the row may be normalised in place.
template <class T, class Value>
__device__ __forceinline__ void norm_row(const RowNorm<T>& norm, const Value& value) {
    if (norm.columns % 4 != 0) {
        norm_held<1, false, false>(norm, value);
    } else if (norm.columns <= 384) {
        norm_held<3, true, true>(norm, value);
    } else if (norm.columns <= 768) {
        norm_held<6, true, true>(norm, value);
    } else if (norm.columns <= 1024) {
        norm_held<8, true, true>(norm, value);
    } else {
        norm_held<4, false, true>(norm, value);
    }
}
