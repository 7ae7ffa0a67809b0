// How the warps of a block add the sums of a pass and finish its outputs, for products of few rows: every warp has a part of the inputs.
// Needs TOKENS, rows at most, and EIGHTS, the outputs of a pass in eights. Knows no form of weights.
#pragma once

#include "decoder.cuh"

constexpr int WARPS = 8;
constexpr int PAIRS = (EIGHTS + 1) / 2;
// Rows that a warp finishes.
constexpr int OWN = TOKENS / WARPS;
// Parts of a row's sum of squares that a lane holds.
constexpr int PARTS_HELD = 5;
constexpr int SUMS_STRIDE = 4 * 8 + 4;

// The sums of two eights of outputs by each eight of rows: outputs are the tensor cores' tall side.
struct Sums {
    float values[PAIRS][TOKENS / 8][4];

    __device__ __forceinline__ Sums() {
#pragma unroll
        for (int i = 0; i < PAIRS * (TOKENS / 8) * 4; ++i) (&values[0][0][0])[i] = 0.0f;
    }
};

// Sums of squares of this warp's rows: read early and added at the end, so that nothing waits for them meanwhile.
struct Squares {
    float values[OWN][PARTS_HELD];

    __device__ __forceinline__ Squares(const Finish& finish, int warp) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            const int token = warp + i * WARPS;
#pragma unroll
            for (int j = 0; j < PARTS_HELD; ++j) {
                const bool is_there = finish.parts && token < finish.tokens && j * 32 + lane < finish.part_count;
                values[i][j] = is_there ? finish.parts[size_t(token) * finish.part_count + j * 32 + lane] : 0.0f;
            }
        }
    }

    // What a row's sums are multiplied with, by a whole warp.
    __device__ __forceinline__ float scale(const Finish& finish, int token, int i) const {
        if (finish.part_count > 32 * PARTS_HELD) return row_scale(finish, token);
        if (!finish.parts) return 1.0f;
        float square = 0.0f;
#pragma unroll
        for (int j = 0; j < PARTS_HELD; ++j) square += values[i][j];
        return rsqrtf(warp_sum(square) * finish.inverse_inputs + finish.epsilon);
    }
};

// The outputs of a pass, one a lane.
struct Outputs {
    int first;
    bool is_there;
    Before before[OWN];

    __device__ __forceinline__ Outputs(const Finish& finish, int first_eight, int warp) {
        const int lane = threadIdx.x % 32;
        first = first_eight * 8 + lane;
        is_there = lane < EIGHTS * 8 && first < finish.outputs;
#pragma unroll
        for (int i = 0; i < OWN; ++i) before[i] = read_before(finish, warp + i * WARPS, first, is_there && warp + i * WARPS < finish.tokens);
    }
};

// Adds the sums of all warps through shared memory and finishes the pass.
__device__ __forceinline__ void finish_pass(const Finish& finish, const Sums& sums, const Squares& squares, const Outputs& outputs, float* room, int warp,
                                            int pass) {
    const int lane = threadIdx.x % 32;
    // Row g of a product is output (g >> 1) + 4 (g & 1) of its eight, and so are columns the rows of activations.
    float* own = room + (warp * TOKENS + lane % 4) * SUMS_STRIDE + (lane / 8 + (lane / 4 & 1) * 4);
    if (pass > 0) __syncthreads();
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
#pragma unroll
        for (int i = 0; i < TOKENS / 8; ++i) {
            float* to = own + 8 * i * SUMS_STRIDE + 16 * pair;
            const float(&four)[4] = sums.values[pair][i];
            to[0] = four[0];
            to[4 * SUMS_STRIDE] = four[1];
            if (2 * pair + 1 < EIGHTS) {
                to[8] = four[2];
                to[4 * SUMS_STRIDE + 8] = four[3];
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
        const int token = warp + i * WARPS;
        if (token >= finish.tokens) break;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += room[(w * TOKENS + token) * SUMS_STRIDE + lane];
        finish_lanes(finish, outputs.before[i], token, outputs.first, outputs.is_there, sum, squares.scale(finish, token, i),
                     blockIdx.x * (finish.out_part_count / gridDim.x) + pass);
    }
}

// A row has as many parts from every block: those of passes that this block has not are zero.
__device__ __forceinline__ void fill_parts(const Finish& finish, int warp, int passes) {
    if (finish.kind != FINISH_ADD || !finish.gain) return;
    const int most = finish.out_part_count / gridDim.x;
    for (int token = warp; token < finish.tokens; token += WARPS)
        for (int part = passes + threadIdx.x % 32; part < most; part += 32)
            finish.out_parts[size_t(token) * finish.out_part_count + blockIdx.x * most + part] = 0.0f;
}
