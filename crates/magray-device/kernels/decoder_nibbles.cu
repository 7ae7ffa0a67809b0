// Products of up to 8 rows with weights of 4 bits that are read once, at the speed of the memory. The warps of a group divide the inputs,
// groups divide the passes: while one adds its sums, others multiply. Activations stay in shared memory, or come in turns where they have no
// room and there is one pass; the weights stream through a ring.
// The tensor cores multiply the numbers without their scale, which the sums of 32 inputs get. Hopper.
// Refuses nothing at run time: its caller sees to the shapes.
//
// EIGHTS  outputs of a pass, in eights: 1 to 4
// WARPS   of a block: enough that the work of one hides how long others wait
// FORM    FORM_NIBBLES or FORM_CENTRED, see decoder.cuh
#define TOKENS 8
#define PARTS_LEAST 4
#include "decoder_few.cuh"
#include "decoder_nibbles.cuh"
#include "order.cuh"

constexpr int STAGES_MOST = 16;
constexpr int ROOMS_MOST = 2;
constexpr int UNIT_BYTES = (EIGHTS * NIBBLE_BYTES + 127) & ~127;
constexpr int UNIT_ROW = NIBBLES_INPUTS * 2;

__device__ __forceinline__ void row_load(unsigned to, const unsigned short* from, int bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(barrier)
                 : "memory");
}

// Four matrices of 8 rows of 16 bytes: lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ uint4 load_rows(unsigned from) {
    uint4 x;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(from) : "memory");
    return x;
}

// d = c + a * b
__device__ __forceinline__ void multiply_onto(float (&d)[4], const float (&c)[4], uint4 a, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// Multiplies a unit. `rows` is where this lane finds its part of the activations.
__device__ __forceinline__ void multiply_unit(Sums& sums, const Nibbles (&weights)[EIGHTS], unsigned rows, unsigned mask) {
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
        const uint4 x = load_rows(rows + quarter * 64);
        // What the numbers have too much, in all outputs alike.
        const float none[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        const uint4 raised = make_uint4(RAISED_NEGATIVE, RAISED_NEGATIVE, RAISED_NEGATIVE, RAISED_NEGATIVE);
        float half[4], start[4];
        multiply_onto(half, none, raised, x.x, x.y);
        multiply_onto(start, half, raised, x.z, x.w);
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            const bool has_lower = 2 * pair + 1 < EIGHTS;
            const Nibbles &upper = weights[2 * pair], &lower = weights[has_lower ? 2 * pair + 1 : 0];
            const unsigned high = upper.word(quarter), low = has_lower ? lower.word(quarter) : 0;
            const auto numbers = [&](int step) {
                return make_uint4(raised_pair(high >> 8 * step, mask), has_lower ? raised_pair(low >> 8 * step, mask) : 0,
                                  raised_pair(high >> (8 * step + 4), mask), has_lower ? raised_pair(low >> (8 * step + 4), mask) : 0);
            };
            float first[4], all[4];
            multiply_onto(first, start, numbers(0), x.x, x.y);
            multiply_onto(all, first, numbers(1), x.z, x.w);
            float(&four)[4] = sums.values[pair][0];
            four[0] = fmaf(all[0], upper.scale(quarter), four[0]);
            four[1] = fmaf(all[1], upper.scale(quarter), four[1]);
            if (has_lower) {
                four[2] = fmaf(all[2], lower.scale(quarter), four[2]);
                four[3] = fmaf(all[3], lower.scale(quarter), four[3]);
            }
            if (FORM == FORM_NIBBLES) {
                // The offsets times the sums of the activations.
                const float x0 = start[0] * (-1.0f / 136.0f), x1 = start[1] * (-1.0f / 136.0f);
                four[0] = fmaf(x0, upper.offset(quarter), four[0]);
                four[1] = fmaf(x1, upper.offset(quarter), four[1]);
                if (has_lower) {
                    four[2] = fmaf(x0, lower.offset(quarter), four[2]);
                    four[3] = fmaf(x1, lower.offset(quarter), four[3]);
                }
            }
        }
    }
}

// The weights of a warp, in the order of time.
struct Fetch {
    const TensorMap* weights;
    unsigned ring, barriers;
    int from, units, unit, eight, step;

    __device__ __forceinline__ unsigned at(int stage) const { return ring + stage * UNIT_BYTES; }
    __device__ __forceinline__ unsigned full(int stage) const { return barriers + stage * 8; }

    // All lanes keep count, one of them fetches.
    __device__ __forceinline__ void next(int stage) {
        if (threadIdx.x % 32 == 0) {
            barrier_arrive_expecting(full(stage), EIGHTS * NIBBLE_BYTES);
            block_load(at(stage), weights, from + unit, eight, full(stage));
        }
        if (++unit == units) {
            unit = 0;
            eight += step;
        }
    }
};

// Of the warps of a group.
__device__ __forceinline__ void group_sync(int group, int warps) { asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "r"(warps * 32) : "memory"); }

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1)
    decoder_nibbles(const unsigned short* x, int x_stride, const __grid_constant__ TensorMap weights, const __grid_constant__ Finish finish, int passes,
                    int units, int inputs, int stages, int parts, int held, int rooms) {
    // The rings of all warps, then the activations of all parts, each with one or two rooms, then the sums of all warps, of two passes.
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ unsigned long long barriers[WARPS][STAGES_MOST + ROOMS_MOST];
    __shared__ float scales[WARPS / PARTS_LEAST][TOKENS];
    // The compiler then knows that a warp's threads agree.
    const int lane = threadIdx.x % 32, warp = __shfl_sync(WHOLE_WARP, threadIdx.x / 32, 0);
    const int groups = WARPS / parts, group = warp / parts, part = warp % parts;
    const int from = units * part / parts, own_units = units * (part + 1) / parts - from, tokens = finish.tokens;
    // Rows lie 16 bytes apart in the banks.
    const int row_bytes = held * UNIT_ROW + 16, room_bytes = tokens * row_bytes;
    const unsigned acts = shared_address(memory) + WARPS * stages * UNIT_BYTES + part * rooms * room_bytes;
    float* room = reinterpret_cast<float*>(memory + WARPS * stages * UNIT_BYTES + parts * rooms * room_bytes) + group * 2 * parts * tokens * SUMS_STRIDE;
    const int first_eight = blockIdx.x * passes * EIGHTS;
    passes = min(passes, ((finish.outputs + 7) / 8 - first_eight + EIGHTS - 1) / EIGHTS);
    Fetch fetch{&weights, shared_address(memory) + warp * stages * UNIT_BYTES, shared_address(&barriers[warp][0]), from, own_units, 0,
                first_eight + group * EIGHTS, groups * EIGHTS};
    // The first group fetches the activations of all.
    const unsigned acts_full = shared_address(&barriers[part][STAGES_MOST]);
    int left = max(passes - group + groups - 1, 0) / groups * own_units;
    const int early = min(left, stages);
    left -= early;
    if (lane == 0) {
        for (int i = 0; i < stages; ++i) barrier_init(fetch.full(i), 1);
        if (group == 0)
            for (int i = 0; i < rooms; ++i) barrier_init(acts_full + i * 8, 1);
        barrier_init_done();
    }
    __syncwarp();
    // Weights do not come from the kernel ahead: the first of them are fetched while that one still runs.
    for (int i = 0; i < early; ++i) fetch.next(i);
    // The last block may be longer than the inputs.
    const int own_inputs = min((from + own_units) * NIBBLES_INPUTS, inputs) - from * NIBBLES_INPUTS;
    if (group == 0)
        for (int row = 0; row < tokens; ++row)
            for (int i = max(own_inputs, 0) + 2 * lane; i < own_units * NIBBLES_INPUTS; i += 64)
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(acts + row * row_bytes + i * 2), "r"(0) : "memory");
    __syncthreads();
    let_next_begin();
    wait_for_previous();
    // The activations of as many units as have room.
    const auto bring = [&](int turn) {
        const int begin = turn * held * NIBBLES_INPUTS, bytes = (min(begin + held * NIBBLES_INPUTS, own_inputs) - begin) * 2, at = turn % ROOMS_MOST;
        if (bytes <= 0) return;
        if (lane == 0) barrier_arrive_expecting(acts_full + at * 8, tokens * bytes);
        __syncwarp();
        if (lane < tokens)
            row_load(acts + at * room_bytes + lane * row_bytes, x + size_t(lane) * x_stride + from * NIBBLES_INPUTS + begin, bytes, acts_full + at * 8);
        __syncwarp();
    };
    if (group == 0)
        for (int i = 0; i < rooms; ++i) bring(i);
    const Squares squares(finish, part, parts);
    // Column n of a product is row (n >> 1) + 4 (n & 1) of the activations; those that are not there are another's.
    const int row = min((lane % 8 >> 1) + (lane & 1) * 4, tokens - 1);
    const unsigned rows = acts + row * row_bytes + lane / 8 * 16;
    const unsigned mask = nibble_mask();
    int stage = 0;
    unsigned parity = 0;
    for (int pass = group, turn = 0; pass < passes; pass += groups, ++turn) {
        // Every turn another warp begins: where there are few rows, all have their turn.
        const Outputs outputs(finish, first_eight + pass * EIGHTS, (part + parts - turn % parts) % parts, parts);
        Sums sums;
        for (int i = 0, brought = 0; i < own_units; ++brought) {
            const int at = brought % ROOMS_MOST, end = min(i + held, own_units);
            barrier_wait(acts_full + at * 8, brought / ROOMS_MOST & 1);
            for (unsigned own_rows = rows + at * room_bytes; i < end; ++i, own_rows += UNIT_ROW) {
                barrier_wait(fetch.full(stage), parity);
                Nibbles own[EIGHTS];
#pragma unroll
                for (int j = 0; j < EIGHTS; ++j) own[j].load(fetch.at(stage) + j * NIBBLE_BYTES);
                __syncwarp();
                if (left > 0) {
                    fetch.next(stage);
                    --left;
                }
                multiply_unit(sums, own, own_rows, mask);
                if (++stage == stages) {
                    stage = 0;
                    parity ^= 1;
                }
            }
            __syncwarp();
            bring(brought + rooms);
        }
        if (turn == 0) squares.leave_scales(finish, part, parts, scales[group]);
        float* own_room = room + turn % 2 * parts * tokens * SUMS_STRIDE;
        leave_sums(sums, own_room, part, tokens);
        // Who finishes the pass before has read its sums.
        group_sync(group, parts);
        finish_pass(finish, outputs, own_room, tokens, parts, scales[group], pass);
    }
    fill_parts(finish, passes);
}
