// Products of many rows with weights on Hopper: 128 outputs by BN rows a tile, the weights being the tensor cores' tall side. The
// blocks of a cluster divide the inputs of a tile and add their sums through shared memory, so that few rows keep the whole GPU busy.
// Refuses nothing at run time: its caller sees to the shapes. Compiled for sm_90a alone.
//
// BN      rows of a tile: 32, 64 or 128
// STAGES  length of the ring
#include "decoder.cuh"
#include "hopper.cuh"
#include "order.cuh"

#define NAMES_0_15 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
PRODUCTS(bf16, "bf16", 32, NAMES_0_15, "%16", "%17", "%18", SUMS16(0));

constexpr int GROUPS = 2;
constexpr int TILE = 64 * GROUPS;
constexpr int THREADS = 128 * GROUPS;
constexpr int WEIGHT_BYTES = TILE * 128;
constexpr int STAGE_BYTES = WEIGHT_BYTES + BN * 128;
// A row of sums; the padding keeps the writers of a warp in different banks.
constexpr int SUMS_STRIDE = TILE + 4;
// Rows that a warp finishes at once.
constexpr int AT_ONCE = 2;
constexpr int CLUSTER_MOST = 8;

static_assert(STAGES * STAGE_BYTES >= BN * SUMS_STRIDE * 4, "sums take the place of the ring");

struct Barriers {
    unsigned long long full[STAGES];
    unsigned long long empty[STAGES];
};

__device__ __forceinline__ int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ int cluster_blocks() {
    int blocks;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    return blocks;
}

__device__ __forceinline__ float4 peer_floats(unsigned address) {
    float4 x;
    asm("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(address));
    return x;
}

// What a block multiplies: boxes `from` to `to` of a tile's inputs.
struct Job {
    const TensorMap* x;
    const TensorMap* weights;
    int output, token, from, to;
};

__device__ __forceinline__ void fetch_weights(const Job& job, unsigned stages, Barriers* barriers, int k, int stage) {
    const unsigned full = shared_address(&barriers->full[stage]);
    barrier_arrive_expecting(full, STAGE_BYTES);
    box_load(stages + stage * STAGE_BYTES, job.weights, k * BOX, job.output, full);
}

__device__ __forceinline__ void fetch_rows(const Job& job, unsigned stages, Barriers* barriers, int k, int stage) {
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
    // All products of both groups have read the ring.
    __syncthreads();
    const int output = group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int eight = 0; eight < BN / 8; ++eight) {
        float* to = left + (eight * 8 + lane % 4 * 2) * SUMS_STRIDE + output;
        to[0] = sums[4 * eight];
        to[SUMS_STRIDE] = sums[4 * eight + 1];
        to[8] = sums[4 * eight + 2];
        to[SUMS_STRIDE + 8] = sums[4 * eight + 3];
    }
}

__device__ __forceinline__ float4 floats_of(const float* values, int at, int count) {
    if (count >= 4) return *reinterpret_cast<const float4*>(values + at);
    return make_float4(count > 0 ? values[at] : 0.0f, count > 1 ? values[at + 1] : 0.0f, count > 2 ? values[at + 2] : 0.0f, 0.0f);
}

__device__ __forceinline__ void put_floats(float* values, float4 x, int count) {
    if (count >= 4) {
        *reinterpret_cast<float4*>(values) = x;
        return;
    }
    if (count > 0) values[0] = x.x;
    if (count > 1) values[1] = x.y;
    if (count > 2) values[2] = x.z;
}

__device__ __forceinline__ void put_numbers(unsigned short* numbers, float4 x, int count) {
    if (count >= 4) {
        *reinterpret_cast<uint2*>(numbers) = make_uint2(pack<bf16>(x.x, x.y), pack<bf16>(x.z, x.w));
        return;
    }
    if (count > 0) numbers[0] = to_bf16(x.x);
    if (count > 1) numbers[1] = to_bf16(x.y);
    if (count > 2) numbers[2] = to_bf16(x.z);
}

__device__ __forceinline__ float4 scaled(float4 x, float scale, float4 bias) {
    return make_float4(x.x * scale + bias.x, x.y * scale + bias.y, x.z * scale + bias.z, x.w * scale + bias.w);
}

__device__ __forceinline__ float capped(float x, float cap) { return cap != 0.0f ? cap * tanhf(x / cap) : x; }

// The sums of all blocks at a place.
__device__ __forceinline__ float4 gathered(unsigned left, int at, int blocks) {
    if (blocks == 1) return peer_floats(left + at * 4);
    float4 all[CLUSTER_MOST];
#pragma unroll
    for (int block = 0; block < CLUSTER_MOST; ++block)
        all[block] = block < blocks ? peer_floats(peer_address(left, block) + at * 4) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 x = all[0];
#pragma unroll
    for (int block = 1; block < CLUSTER_MOST; ++block)
        x = make_float4(x.x + all[block].x, x.y + all[block].y, x.z + all[block].z, x.w + all[block].w);
    return x;
}

// Adds the sums of the cluster's blocks and finishes this block's share of the rows: a warp a row and a lane four outputs, or half a warp
// where each output has a gate.
__device__ void finish_rows(const Finish& finish, const Job& job, unsigned left, const float* scales, int part) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = cluster_blocks(), rank = cluster_rank();
    const bool is_gated = finish.kind == FINISH_GATED;
    // Gates lie 8 outputs before what they gate.
    const int own = is_gated ? lane % 16 / 2 * 16 + lane % 2 * 4 : lane * 4;
    const int output = job.output + own, count = min(finish.outputs - output, 4);
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float4 bias = finish.bias ? floats_of(finish.bias, output, count) : none;
    const float4 up_bias = finish.bias && is_gated ? floats_of(finish.bias, output + 8, count) : none;
    const float4 gain = finish.gain ? floats_of(finish.gain, output, count) : none;
    const bool is_even = finish.out_stride % 4 == 0;
    const int at_once = is_gated ? 2 : 1, within = is_gated ? lane / 16 : 0, step = 8 * blocks;
    const int end = min(BN, finish.tokens - job.token);
    for (int first = rank * 8 + warp; first * at_once < end; first += step * AT_ONCE) {
        float4 hidden[AT_ONCE], x[AT_ONCE], up[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int row = (first + i * step) * at_once + within;
            hidden[i] = none;
            if (finish.kind == FINISH_ADD && row < end)
                hidden[i] = floats_of(static_cast<const float*>(finish.out) + size_t(job.token + row) * finish.out_stride, output, count);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int row = (first + i * step) * at_once + within;
            x[i] = up[i] = none;
            if (row < end) {
                x[i] = gathered(left, row * SUMS_STRIDE + own, blocks);
                if (is_gated) up[i] = gathered(left, row * SUMS_STRIDE + own + 8, blocks);
            }
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int row = (first + i * step) * at_once + within, token = job.token + row;
            // With gates the lanes of a warp have different rows, and exchange nothing.
            if (row >= end) break;
            float4 y = scaled(x[i], scales[row], bias);
            const size_t at = size_t(token) * finish.out_stride;
            if (finish.kind == FINISH_ADD) {
                y = make_float4(y.x + hidden[i].x, y.y + hidden[i].y, y.z + hidden[i].z, y.w + hidden[i].w);
                put_floats(static_cast<float*>(finish.out) + at + output, y, count);
                if (finish.gain) {
                    put_numbers(finish.shadow + size_t(token) * finish.shadow_stride + output,
                                make_float4(y.x * gain.x, y.y * gain.y, y.z * gain.z, y.w * gain.w), count);
                    float square = count > 0 ? y.x * y.x : 0.0f;
                    if (count > 1) square += y.y * y.y;
                    if (count > 2) square += y.z * y.z;
                    if (count > 3) square += y.w * y.w;
                    square = warp_sum(square);
                    if (lane == 0) finish.out_parts[size_t(token) * finish.out_part_count + part] = square;
                }
            } else if (is_gated) {
                const float4 z = scaled(up[i], scales[row], up_bias);
                const int activation = finish.activation;
                const float4 gated = make_float4(gate_function(y.x, activation) * z.x, gate_function(y.y, activation) * z.y,
                                                 gate_function(y.z, activation) * z.z, gate_function(y.w, activation) * z.w);
                put_numbers(static_cast<unsigned short*>(finish.out) + at + (output >> 4) * 8 + (output & 7), gated, count);
            } else if (finish.kind == FINISH_ROWS) {
                put_numbers(static_cast<unsigned short*>(finish.out) + at + output, y, count);
            } else {
                const float cap = finish.cap;
                y = make_float4(capped(y.x, cap), capped(y.y, cap), capped(y.z, cap), capped(y.w, cap));
                float* to = static_cast<float*>(finish.out) + at + output;
                if (is_even || count < 4) {
                    put_floats(to, y, count);
                } else {
                    to[0] = y.x, to[1] = y.y, to[2] = y.z, to[3] = y.w;
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    decoder_tile(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weights, const __grid_constant__ Finish finish,
                 int token_tiles, int boxes) {
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ Barriers barriers;
    __shared__ float scales[BN];
    const int blocks = cluster_blocks(), rank = cluster_rank();
    // The rows of a tile of outputs are done side by side: weights are read once.
    const int tile = blockIdx.x / blocks, output_tile = tile / token_tiles;
    const Job job{&x, &weights, output_tile * TILE, tile % token_tiles * BN, boxes * rank / blocks, boxes * (rank + 1) / blocks};
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(shared_address(&barriers.full[i]), 1);
            barrier_init(shared_address(&barriers.empty[i]), GROUPS * 4);
        }
        barrier_init_done();
    }
    __syncthreads();
    let_next_begin();
    const unsigned stages = shared_address(memory);
    const int early = min(job.to - job.from, STAGES);
    if (threadIdx.x == 0)
        for (int i = 0; i < early; ++i) fetch_weights(job, stages, &barriers, job.from + i, i);
    wait_for_previous();
    if (threadIdx.x == 0)
        for (int i = 0; i < early; ++i) fetch_rows(job, stages, &barriers, job.from + i, i);
    if (threadIdx.x < BN) {
        const int token = job.token + static_cast<int>(threadIdx.x);
        scales[threadIdx.x] = token < finish.tokens ? row_scale_alone(finish, token) : 0.0f;
    }
    __syncwarp();
    multiply(job, stages, &barriers, reinterpret_cast<float*>(memory));
    if (blocks > 1) {
        cluster_sync();
    } else {
        __syncthreads();
    }
    finish_rows(finish, job, stages, scales, output_tile);
    // No block ends while another reads its sums.
    if (blocks > 1) cluster_sync();
}
