// Products of a few rows with weights that are read once, at the speed of the memory: each warp streams its own part of the inputs
// through a ring in shared memory and multiplies on the tensor cores, the warps' sums are added at the end of a pass. Hopper.
// Weights of 4 bits have a kernel of their own, decoder_nibbles.cu. Refuses nothing at run time: its caller sees to the shapes.
//
// TOKENS  rows at most: 8 or 16
// EIGHTS  outputs of a pass, in eights: 1 to 4
// FORM    FORM_NUMBERS or FORM_BYTES, see decoder.cuh
#define WARPS 8
#define PARTS_LEAST WARPS
#include "decoder_few.cuh"
#include "hopper.cuh"
#include "instructions.cuh"
#include "order.cuh"

constexpr int STAGES_MOST = 16;
// Inputs of a unit: what a warp fetches at once.
constexpr int UNIT = 64;
constexpr int EIGHT_BYTES = FORM == FORM_NUMBERS ? 1024 : BYTES_BLOCK;
// Rows of 128 bytes.
constexpr int ACTS_BYTES = TOKENS * 128;

// Two bytes of a word whose signs were turned: in the lowest bits of 2^23 they are 128 too large.
template <int FIRST>
__device__ __forceinline__ unsigned byte_pair(unsigned word, float scale) {
    const float low = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 + FIRST)) - 8388736.0f;
    const float high = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 + FIRST + 1)) - 8388736.0f;
    return pack<bf16>(low * scale, high * scale);
}

// What this warp fetches, in the order of time.
struct Fetch {
    const unsigned short* x;
    const TensorMap* weights;
    unsigned ring, barriers;
    int x_stride, tokens, units, first, unit, eight;

    static constexpr int UNIT_BYTES = (ACTS_BYTES + EIGHTS * EIGHT_BYTES + 1023) & ~1023;

    __device__ __forceinline__ unsigned at(int stage) const { return ring + stage * UNIT_BYTES; }
    __device__ __forceinline__ unsigned full(int stage) const { return barriers + stage * 8; }

    __device__ __forceinline__ void weights_into(int stage) const {
        const unsigned to = at(stage) + ACTS_BYTES;
        barrier_arrive_expecting(full(stage), EIGHTS * EIGHT_BYTES);
        if (FORM == FORM_NUMBERS) {
            box_load_once(to, weights, unit * UNIT, eight * 8, full(stage));
        } else {
            block_load(to, weights, unit, eight, full(stage));
        }
    }

    // By all lanes, and not by the copy engine: it has all the weights before it that it was given. Pieces of 16 bytes change places from row to row,
    // as in boxes; rows are longer than their inputs by zeros.
    __device__ __forceinline__ void acts_into(int stage) const {
        const int piece = threadIdx.x % 8;
        const unsigned short* from = x + unit * UNIT + piece * 8;
        const bool is_there = unit * UNIT + piece * 8 < x_stride;
        for (int row = threadIdx.x % 32 / 8; row < tokens; row += 4)
            begin_copy(at(stage) + row * 128 + ((piece ^ row & 7) << 4), is_there ? from + size_t(row) * x_stride : x, is_there);
        barrier_arrive_with_copies(full(stage));
    }

    __device__ __forceinline__ void advance() {
        unit += WARPS;
        if (unit >= units) {
            unit = first;
            eight += EIGHTS;
        }
    }
};

// 16 inputs: of weights two eights, where there is a second; of rows each eight.
template <int PART>
__device__ __forceinline__ void multiply_pairs(Sums& sums, const uint2 (&weights)[EIGHTS], const uint4 (&acts)[TOKENS / 8]) {
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
        const uint2 upper = weights[2 * pair], lower = 2 * pair + 1 < EIGHTS ? weights[(2 * pair + 1) % EIGHTS] : make_uint2(0, 0);
#pragma unroll
        for (int i = 0; i < TOKENS / 8; ++i)
            multiply(sums.values[pair][i], make_uint4(upper.x, lower.x, upper.y, lower.y), PART == 0 ? acts[i].x : acts[i].z,
                     PART == 0 ? acts[i].y : acts[i].w, bf16{});
    }
}

// Multiplies a unit. The 16 bytes of a lane are inputs 8 t to 8 t + 7 of 32, of rows and of weights: a product may take inputs in any
// order if both sides take the same.
__device__ __forceinline__ void multiply_unit(Sums& sums, unsigned acts, unsigned weights) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    // In boxes, pieces of 16 bytes change places from row to row. These rows make no two lanes read the same bank at once.
    const int row = g >> 1 | (g & 1) << 2;
    uint4 own[EIGHTS];
    float2 scales[EIGHTS];
    if (FORM == FORM_BYTES) {
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) {
            own[j] = load_shared(weights + j * EIGHT_BYTES + lane * 16);
            scales[j] = *reinterpret_cast<const float2*>(__cvta_shared_to_generic(weights + j * EIGHT_BYTES + 512 + g * 8));
        }
    }
#pragma unroll
    for (int part = 0; part < UNIT / 32; ++part) {
        const unsigned piece = row * 128 + (((part * 4 + t) ^ row) << 4);
        uint4 rows[TOKENS / 8];
#pragma unroll
        for (int i = 0; i < TOKENS / 8; ++i) rows[i] = load_shared(acts + i * 1024 + piece);
        uint2 first[EIGHTS], second[EIGHTS];
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) {
            if (FORM == FORM_NUMBERS) {
                const uint4 numbers = load_shared(weights + j * 1024 + piece);
                first[j] = make_uint2(numbers.x, numbers.y);
                second[j] = make_uint2(numbers.z, numbers.w);
            } else {
                const float scale = part == 0 ? scales[j].x : scales[j].y;
                const unsigned low = (part == 0 ? own[j].x : own[j].z) ^ 0x80808080u, high = (part == 0 ? own[j].y : own[j].w) ^ 0x80808080u;
                first[j] = make_uint2(byte_pair<0>(low, scale), byte_pair<2>(low, scale));
                second[j] = make_uint2(byte_pair<0>(high, scale), byte_pair<2>(high, scale));
            }
        }
        multiply_pairs<0>(sums, first, rows);
        multiply_pairs<1>(sums, second, rows);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 2)
    decoder_stream(const unsigned short* x, int x_stride, const __grid_constant__ TensorMap weights, const __grid_constant__ Finish finish,
                   int passes, int units, int stages) {
    // The rings of all warps, then their sums.
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ unsigned long long barriers[WARPS][STAGES_MOST];
    __shared__ float scales[TOKENS];
    // The compiler then knows that a warp's threads agree.
    const int lane = threadIdx.x % 32, warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32, 0);
    float* room = reinterpret_cast<float*>(memory + WARPS * stages * Fetch::UNIT_BYTES);
    const int first_eight = blockIdx.x * passes * EIGHTS;
    passes = min(passes, ((finish.outputs + 7) / 8 - first_eight + EIGHTS - 1) / EIGHTS);
    const int own_units = max((units - warp + WARPS - 1) / WARPS, 0);
    const Fetch begin{x, &weights, shared_address(memory) + warp * stages * Fetch::UNIT_BYTES, shared_address(&barriers[warp][0]), x_stride, finish.tokens,
                      units, warp, warp, first_eight};
    Fetch fetch = begin;
    int left = passes * own_units;
    const int early = min(left, stages);
    left -= early;
    if (lane == 0) {
        for (int i = 0; i < stages; ++i) barrier_init(fetch.full(i), 1 + 32);
        barrier_init_done();
    }
    __syncwarp();
    // Weights do not come from the kernel ahead: the first of them are fetched while that one still runs.
    for (int i = 0; i < early; ++i, fetch.advance())
        if (lane == 0) fetch.weights_into(i);
    let_next_begin();
    wait_for_previous();
    fetch = begin;
    for (int i = 0; i < early; ++i, fetch.advance()) fetch.acts_into(i);
    const Squares squares(finish, warp, WARPS);
    int stage = 0;
    unsigned parity = 0;
    for (int pass = 0; pass < passes; ++pass) {
        const Outputs outputs(finish, first_eight + pass * EIGHTS, warp, WARPS);
        Sums sums;
        for (int i = 0; i < own_units; ++i) {
            barrier_wait(fetch.full(stage), parity);
            const unsigned at = fetch.at(stage);
            multiply_unit(sums, at, at + ACTS_BYTES);
            __syncwarp();
            if (left > 0) {
                if (lane == 0) fetch.weights_into(stage);
                fetch.acts_into(stage);
                fetch.advance();
                --left;
            }
            if (++stage == stages) {
                stage = 0;
                parity ^= 1;
            }
        }
        if (pass == 0) {
            squares.leave_scales(finish, warp, WARPS, scales);
        } else {
            __syncthreads();
        }
        leave_sums(sums, room, warp, TOKENS);
        __syncthreads();
        finish_pass(finish, outputs, room, TOKENS, WARPS, scales, pass);
    }
    fill_parts(finish, passes);
}
