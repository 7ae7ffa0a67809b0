// A tile of 128 outputs by BN rows on Hopper, the weights being the tensor cores' tall side: which part a block has, and how the blocks of
// a cluster, which divide the inputs, add their sums through shared memory and finish the rows. Knows no form of weights.
//
// BN      rows of a tile
// STAGES  length of the ring
#pragma once

#include "decoder_rows.cuh"
#include "hopper.cuh"
#include "order.cuh"

constexpr int GROUPS = 2;
constexpr int TILE = 64 * GROUPS;
constexpr int THREADS = 128 * GROUPS;
// A row of sums; the padding keeps the writers of a warp in different banks.
constexpr int SUMS_STRIDE = TILE + 4;
// Rows that a warp finishes at once.
constexpr int AT_ONCE = 2;
constexpr int CLUSTER_MOST = 8;

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

// What a block multiplies: pieces `from` to `to` of a tile's inputs.
struct Job {
    const TensorMap* x;
    const TensorMap* weights;
    int output, token, from, to;
};

// The rows of a tile of outputs are done side by side: weights are read once.
__device__ __forceinline__ Job job_of(const TensorMap* x, const TensorMap* weights, int token_tiles, int pieces) {
    const int blocks = cluster_blocks(), rank = cluster_rank(), tile = blockIdx.x / blocks;
    return Job{x, weights, tile / token_tiles * TILE, tile % token_tiles * BN, pieces * rank / blocks, pieces * (rank + 1) / blocks};
}

// Leaves a thread's sums where the ring was, when all products have read it: a row for each token. `output` is the first of its two.
__device__ __forceinline__ void leave_sums(const float (&sums)[BN / 2], float* left, int output) {
    __syncthreads();
#pragma unroll
    for (int eight = 0; eight < BN / 8; ++eight) {
        float* to = left + (eight * 8 + threadIdx.x % 4 * 2) * SUMS_STRIDE + output;
        to[0] = sums[4 * eight];
        to[SUMS_STRIDE] = sums[4 * eight + 1];
        to[8] = sums[4 * eight + 2];
        to[SUMS_STRIDE + 8] = sums[4 * eight + 3];
    }
}

// A stage is full when its bytes have come, and empty when all warps have multiplied it.
__device__ __forceinline__ void begin_barriers(Barriers& barriers) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(shared_address(&barriers.full[i]), 1);
            barrier_init(shared_address(&barriers.empty[i]), GROUPS * 4);
        }
        barrier_init_done();
    }
    __syncthreads();
}

// What the rows' sums are multiplied with, a row a warp: all reads are under way before the first is waited for.
__device__ __forceinline__ void read_scales(const Finish& finish, const Job& job, float* scales) {
    constexpr int EACH = (BN + 7) / 8;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (!finish.parts) {
        for (int i = threadIdx.x; i < BN; i += THREADS) scales[i] = 1.0f;
        return;
    }
    float squares[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int token = job.token + warp + 8 * i;
        const bool is_there = token < finish.tokens && lane < finish.part_count;
        squares[i] = is_there ? finish.parts[size_t(token) * finish.part_count + lane] : 0.0f;
    }
    // In this order: a loop of its own for each row would be more code than a multiprocessor keeps.
#pragma unroll 1
    for (int part = lane + 32; part < finish.part_count; part += 32) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int token = job.token + warp + 8 * i;
            if (token < finish.tokens) squares[i] += finish.parts[size_t(token) * finish.part_count + part];
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const float square = warp_sum(squares[i]);
        if (lane == 0 && warp + 8 * i < BN) scales[warp + 8 * i] = rsqrtf(square * finish.inverse_inputs + finish.epsilon);
    }
    __syncwarp();
}

__device__ __forceinline__ float4 scaled(float4 x, float scale, float4 bias) {
    return make_float4(x.x * scale + bias.x, x.y * scale + bias.y, x.z * scale + bias.z, x.w * scale + bias.w);
}

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

// Waits for the sums of all blocks of the cluster and finishes this block's share.
__device__ __forceinline__ void finish_tile(const Finish& finish, const Job& job, unsigned left, const float* scales) {
    const bool is_alone = cluster_blocks() == 1;
    if (is_alone) {
        __syncthreads();
    } else {
        cluster_sync();
    }
    finish_rows(finish, job, left, scales, job.output / TILE);
    // No block ends while another reads its sums.
    if (!is_alone) cluster_sync();
}

// What a form of weights brings: one thread fetches the weights of a piece into a stage, or the rows; all multiply, and leave the sums where
// the ring was.
__device__ void fetch_weights(const Job& job, unsigned stages, Barriers* barriers, int piece, int stage);
__device__ void fetch_rows(const Job& job, unsigned stages, Barriers* barriers, int piece, int stage);
__device__ void multiply(const Job& job, unsigned stages, Barriers* barriers, float* left);

__device__ __forceinline__ void run_tile(const Job& job, const Finish& finish) {
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ Barriers barriers;
    __shared__ float scales[BN];
    begin_barriers(barriers);
    let_next_begin();
    const unsigned stages = shared_address(memory);
    const int early = min(job.to - job.from, STAGES);
    // Weights do not come from the kernel ahead: the first of them are fetched while that one still runs.
    if (threadIdx.x == 0)
        for (int i = 0; i < early; ++i) fetch_weights(job, stages, &barriers, job.from + i, i);
    wait_for_previous();
    if (threadIdx.x == 0)
        for (int i = 0; i < early; ++i) fetch_rows(job, stages, &barriers, job.from + i, i);
    read_scales(finish, job, scales);
    multiply(job, stages, &barriers, reinterpret_cast<float*>(memory));
    finish_tile(finish, job, stages, scales);
}
