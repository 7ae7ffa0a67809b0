// How warps add the sums of a pass and finish its outputs, for products of few rows: each of `parts` warps has a part of the inputs.
// Needs TOKENS, rows at most, EIGHTS, the outputs of a pass in eights, and PARTS_LEAST. Knows no form of weights.
#pragma once

#include "decoder.cuh"

constexpr int PAIRS = (EIGHTS + 1) / 2;
// Rows that a warp finishes.
constexpr int OWN = (TOKENS + PARTS_LEAST - 1) / PARTS_LEAST;
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

    __device__ __forceinline__ Squares(const Finish& finish, int warp, int parts) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            const int token = warp + i * parts;
#pragma unroll
            for (int j = 0; j < PARTS_HELD; ++j) {
                const bool is_there = finish.parts && token < finish.tokens && j * 32 + lane < finish.part_count;
                values[i][j] = is_there ? finish.parts[size_t(token) * finish.part_count + j * 32 + lane] : 0.0f;
            }
        }
    }

    // Leaves what the rows' sums are multiplied with.
    __device__ __forceinline__ void leave_scales(const Finish& finish, int warp, int parts, float* scales) const {
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            const int token = warp + i * parts;
            if (token >= finish.tokens) break;
            float square = 0.0f;
#pragma unroll
            for (int j = 0; j < PARTS_HELD; ++j) square += values[i][j];
            const bool has_more = finish.part_count > 32 * PARTS_HELD;
            const float scale = !finish.parts ? 1.0f : has_more ? row_scale(finish, token) : rsqrtf(warp_sum(square) * finish.inverse_inputs + finish.epsilon);
            if (threadIdx.x % 32 == 0) scales[token] = scale;
        }
    }
};

// The outputs of a pass, one a lane, of the rows from `token` on that this warp finishes.
struct Outputs {
    int first, token;
    bool is_there;
    Before before[OWN];

    __device__ __forceinline__ Outputs(const Finish& finish, int first_eight, int own_token, int parts) {
        const int lane = threadIdx.x % 32;
        first = first_eight * 8 + lane;
        token = own_token;
        is_there = lane < EIGHTS * 8 && first < finish.outputs;
#pragma unroll
        for (int i = 0; i < OWN; ++i) before[i] = read_before(finish, token + i * parts, first, is_there && token + i * parts < finish.tokens);
    }
};

// Leaves a warp's sums of a pass.
__device__ __forceinline__ void leave_sums(const Sums& sums, float* room, int warp, int tokens) {
    const int lane = threadIdx.x % 32;
    // Row g of a product is output (g >> 1) + 4 (g & 1) of its eight, and so are columns the rows of activations.
    float* own = room + (warp * tokens + lane % 4) * SUMS_STRIDE + (lane / 8 + (lane / 4 & 1) * 4);
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
#pragma unroll
        for (int i = 0; i < TOKENS / 8; ++i) {
            float* to = own + 8 * i * SUMS_STRIDE + 16 * pair;
            const float(&four)[4] = sums.values[pair][i];
            const int token = 8 * i + lane % 4;
            if (token < tokens) to[0] = four[0];
            if (token + 4 < tokens) to[4 * SUMS_STRIDE] = four[1];
            if (2 * pair + 1 < EIGHTS) {
                if (token < tokens) to[8] = four[2];
                if (token + 4 < tokens) to[4 * SUMS_STRIDE + 8] = four[3];
            }
        }
    }
}

// Adds the sums of all warps and finishes the pass.
__device__ __forceinline__ void finish_pass(const Finish& finish, const Outputs& outputs, const float* room, int tokens, int parts, const float* scales,
                                            int pass) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
        const int token = outputs.token + i * parts;
        if (token >= finish.tokens) break;
        float sum = 0.0f;
#pragma unroll PARTS_LEAST
        for (int w = 0; w < parts; ++w) sum += room[(w * tokens + token) * SUMS_STRIDE + lane];
        finish_lanes(finish, outputs.before[i], token, outputs.first, outputs.is_there, sum, scales[token],
                     blockIdx.x * (finish.out_part_count / gridDim.x) + pass);
    }
}

// A row has as many parts from every block: those of passes that this block has not are zero.
__device__ __forceinline__ void fill_parts(const Finish& finish, int passes) {
    if (finish.kind != FINISH_ADD || !finish.gain) return;
    const int most = finish.out_part_count / gridDim.x;
    for (int token = threadIdx.x / 32; token < finish.tokens; token += blockDim.x / 32)
        for (int part = passes + threadIdx.x % 32; part < most; part += 32)
            finish.out_parts[size_t(token) * finish.out_part_count + blockIdx.x * most + part] = 0.0f;
}
