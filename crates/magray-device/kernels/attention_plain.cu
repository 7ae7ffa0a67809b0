// Attention within each text in 32-bit arithmetic, for any numbers and any head: a head and 64 of its queries a block.
// Uses no matrix instructions. HEAD bounds the size of a head, up to 256; smaller bounds need fewer registers.
#include "numbers.cuh"
#include "order.cuh"

#ifndef HEAD
#define HEAD 256
#endif

constexpr int THREADS = 128;
// Queries of a block, and keys of a chunk.
constexpr int SIDE = 64;
// Dimensions that are in shared memory at a time.
constexpr int SLICE = 32;
constexpr int SLICES = (HEAD + SLICE - 1) / SLICE;
// Rows are four floats longer than what they hold: eight in a row then start in different banks.
constexpr int SLICE_ROW = SLICE + 4;
constexpr int SIDE_ROW = SIDE + 4;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr float LOG2_E = 1.44269504f;

// Copies dimensions `from` to `from + SLICE` of 64 rows, of which `rows` are the text's; zeros elsewhere.
__device__ __forceinline__ void copy_slice(float* to, const NUMBER* first, int stride, int rows, int from, int size) {
    const int column = threadIdx.x % SLICE;
#pragma unroll 4
    for (int row = threadIdx.x / SLICE; row < SIDE; row += THREADS / SLICE) {
        const bool inside = row < rows && from + column < size;
        to[row * SLICE_ROW + column] = inside ? widen(first[size_t(row) * stride + from + column]) : 0.0f;
    }
}

__device__ __forceinline__ float4 floats(const float* at) { return *reinterpret_cast<const float4*>(at); }

__device__ __forceinline__ float dot(float4 a, float4 b, float sum) {
    return a.x * b.x + (a.y * b.y + (a.z * b.z + (a.w * b.w + sum)));
}

// Joins the 16 lanes that share their queries; all of them get the result.
__device__ __forceinline__ float largest_of_16(float x) {
    for (int apart = 8; apart > 0; apart /= 2) {
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, apart));
    }
    return x;
}

__device__ __forceinline__ float sum_of_16(float x) {
    for (int apart = 8; apart > 0; apart /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, apart);
    }
    return x;
}

extern "C" __global__ void __launch_bounds__(THREADS, HEAD <= 64 ? 3 : 2)
attention_plain(const NUMBER* qkv, int qkv_stride, NUMBER* out, int out_stride, const int* counts, const int* offsets,
                const int2* blocks, const float* bias, int reach, int bias_stride, int hidden, float scale, int size) {
    let_next_begin();
    wait_for_previous();
    // The heads of a text run side by side: together they read whole rows.
    const unsigned index = blockIdx.x + blockIdx.y * gridDim.x;
    const int block = index / gridDim.y, head = index % gridDim.y;
    const int2 place = blocks[block];
    if (block >= counts[2]) {
        return;
    }
    const int start = offsets[place.x], tokens = offsets[place.x + 1] - start;
    const NUMBER* keys = qkv + size_t(start) * qkv_stride + hidden + head * size;
    const NUMBER* queries = keys - hidden + size_t(place.y) * qkv_stride;
    const float* near = bias ? bias + size_t(head) * bias_stride + reach - place.y : nullptr;

    __shared__ float4 query_rows[SIDE * SLICE_ROW / 4], key_rows[SIDE * SLICE_ROW / 4];
    __shared__ float4 weight_rows[SIDE * SIDE_ROW / 4];
    float* query_slice = reinterpret_cast<float*>(query_rows);
    // The values' too, after the keys'.
    float* key_slice = reinterpret_cast<float*>(key_rows);
    float* weights = reinterpret_cast<float*>(weight_rows);

    // A thread has 8 queries: scores of keys `x + 16j`, sums of dimensions `2x` and `2x + 1` of each slice.
    const int x = threadIdx.x % 16, y = threadIdx.x / 16 * 8;
    float sums[SLICES][8][2] = {};
    float largest[8], total[8] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        // Finite: the difference of two infinities would be NaN.
        largest[i] = -1e30f;
    }
    for (int from = 0; from < tokens; from += SIDE) {
        const int left = tokens - from;
        float scores[8][4] = {};
        for (int slice = 0; slice < size; slice += SLICE) {
            __syncthreads();
            if (from == 0 || size > SLICE) {
                copy_slice(query_slice, queries, qkv_stride, tokens - place.y, slice, size);
            }
            copy_slice(key_slice, keys + size_t(from) * qkv_stride, qkv_stride, left, slice, size);
            __syncthreads();
#pragma unroll 2
            for (int d = 0; d < SLICE; d += 4) {
                float4 key[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    key[j] = floats(key_slice + (x + 16 * j) * SLICE_ROW + d);
                }
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const float4 query = floats(query_slice + (y + i) * SLICE_ROW + d);
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        scores[i][j] = dot(query, key[j], scores[i][j]);
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float most = largest[i];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int key = x + 16 * j;
                // Scores count in powers of two. Only the text's own queries and keys are in the table of biases.
                const bool inside = key < left && place.y + y + i < tokens;
                const float added = near && inside ? near[from + key - (y + i)] : 0.0f;
                scores[i][j] = (scores[i][j] * scale + added) * LOG2_E;
                most = key < left ? fmaxf(most, scores[i][j]) : most;
            }
            most = largest_of_16(most);
            const float shrink = exp2f(largest[i] - most);
            largest[i] = most;
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float weight = x + 16 * j < left ? exp2f(scores[i][j] - most) : 0.0f;
                weights[(y + i) * SIDE_ROW + x + 16 * j] = weight;
                sum += weight;
            }
            total[i] = total[i] * shrink + sum;
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) {
                sums[slice][i][0] *= shrink;
                sums[slice][i][1] *= shrink;
            }
        }
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) {
            if (slice * SLICE >= size) {
                break;
            }
            // Also before the first: keys are read until here, and weights are written.
            __syncthreads();
            copy_slice(key_slice, keys + hidden + size_t(from) * qkv_stride, qkv_stride, left, slice * SLICE, size);
            __syncthreads();
            // Weights and values beyond the text are zeros: three of them at most are worth adding.
#pragma unroll 2
            for (int key = 0; key < min(left, SIDE); key += 4) {
                float2 value[4];
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    value[k] = *reinterpret_cast<const float2*>(key_slice + (key + k) * SLICE_ROW + 2 * x);
                }
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const float4 weight = floats(weights + (y + i) * SIDE_ROW + key);
                    float(&sum)[2] = sums[slice][i];
                    sum[0] = dot(weight, make_float4(value[0].x, value[1].x, value[2].x, value[3].x), sum[0]);
                    sum[1] = dot(weight, make_float4(value[0].y, value[1].y, value[2].y, value[3].y), sum[1]);
                }
            }
        }
    }
    out += size_t(start + place.y) * out_stride + head * size;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float inverse = 1.0f / sum_of_16(total[i]);
        if (place.y + y + i < tokens) {
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) {
                const int column = slice * SLICE + 2 * x;
                NUMBER* to = out + size_t(y + i) * out_stride + column;
                if (column < size) {
                    to[0] = narrow<NUMBER>(sums[slice][i][0] * inverse);
                }
                if (column + 1 < size) {
                    to[1] = narrow<NUMBER>(sums[slice][i][1] * inverse);
                }
            }
        }
    }
}
