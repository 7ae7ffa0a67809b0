// Adds up the parts that the GPUs of a group have of some rows, in the order of their ranks: the same bits on each of them, and those of a sum
// on the host. A part lies on this GPU or on another one whose memory it reads; it was written before this kernel began.
#include "order.cuh"

constexpr int THREADS = 256;
constexpr int RANKS_MOST = 8;

struct Parts {
    const float4* of[RANKS_MOST];
    int count;
    int unused;
};

extern "C" __global__ void __launch_bounds__(THREADS) decoder_sum(const Parts parts, float4* sums, int fours) {
    let_next_begin();
    wait_for_previous();
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < fours; i += gridDim.x * THREADS) {
        // All are asked for before one is waited for. What was read here for an earlier sum is not of use: the second cache knows better.
        float4 part[RANKS_MOST];
#pragma unroll
        for (int rank = 0; rank < RANKS_MOST; ++rank)
            if (rank < parts.count) part[rank] = __ldcg(parts.of[rank] + i);
        // From zero on, as the host begins: a zero below zero becomes one above it.
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int rank = 0; rank < RANKS_MOST; ++rank)
            if (rank < parts.count) {
                sum.x += part[rank].x;
                sum.y += part[rank].y;
                sum.z += part[rank].z;
                sum.w += part[rank].w;
            }
        sums[i] = sum;
    }
}
