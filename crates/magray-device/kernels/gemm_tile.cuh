// How a product's tile lies in shared memory, and the sums that a thread of it makes: on tensor cores, or on plain ones for f32.
// Brings nothing into shared memory and stores nothing. Configured as gemm_mma.cu is, its only user.
#pragma once

#include "mma.cuh"

// Inputs are read in chunks of 16 bytes.
constexpr int CHUNK = 16;
// The sums that a warp makes.
constexpr int WARP_ROWS = BM / WARPS_M;
constexpr int WARP_COLUMNS = BN / WARPS_N;
// Neighbouring columns that a product leaves in one thread, and how many of them lie side by side once the weights' rows
// are permuted on their way into shared memory: enough for stores of 16 bytes.
constexpr int PAIR = KIND == F32 ? 1 : 2;
constexpr int WIDEST = WARP_COLUMNS / 8 * PAIR;
constexpr int RUN = 16 / int(sizeof(Output)) < WIDEST ? 16 / int(sizeof(Output)) : WIDEST;
constexpr int GROUP = RUN / PAIR * 8;

static_assert(SLICE == 64 || SLICE == 128, "the swizzle knows these");
static_assert(WARP_ROWS % 16 == 0 && WARP_COLUMNS % 16 == 0 && WARP_COLUMNS % GROUP == 0, "whole fragments");

// Where a chunk lies: eight rows of one chunk, as products read them, and all chunks of a row, as copies write them, touch
// all banks once.
__device__ __forceinline__ int place(int row, int chunk) {
    return row * SLICE + (chunk ^ (SLICE == 128 ? row & 7 : row >> 1 & 3)) * CHUNK;
}

// The column of the tile whose weights lie in row `row` of the tile in shared memory.
__device__ __forceinline__ int column_at(int row) {
    const int within = row % GROUP;
    return row - within + within % 8 / PAIR * RUN + within / 8 * PAIR + within % PAIR;
}

#if KIND == F32
// A thread's sums on plain cores. The products of CARRY_BYTES are summed by themselves before they join the rest: one long
// chain of additions would lose a digit.
struct Tile {
    static constexpr int ROWS = WARP_ROWS / 4;
    static constexpr int COLUMNS = WARP_COLUMNS / 8;
    static constexpr int CARRY_BYTES = 256;

    __device__ __forceinline__ explicit Tile(int warp, int lane)
        : row(warp / WARPS_N * WARP_ROWS + lane / 8 * ROWS),
          column(warp % WARPS_N * WARP_COLUMNS + lane % 8 * RUN),
          weights_row(BM + warp % WARPS_N * WARP_COLUMNS + lane % 8) {}

    __device__ __forceinline__ void start(int i, int j, float sum) {
        sums[i][j] = sum;
        fresh[i][j] = 0.0f;
    }

    __device__ __forceinline__ void load_first(unsigned) {}

    template <class Await>
    __device__ __forceinline__ void take(unsigned stage, unsigned, int bytes_done, Await await) {
#pragma unroll
        for (int chunk = 0; chunk < SLICE / CHUNK; ++chunk) {
            float4 a[ROWS];
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                a[i] = load_floats(stage + place(row + i, chunk));
            }
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                const float4 b = load_floats(stage + place(weights_row + j * 8, chunk));
#pragma unroll
                for (int i = 0; i < ROWS; ++i) {
                    fresh[i][j] = fmaf(a[i].w, b.w, fmaf(a[i].z, b.z, fmaf(a[i].y, b.y, fmaf(a[i].x, b.x, fresh[i][j]))));
                }
            }
        }
        if (bytes_done % CARRY_BYTES == 0) {
            carry();
        }
        await();
    }

    __device__ __forceinline__ void carry() {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                sums[i][j] += fresh[i][j];
                fresh[i][j] = 0.0f;
            }
        }
    }

    __device__ __forceinline__ int row_of(int i) const { return row + i; }
    __device__ __forceinline__ int column_of(int j) const { return column + j / RUN * GROUP + j % RUN; }
    __device__ __forceinline__ float sum(int i, int j) const { return sums[i][j] + fresh[i][j]; }

    int row;
    int column;
    int weights_row;
    float sums[ROWS][COLUMNS];
    float fresh[ROWS][COLUMNS];
};
#else
// A thread's sums on tensor cores. The fragments of the next step are on their way while the tensor cores have this one's.
struct Tile {
    static constexpr int ROWS = WARP_ROWS / 8;
    static constexpr int COLUMNS = WARP_COLUMNS / 8 * 2;
    static constexpr int STEP = 2;
    static constexpr int STEPS = SLICE / CHUNK / STEP;
    static_assert(STEPS % 2 == 0, "a slice begins with the first of the two sets of fragments");

    __device__ __forceinline__ explicit Tile(int warp, int lane)
        : row(warp / WARPS_N * WARP_ROWS + lane / 4),
          column(warp % WARPS_N * WARP_COLUMNS + lane % 4 * RUN),
          x_place(place(warp / WARPS_N * WARP_ROWS + lane % 16, lane / 16)),
          w_place(place(BM + warp % WARPS_N * WARP_COLUMNS + lane / 16 * 8 + lane % 8, lane / 8 % 2)) {}

    __device__ __forceinline__ void start(int i, int j, Sum sum) { sums[i / 2][j / 2][i % 2 * 2 + j % 2] = sum; }

    __device__ __forceinline__ void load_first(unsigned stage) { load(stage, 0, 0); }

    template <class Await>
    __device__ __forceinline__ void take(unsigned stage, unsigned next, int, Await await) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if (step + 1 < STEPS) {
                load(stage, step + 1, (step + 1) % 2);
            } else {
                await();
                load(next, 0, 0);
            }
            round(step % 2);
#pragma unroll
            for (int m = 0; m < WARP_ROWS / 16; ++m) {
#pragma unroll
                for (int n = 0; n < WARP_COLUMNS / 8; ++n) {
                    multiply(sums[m][n], x[step % 2][m], w[step % 2][n / 2][n % 2 * 2], w[step % 2][n / 2][n % 2 * 2 + 1]);
                }
            }
        }
    }

    // A step further on in a row flips bits of the place alone: rows begin at multiples of SLICE.
    __device__ __forceinline__ void load(unsigned stage, int step, int set) {
#pragma unroll
        for (int m = 0; m < WARP_ROWS / 16; ++m) {
            load_matrices(x[set][m], stage + (x_place ^ step * STEP * CHUNK) + m * 16 * SLICE);
        }
#pragma unroll
        for (int n = 0; n < WARP_COLUMNS / 16; ++n) {
            load_matrices(w[set][n], stage + (w_place ^ step * STEP * CHUNK) + n * 16 * SLICE);
        }
    }

    // Numbers that the tensor cores take as they are need nothing.
    __device__ __forceinline__ void round(int set) {
#if KIND == TF32
#pragma unroll
        for (int word = 0; word < 4; ++word) {
#pragma unroll
            for (int m = 0; m < WARP_ROWS / 16; ++m) {
                x[set][m][word] = round_input(x[set][m][word]);
            }
#pragma unroll
            for (int n = 0; n < WARP_COLUMNS / 16; ++n) {
                w[set][n][word] = round_input(w[set][n][word]);
            }
        }
#endif
    }

    __device__ __forceinline__ int row_of(int i) const { return row + i * 8; }
    __device__ __forceinline__ int column_of(int j) const { return column + j / RUN * GROUP + j % RUN; }
    __device__ __forceinline__ Sum sum(int i, int j) const { return sums[i / 2][j / 2][i % 2 * 2 + j % 2]; }

    int row;
    int column;
    int x_place;
    int w_place;
    Sum sums[WARP_ROWS / 16][WARP_COLUMNS / 8][4];
    unsigned x[2][WARP_ROWS / 16][4];
    unsigned w[2][WARP_COLUMNS / 16][4];
};
#endif
