// Products of any number of rows with weights in any form, on every GPU: a block has 16 outputs and 8 rows at a time.
// Uses no tensor cores: the way of GPUs that have no kernels of their own.
#include "decoder.cuh"
#include "order.cuh"

constexpr int WARPS = 8;
constexpr int OUTPUTS = 16;
constexpr int TOKENS = 8;

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    decoder_plain(const unsigned short* x, int x_stride, const unsigned char* weights, int form, int stride, int units, int inputs, const Finish finish) {
    __shared__ float sums[TOKENS][OUTPUTS];
    let_next_begin();
    wait_for_previous();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first = blockIdx.x * OUTPUTS;
    for (int token = blockIdx.y * TOKENS; token < finish.tokens; token += gridDim.y * TOKENS) {
        for (int o = warp; o < OUTPUTS; o += WARPS) {
            float own[TOKENS] = {};
            if (first + o < finish.outputs) {
                for (int k = lane; k < inputs; k += 32) {
                    const float w = weight_at(weights, form, stride, units, first + o, k);
#pragma unroll
                    for (int i = 0; i < TOKENS; ++i)
                        if (token + i < finish.tokens) own[i] += w * from_bf16(x[size_t(token + i) * x_stride + k]);
                }
            }
#pragma unroll
            for (int i = 0; i < TOKENS; ++i) {
                const float sum = warp_sum(own[i]);
                if (lane == 0) sums[i][o] = sum;
            }
        }
        __syncthreads();
        // A warp a row.
        const int own = token + warp, output = first + lane;
        if (own < finish.tokens) {
            const bool is_there = lane < OUTPUTS && output < finish.outputs;
            const Before before = read_before(finish, own, output, is_there);
            finish_lanes(finish, before, own, output, is_there, is_there ? sums[warp][lane] : 0.0f, row_scale(finish, own), blockIdx.x);
        }
        __syncthreads();
    }
}
