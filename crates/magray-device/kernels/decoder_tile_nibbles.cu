// Products of some rows with weights of 4 bits on Hopper: 128 outputs by BN rows a tile. Weights come as they are and become numbers in the
// registers of the warps that multiply them, so that they are read once and take little of the memory.
// Refuses nothing at run time: its caller sees to the shapes. Compiled for sm_90a alone.
//
// BN      rows of a tile: 8, 16, 32 or 64
// STAGES  length of the ring
// FORM    FORM_NIBBLES or FORM_CENTRED, see decoder.cuh
#include "decoder_nibbles.cuh"
#include "decoder_tile.cuh"

constexpr int EIGHTS_OF_TILE = TILE / 8;
constexpr int ROW_BYTES = BN * 128;
constexpr int WEIGHT_BYTES = EIGHTS_OF_TILE * NIBBLE_BYTES;
constexpr int STAGE_BYTES = 2 * ROW_BYTES + WEIGHT_BYTES;

static_assert(STAGE_BYTES % 1024 == 0, "boxes begin where their pieces change places as the tensor cores expect");
static_assert(STAGES * STAGE_BYTES >= BN * SUMS_STRIDE * 4, "sums take the place of the ring");

#define SUMS8(i) SUMS4(i), SUMS4(i + 4)
#define NAMES_8 "%0,%1,%2,%3"
#define NAMES_16 "%0,%1,%2,%3,%4,%5,%6,%7"
#define NAMES_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"

// sums of 64 outputs by BN rows += 64 by 16 weights, which are in registers, times BN rows by 16.
#define REGISTER_PRODUCT(N, NAMES, A0, A1, A2, A3, B, ...)                                                                  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" TEXT(N) "k16.f32.bf16.bf16 {" NAMES "}, {" A0 "," A1 "," A2 "," A3 "}, " B \
                 ", 1, 1, 1, 0;\n"                                                                                           \
                 : __VA_ARGS__                                                                                               \
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b))

__device__ __forceinline__ void add_product(float (&d)[BN / 2], uint4 a, unsigned long long b) {
#if BN == 8
    REGISTER_PRODUCT(8, NAMES_8, "%4", "%5", "%6", "%7", "%8", SUMS4(0));
#elif BN == 16
    REGISTER_PRODUCT(16, NAMES_16, "%8", "%9", "%10", "%11", "%12", SUMS8(0));
#elif BN == 32
    REGISTER_PRODUCT(32, NAMES_32, "%16", "%17", "%18", "%19", "%20", SUMS16(0));
#else
    REGISTER_PRODUCT(64, NAMES_0_31, "%32", "%33", "%34", "%35", "%36", SUMS32(0));
#endif
}

__device__ void fetch_weights(const Job& job, unsigned stages, Barriers* barriers, int unit, int stage) {
    const unsigned full = shared_address(&barriers->full[stage]);
    barrier_arrive_expecting(full, STAGE_BYTES);
    block_load(stages + stage * STAGE_BYTES + 2 * ROW_BYTES, job.weights, unit, job.output / 8, full);
}

__device__ void fetch_rows(const Job& job, unsigned stages, Barriers* barriers, int unit, int stage) {
    const unsigned to = stages + stage * STAGE_BYTES, full = shared_address(&barriers->full[stage]);
    box_load(to, job.x, unit * NIBBLES_INPUTS, job.token, full);
    box_load(to + ROW_BYTES, job.x, unit * NIBBLES_INPUTS + BOX, job.token, full);
}

// Multiplies, and leaves the sums where the ring was: a row for each token. One thread also fetches: a stage is filled again when all
// warps have multiplied it.
__device__ void multiply(const Job& job, unsigned stages, Barriers* barriers, float* left) {
    const int lane = threadIdx.x % 32, g = lane / 4, warp = threadIdx.x / 32;
    const unsigned mask = nibble_mask();
    float sums[BN / 2];
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) sums[i] = 0.0f;
    int stage = 0, previous = 0;
    unsigned parity = 0, previous_parity = 0;
    for (int unit = job.from; unit < job.to; ++unit) {
        barrier_wait(shared_address(&barriers->full[stage]), parity);
        const unsigned rows = stages + stage * STAGE_BYTES;
        Nibbles upper, lower;
        upper.load(rows + 2 * ROW_BYTES + 2 * warp * NIBBLE_BYTES);
        lower.load(rows + 2 * ROW_BYTES + (2 * warp + 1) * NIBBLE_BYTES);
        // Half a unit becomes numbers while the half before it is multiplied.
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint4 numbers[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int quarter = 2 * half + i / 2;
                const uint2 high = i % 2 ? upper.numbers<1>(quarter, mask) : upper.numbers<0>(quarter, mask);
                const uint2 low = i % 2 ? lower.numbers<1>(quarter, mask) : lower.numbers<0>(quarter, mask);
                numbers[i] = make_uint4(high.x, low.x, high.y, low.y);
            }
            const unsigned long long x = matrix_at(rows + half * ROW_BYTES);
            products_begin();
#pragma unroll
            for (int i = 0; i < 4; ++i) add_product(sums, numbers[i], x + 2 * i);
            products_commit();
            products_wait<1>();
            if (half == 0 && unit > job.from) {
                if (lane == 0) barrier_arrive(shared_address(&barriers->empty[previous]));
                const int next = unit - 1 + STAGES;
                if (threadIdx.x == 0 && next < job.to) {
                    barrier_wait(shared_address(&barriers->empty[previous]), previous_parity);
                    fetch_weights(job, stages, barriers, next, previous);
                    fetch_rows(job, stages, barriers, next, previous);
                }
                __syncwarp();
            }
        }
        previous = stage;
        previous_parity = parity;
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    products_wait<0>();
    // Lane group g has another row of its eight.
    leave_sums(sums, left, warp * 16 + (g >> 1 | (g & 1) << 2));
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    decoder_tile_nibbles(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weights, const __grid_constant__ Finish finish,
                         int token_tiles, int units) {
    run_tile(job_of(&x, &weights, token_tiles, units), finish);
}
