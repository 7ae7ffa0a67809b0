// Adds a product to the residual stream, its norm where a model has such norms, and prepares the rows for the next norm. With no product it
// only prepares them. A block a row.
#include "decoder.cuh"
#include "order.cuh"

constexpr int THREADS = 256;

__device__ __forceinline__ float block_sum(float x, float* room) {
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < THREADS / 32; ++i) sum += room[i];
    return sum;
}

// `rows` names the rows to take, in order; without it row i is row i.
extern "C" __global__ void __launch_bounds__(THREADS)
    decoder_add(const float* sums, int sums_stride, const float* gain, float epsilon, const int* rows, float* hidden, int hidden_stride,
                int columns, const Finish finish) {
    __shared__ float room[THREADS / 32];
    let_next_begin();
    wait_for_previous();
    const int to = blockIdx.x, from = rows ? rows[to] : to;
    float* row = hidden + size_t(from) * hidden_stride;
    float scale = 1.0f;
    if (sums && gain) {
        float square = 0.0f;
        for (int column = threadIdx.x; column < columns; column += THREADS) {
            const float x = sums[size_t(from) * sums_stride + column];
            square += x * x;
        }
        scale = rsqrtf(block_sum(square, room) / columns + epsilon);
    }
    float square = 0.0f;
    for (int column = threadIdx.x; column < columns; column += THREADS) {
        float x = row[column];
        if (sums) {
            const float sum = sums[size_t(from) * sums_stride + column];
            x += gain ? sum * scale * gain[column] : sum;
            row[column] = x;
        }
        if (finish.gain) finish.shadow[size_t(to) * finish.shadow_stride + column] = to_bf16(x * finish.gain[column]);
        square += x * x;
    }
    square = block_sum(square, room);
    if (threadIdx.x == 0 && finish.gain) finish.out_parts[to] = square;
}
