// The rows that leave the device, end to end, scaled to length 1 where asked: a block of 128 threads a text.
// A row of zeros stays one: no length counts as less than 1e-12.
#include "rows.cuh"
#include "order.cuh"

extern "C" __global__ void __launch_bounds__(128)
finish(const float* rows, int stride, const int* counts, int columns, int normalize, float* out) {
    let_next_begin();
    wait_for_previous();
    const int text = blockIdx.x;
    if (text >= counts[1]) {
        return;
    }
    rows += size_t(text) * stride;
    out += size_t(text) * columns;
    float length = 1.0f;
    if (normalize) {
        float squares = 0.0f;
        for (int column = threadIdx.x; column < columns; column += 128) {
            squares += rows[column] * rows[column];
        }
        __shared__ float partial[4];
        squares = warp_sum(squares);
        if (threadIdx.x % 32 == 0) {
            partial[threadIdx.x / 32] = squares;
        }
        __syncthreads();
        length = fmaxf(sqrtf((partial[0] + partial[1]) + (partial[2] + partial[3])), 1e-12f);
    }
    for (int column = threadIdx.x; column < columns; column += 128) {
        out[column] = rows[column] / length;
    }
}
