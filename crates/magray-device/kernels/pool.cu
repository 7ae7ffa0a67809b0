// One vector a text out of its tokens' vectors, in 32-bit floats: a block for 128 columns of a text.
// Sums in an order that depends on the text alone. A text with nothing to pool gives zeros.
#include "rows.cuh"

#define CLS 0
#define LAST 1
#define MAX 2
#define MEAN 3
#define MEAN_SQRT_LEN 4
#define WEIGHTED_MEAN 5

// Not fmaxf: it would lose NaN.
__device__ __forceinline__ float larger(float a, float b) { return b > a || b != b ? b : a; }

__device__ __forceinline__ float join(float a, float b, int way) { return way == MAX ? larger(a, b) : a + b; }

extern "C" __global__ void __launch_bounds__(128)
pool(const NUMBER* hidden, int stride, const int* counts, const int* offsets, int way, int columns, float* out,
     int out_stride, int out_column) {
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
#pragma unroll 8
        for (int token = first + warp; token < last; token += 4) {
            float4 x = widen(load_quad(rows + size_t(token) * stride));
            if (way == WEIGHTED_MEAN) {
                const float rank = skipped + token + 1;
                x = make_float4(x.x * rank, x.y * rank, x.z * rank, x.w * rank);
            }
            sum = make_float4(join(sum.x, x.x, way), join(sum.y, x.y, way), join(sum.z, x.z, way),
                              join(sum.w, x.w, way));
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
        pooled = join(pooled, of_column[128 * i], way);
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
