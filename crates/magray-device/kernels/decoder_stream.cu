// Products of a few rows with weights that are read once, at the speed of the memory: each warp streams its own part of the inputs
// through a ring in shared memory and multiplies on the tensor cores, the warps' sums are added at the end of a pass. Hopper.
// Refuses nothing at run time: its caller sees to the shapes.
//
// TOKENS  rows at most: 8 or 16
// EIGHTS  outputs of a pass, in eights: 1 to 4
// FORM    how the weights lie, see decoder.cuh
#include "decoder.cuh"
#include "hopper.cuh"
#include "instructions.cuh"
#include "order.cuh"

constexpr int WARPS = 8;
constexpr int PAIRS = (EIGHTS + 1) / 2;
constexpr int STAGES_MOST = 16;
// Parts of a row's sum of squares that a lane holds.
constexpr int PARTS_HELD = 5;
// Inputs of a unit: what a warp fetches at once.
constexpr int UNIT = FORM == FORM_NIBBLES ? NIBBLES_INPUTS : BYTES_INPUTS;
constexpr int EIGHT_BYTES = FORM == FORM_NUMBERS ? 1024 : FORM == FORM_BYTES ? BYTES_BLOCK : NIBBLES_BLOCK;
// Rows of 128 bytes, 64 inputs each.
constexpr int BOXES = UNIT / 64;
constexpr int ACTS_BYTES = TOKENS * 128;
constexpr int SUMS_STRIDE = 4 * 8 + 4;

__device__ __forceinline__ void block_load(unsigned to, const TensorMap* map, int unit, int eight, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(0), "r"(unit), "r"(eight), "r"(barrier)
                 : "memory");
}

// Two numbers of 4 bits, at bits 0 and 16 of the word, as bf16: with 128 in the exponent they are the lowest bits of 128 + number, which
// is taken to be 8 more than what is meant.
__device__ __forceinline__ unsigned nibble_pair(unsigned word, unsigned scale, unsigned offset) {
    unsigned pair = word & 0x000f000fu | 0x43004300u, number;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(number) : "r"(pair), "r"(0x43084308u));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(number), "r"(scale), "r"(offset));
    return pair;
}

// Two bytes of a word whose signs were turned: in the lowest bits of 2^23 they are 128 too large.
template <int FIRST>
__device__ __forceinline__ unsigned byte_pair(unsigned word, float scale) {
    const float low = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 + FIRST)) - 8388736.0f;
    const float high = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 + FIRST + 1)) - 8388736.0f;
    return pack<bf16>(low * scale, high * scale);
}

// What this warp fetches, in the order of time.
struct Items {
    const TensorMap* x;
    const TensorMap* weights;
    unsigned ring, barriers;
    int unit_bytes, acts_bytes;
    // Units of a pass, of this warp.
    int units, warp, first_eight;

    __device__ __forceinline__ unsigned at(int stage) const { return ring + stage * unit_bytes; }
    __device__ __forceinline__ unsigned full(int stage) const { return barriers + stage * 8; }
    __device__ __forceinline__ int unit(int item) const { return warp + item % units * WARPS; }

    __device__ __forceinline__ void fetch_weights(int item, int stage) const {
        const int eight = first_eight + item / units * EIGHTS;
        const unsigned to = at(stage) + BOXES * ACTS_BYTES;
        barrier_arrive_expecting(full(stage), EIGHTS * EIGHT_BYTES + BOXES * acts_bytes);
        if (FORM == FORM_NUMBERS) {
            box_load(to, weights, unit(item) * UNIT, eight * 8, full(stage));
        } else {
            block_load(to, weights, unit(item), eight, full(stage));
        }
    }

    __device__ __forceinline__ void fetch_acts(int item, int stage) const {
#pragma unroll
        for (int i = 0; i < BOXES; ++i) box_load(at(stage) + i * ACTS_BYTES, x, unit(item) * UNIT + i * 64, 0, full(stage));
    }
};

// The sums of two eights of outputs by each eight of rows: outputs are the tensor cores' tall side.
struct Sums {
    float values[PAIRS][TOKENS / 8][4];
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
    uint4 own[EIGHTS], pairs[EIGHTS];
    float2 scales[EIGHTS];
    if (FORM != FORM_NUMBERS) {
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) {
            own[j] = load_shared(weights + j * EIGHT_BYTES + lane * 16);
            if (FORM == FORM_NIBBLES) pairs[j] = load_shared(weights + j * EIGHT_BYTES + 512 + g * 16);
            if (FORM == FORM_BYTES) scales[j] = *reinterpret_cast<const float2*>(__cvta_shared_to_generic(weights + j * EIGHT_BYTES + 512 + g * 8));
        }
    }
#pragma unroll
    for (int part = 0; part < UNIT / 32; ++part) {
        const unsigned piece = row * 128 + (((part % 2 * 4 + t) ^ row) << 4);
        uint4 rows[TOKENS / 8];
#pragma unroll
        for (int i = 0; i < TOKENS / 8; ++i) rows[i] = load_shared(acts + part / 2 * ACTS_BYTES + i * 1024 + piece);
        uint2 first[EIGHTS], second[EIGHTS];
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) {
            if (FORM == FORM_NUMBERS) {
                const uint4 numbers = load_shared(weights + j * 1024 + piece);
                first[j] = make_uint2(numbers.x, numbers.y);
                second[j] = make_uint2(numbers.z, numbers.w);
            } else if (FORM == FORM_BYTES) {
                const float scale = part == 0 ? scales[j].x : scales[j].y;
                const unsigned low = (part == 0 ? own[j].x : own[j].z) ^ 0x80808080u, high = (part == 0 ? own[j].y : own[j].w) ^ 0x80808080u;
                first[j] = make_uint2(byte_pair<0>(low, scale), byte_pair<2>(low, scale));
                second[j] = make_uint2(byte_pair<0>(high, scale), byte_pair<2>(high, scale));
            } else {
                const unsigned pair = part == 0 ? pairs[j].x : part == 1 ? pairs[j].y : part == 2 ? pairs[j].z : pairs[j].w;
                const unsigned word = part == 0 ? own[j].x : part == 1 ? own[j].y : part == 2 ? own[j].z : own[j].w;
                const unsigned scale = __byte_perm(pair, 0, 0x1010), offset = __byte_perm(pair, 0, 0x3232);
                first[j] = make_uint2(nibble_pair(word, scale, offset), nibble_pair(word >> 4, scale, offset));
                second[j] = make_uint2(nibble_pair(word >> 8, scale, offset), nibble_pair(word >> 12, scale, offset));
            }
        }
        multiply_pairs<0>(sums, first, rows);
        multiply_pairs<1>(sums, second, rows);
    }
}

// What a row's sums are multiplied with, by a whole warp.
__device__ __forceinline__ float scale_of(const Finish& finish, int token, const float (&squares)[PARTS_HELD]) {
    if (finish.part_count > 32 * PARTS_HELD) return row_scale(finish, token);
    if (!finish.parts) return 1.0f;
    float square = 0.0f;
#pragma unroll
    for (int j = 0; j < PARTS_HELD; ++j) square += squares[j];
    return rsqrtf(warp_sum(square) * finish.inverse_inputs + finish.epsilon);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 2)
    decoder_stream(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weights, const __grid_constant__ Finish finish,
                   int passes, int units, int stages, int loaded_tokens) {
    // The rings of all warps, then their sums.
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ unsigned long long barriers[WARPS][STAGES_MOST];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr int UNIT_BYTES = (BOXES * ACTS_BYTES + EIGHTS * EIGHT_BYTES + 1023) & ~1023;
    float* sums_at = reinterpret_cast<float*>(memory + WARPS * stages * UNIT_BYTES);
    const int first_eight = blockIdx.x * passes * EIGHTS;
    passes = min(passes, ((finish.outputs + 7) / 8 - first_eight + EIGHTS - 1) / EIGHTS);
    const Items items{&x,   &weights, shared_address(memory) + warp * stages * UNIT_BYTES, shared_address(&barriers[warp][0]),
                      UNIT_BYTES, loaded_tokens * 128, max((units - warp + WARPS - 1) / WARPS, 0), warp, first_eight};
    const int count = passes * items.units, early = min(count, stages);
    if (lane == 0) {
        for (int i = 0; i < stages; ++i) barrier_init(items.full(i), 1);
        barrier_init_done();
        // Weights do not come from the kernel ahead: the first of them are fetched while that one still runs.
        for (int i = 0; i < early; ++i) items.fetch_weights(i, i);
    }
    __syncwarp();
    let_next_begin();
    wait_for_previous();
    if (lane == 0)
        for (int i = 0; i < early; ++i) items.fetch_acts(i, i);
    // Read now and added at the end: nothing waits for them meanwhile.
    float squares[TOKENS / WARPS][PARTS_HELD];
#pragma unroll
    for (int i = 0; i < TOKENS / WARPS; ++i) {
        const int token = warp + i * WARPS;
#pragma unroll
        for (int j = 0; j < PARTS_HELD; ++j) {
            const bool is_there = finish.parts && token < finish.tokens && j * 32 + lane < finish.part_count;
            squares[i][j] = is_there ? finish.parts[size_t(token) * finish.part_count + j * 32 + lane] : 0.0f;
        }
    }
    int stage = 0, item = 0;
    unsigned parity = 0;
    for (int pass = 0; pass < passes; ++pass) {
        const int output = (first_eight + pass * EIGHTS) * 8 + lane;
        const bool is_there = lane < EIGHTS * 8 && output < finish.outputs;
        Before before[TOKENS / WARPS];
#pragma unroll
        for (int i = 0; i < TOKENS / WARPS; ++i) before[i] = read_before(finish, warp + i * WARPS, output, is_there && warp + i * WARPS < finish.tokens);
        Sums sums;
#pragma unroll
        for (int j = 0; j < PAIRS * (TOKENS / 8) * 4; ++j) (&sums.values[0][0][0])[j] = 0.0f;
        for (int i = 0; i < items.units; ++i, ++item) {
            barrier_wait(items.full(stage), parity);
            const unsigned at = items.at(stage);
            multiply_unit(sums, at, at + BOXES * ACTS_BYTES);
            __syncwarp();
            if (lane == 0 && item + stages < count) {
                items.fetch_weights(item + stages, stage);
                items.fetch_acts(item + stages, stage);
            }
            if (++stage == stages) {
                stage = 0;
                parity ^= 1;
            }
        }
        // Row g of a product is output (g >> 1) + 4 (g & 1) of its eight, and so are columns the rows of activations.
        float* own = sums_at + (warp * TOKENS + lane % 4) * SUMS_STRIDE + (lane / 8 + (lane / 4 & 1) * 4);
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
        for (int i = 0; i < TOKENS / WARPS; ++i) {
            const int token = warp + i * WARPS;
            if (token >= finish.tokens) break;
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) sum += sums_at[(w * TOKENS + token) * SUMS_STRIDE + lane];
            finish_lanes(finish, before[i], token, output, is_there, sum, scale_of(finish, token, squares[i]), blockIdx.x * (finish.out_part_count / gridDim.x) + pass);
        }
    }
    // A row has as many parts from every block.
    if (finish.kind == FINISH_ADD && finish.gain) {
        const int most = finish.out_part_count / gridDim.x;
        for (int token = warp; token < finish.tokens; token += WARPS)
            for (int part = passes + lane; part < most; part += 32) finish.out_parts[size_t(token) * finish.out_part_count + blockIdx.x * most + part] = 0.0f;
    }
}
