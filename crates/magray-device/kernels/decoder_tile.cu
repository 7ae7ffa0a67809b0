// Products of many rows with weights on Hopper: 128 outputs by BN rows a tile, both through a ring of boxes. Where there are few tiles,
// the blocks of a cluster divide the inputs, so that few rows keep the whole GPU busy.
// Refuses nothing at run time: its caller sees to the shapes. Compiled for sm_90a alone.
//
// BN      rows of a tile: 32, 64 or 128
// STAGES  length of the ring
#include "decoder_tile.cuh"

#define NAMES_0_15 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
PRODUCTS(bf16, "bf16", 32, NAMES_0_15, "%16", "%17", "%18", SUMS16(0));

constexpr int WEIGHT_BYTES = TILE * 128;
constexpr int STAGE_BYTES = WEIGHT_BYTES + BN * 128;

static_assert(STAGES * STAGE_BYTES >= BN * SUMS_STRIDE * 4, "sums take the place of the ring");

__device__ void fetch_weights(const Job& job, unsigned stages, Barriers* barriers, int k, int stage) {
    const unsigned full = shared_address(&barriers->full[stage]);
    barrier_arrive_expecting(full, STAGE_BYTES);
    box_load_once(stages + stage * STAGE_BYTES, job.weights, k * BOX, job.output, full);
}

__device__ void fetch_rows(const Job& job, unsigned stages, Barriers* barriers, int k, int stage) {
    box_load(stages + stage * STAGE_BYTES + WEIGHT_BYTES, job.x, k * BOX, job.token, shared_address(&barriers->full[stage]));
}

// Multiplies, and leaves the sums where the ring was: a row for each token. One thread also fetches: a stage is filled again when both
// groups have multiplied it.
__device__ void multiply(const Job& job, unsigned stages, Barriers* barriers, float* left) {
    const int lane = threadIdx.x % 32, group = threadIdx.x / 128;
    float sums[BN / 2];
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) sums[i] = 0.0f;
    int stage = 0, previous = 0;
    unsigned parity = 0, previous_parity = 0;
    for (int k = job.from; k < job.to; ++k) {
        barrier_wait(shared_address(&barriers->full[stage]), parity);
        const unsigned long long weights = matrix_at(stages + stage * STAGE_BYTES + group * BOX_BYTES);
        const unsigned long long x = matrix_at(stages + stage * STAGE_BYTES + WEIGHT_BYTES);
        products_begin();
#pragma unroll
        for (int step = 0; step < BOX / 16; ++step) Products<bf16, BN>::add(sums, weights + 2 * step, x + 2 * step, 1);
        products_commit();
        if (k > job.from) {
            products_wait<1>();
            if (lane == 0) barrier_arrive(shared_address(&barriers->empty[previous]));
            const int next = k - 1 + STAGES;
            if (threadIdx.x == 0 && next < job.to) {
                barrier_wait(shared_address(&barriers->empty[previous]), previous_parity);
                fetch_weights(job, stages, barriers, next, previous);
                fetch_rows(job, stages, barriers, next, previous);
            }
            __syncwarp();
        }
        previous = stage;
        previous_parity = parity;
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    products_wait<0>();
    leave_sums(sums, left, group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    decoder_tile(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weights, const __grid_constant__ Finish finish,
                 int token_tiles, int boxes) {
    run_tile(job_of(&x, &weights, token_tiles, boxes), finish);
}
