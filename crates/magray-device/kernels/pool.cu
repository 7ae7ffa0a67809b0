// One vector a text out of its tokens' vectors, in 32-bit floats: a block for 128 columns of a text.
// Sums in an order that depends on the text alone. A text with nothing to pool gives zeros.
#include "rows.cuh"
#include "order.cuh"

#define CLS 0
#define LAST 1
#define MAX 2
#define MEAN 3
#define MEAN_SQRT_LEN 4
#define WEIGHTED_MEAN 5

// Not fmaxf: it would lose NaN.
__device__ __forceinline__ float larger(float a, float b) { return b > a || b != b ? b : a; }

__device__ __forceinline__ float4 larger(float4 a, float4 b) {
    return make_float4(larger(a.x, b.x), larger(a.y, b.y), larger(a.z, b.z), larger(a.w, b.w));
}

__device__ __forceinline__ float4 add_times(float4 a, float4 b, float weight) {
    return make_float4(a.x + b.x * weight, a.y + b.y * weight, a.z + b.z * weight, a.w + b.w * weight);
}

// Rows that a warp asks for at once.
constexpr int AT_ONCE = 8;

extern "C" __global__ void __launch_bounds__(128)
pool(const NUMBER* hidden, int stride, const int* counts, const int* offsets, int way, int columns, float* out,
     int out_stride, int out_column) {
    let_next_begin();
    wait_for_previous();
    const int text = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (text >= counts[1]) {
        return;
    }
    const int start = offsets[text], end = offsets[text + 1], skipped = min(counts[3], end - start);
    const int tokens = end - start - skipped;
    const int first = way == LAST ? max(tokens - 1, 0) : 0;
    const int last = way == CLS ? min(tokens, 1) : tokens;
    const float none = way == MAX ? __int_as_float(0xff800000) : 0.0f;

    // Each warp takes every fourth token.
    __shared__ float4 partial[4][32];
    float4 sum = make_float4(none, none, none, none);
    const int column = blockIdx.y * 128 + 4 * lane;
    if (column < stride) {
        const NUMBER* rows = hidden + size_t(start + skipped) * stride + column;
        for (int from = first + warp; from < last; from += 4 * AT_ONCE) {
            Quad<NUMBER> x[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                if (from + 4 * i < last) {
                    x[i] = load_quad(rows + size_t(from + 4 * i) * stride);
                }
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int token = from + 4 * i;
                if (token >= last) {
                    break;
                }
                const float weight = way == WEIGHTED_MEAN ? skipped + token + 1 : 1;
                sum = way == MAX ? larger(sum, widen(x[i])) : add_times(sum, widen(x[i]), weight);
            }
        }
    }
    partial[warp][lane] = sum;
    __syncthreads();

    const int to = blockIdx.y * 128 + threadIdx.x;
    if (to >= columns) {
        return;
    }
    const float* of_column = reinterpret_cast<const float*>(partial) + threadIdx.x;
    float pooled = of_column[0];
    for (int i = 1; i < 4; i++) {
        pooled = way == MAX ? larger(pooled, of_column[128 * i]) : pooled + of_column[128 * i];
    }
    // Nothing to pool sums to zero, whatever it is divided by.
    const float n = max(tokens, 1);
    float scale = 1.0f;
    if (way == MEAN) {
        scale = 1.0f / n;
    } else if (way == MEAN_SQRT_LEN) {
        scale = 1.0f / sqrtf(n);
    } else if (way == WEIGHTED_MEAN) {
        // The ranks skipped + 1 to skipped + tokens.
        scale = 1.0f / (0.5f * n * (2.0f * skipped + n + 1.0f));
    }
    out[size_t(text) * out_stride + out_column + to] = tokens > 0 ? pooled * scale : 0.0f;
}
