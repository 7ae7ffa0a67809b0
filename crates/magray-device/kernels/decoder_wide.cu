// Products of many rows with weights on Hopper: tiles of 64 GROUPS outputs by BN rows. One warpgroup fetches, the others multiply 64 outputs
// each, tile after tile. The two blocks of a cluster have neighbouring outputs of the same rows, and fetch half of the rows for each other.
// Refuses nothing at run time: its caller sees to the shapes. Compiled for sm_90a alone.
//
// GROUPS  warpgroups that multiply: 2 or 3
// BN      rows of a tile: 128 or 256
// STAGES  length of the ring
#include "decoder_rows.cuh"
#include "hopper_tile.cuh"
#include "order.cuh"

constexpr int PEERS = 2;
constexpr int TILE = 64 * GROUPS;
constexpr int WEIGHT_BYTES = TILE * 128;
constexpr int SHARE_BYTES = BN / PEERS * 128;
constexpr int STAGE_BYTES = WEIGHT_BYTES + BN * 128;
// Where a group turns its results into rows.
constexpr int ROOM_BYTES = BN * 64;
// Warps that scale rows while others multiply.
constexpr int SCALERS = 3;

struct Barriers {
    unsigned long long full[STAGES];
    // All groups of both blocks have multiplied a stage.
    unsigned long long empty[STAGES];
    // The scales of a tile are there, and are read.
    unsigned long long scaled[2];
    unsigned long long unscaled[2];
};

struct Job {
    const TensorMap* x;
    const TensorMap* weights;
    // What is added to, and in how many boxes of 32 outputs; none where nothing is.
    const TensorMap* hidden;
    int hidden_boxes;
    int output_tiles, token_tiles, boxes;
};

__device__ __forceinline__ int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// A box into the shared memory of both blocks, at the same place; the barriers of both count its bytes.
__device__ __forceinline__ void box_load_for_both(unsigned to, const TensorMap* map, int column, int row, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(static_cast<unsigned short>(3))
        : "memory");
}

__device__ __forceinline__ void barrier_arrive_at_peer(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// The tiles of this block, in the order of time. The rows of an output are done side by side: weights are read once.
struct Tiles {
    int tile, count, token_tiles;

    __device__ __forceinline__ explicit Tiles(const Job& job)
        : tile(blockIdx.x / PEERS), count((job.output_tiles + PEERS - 1) / PEERS * job.token_tiles), token_tiles(job.token_tiles) {}

    __device__ __forceinline__ bool more() const { return tile < count; }
    __device__ __forceinline__ void next() { tile += gridDim.x / PEERS; }
    __device__ __forceinline__ int output() const { return (tile / token_tiles * PEERS + cluster_rank()) * TILE; }
    __device__ __forceinline__ int token() const { return tile % token_tiles * BN; }
};

// By one thread.
__device__ void fetch(const Job& job, unsigned stages, Barriers* barriers) {
    const int rank = cluster_rank();
    Ring<STAGES> ring;
    Tiles tiles(job);
    // Weights do not come from the kernel ahead: the first of them are fetched while that one still runs.
    const int early = min(job.boxes, STAGES);
    for (int k = 0; k < early; ++k) {
        const unsigned full = shared_address(&barriers->full[k]);
        barrier_arrive_expecting(full, STAGE_BYTES);
        box_load(stages + k * STAGE_BYTES, job.weights, k * BOX, tiles.output(), full);
    }
    wait_for_previous();
    for (bool first = true; tiles.more(); tiles.next(), first = false) {
        for (int k = 0; k < job.boxes; ++k, ring.advance()) {
            const unsigned full = shared_address(&barriers->full[ring.stage]), at = stages + ring.stage * STAGE_BYTES;
            if (!first || k >= early) {
                barrier_wait(shared_address(&barriers->empty[ring.stage]), ring.parity ^ 1);
                barrier_arrive_expecting(full, STAGE_BYTES);
                box_load(at, job.weights, k * BOX, tiles.output(), full);
            }
            box_load_for_both(at + WEIGHT_BYTES + rank * SHARE_BYTES, job.x, k * BOX, tiles.token() + rank * (BN / PEERS), full);
        }
        for (int i = 0; i < job.hidden_boxes; ++i, ring.advance()) {
            const unsigned full = shared_address(&barriers->full[ring.stage]);
            barrier_wait(shared_address(&barriers->empty[ring.stage]), ring.parity ^ 1);
            barrier_arrive_expecting(full, BN * 128);
            box_load(stages + ring.stage * STAGE_BYTES, job.hidden, tiles.output() + 32 * i, tiles.token(), full);
        }
    }
}

// The sum of a row's parts, several of which are under way at once.
__device__ __forceinline__ float sum_of_parts(const float* parts, int count) {
    constexpr int AT_ONCE = 4;
    float sum = 0.0f;
    int part = 0;
    if (count % 4 == 0) {
        for (; part + 4 * AT_ONCE <= count; part += 4 * AT_ONCE) {
            float4 x[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) x[i] = *reinterpret_cast<const float4*>(parts + part + 4 * i);
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) sum += (x[i].x + x[i].y) + (x[i].z + x[i].w);
        }
    }
    for (; part < count; ++part) sum += parts[part];
    return sum;
}

// What the rows of each tile are multiplied with, by the warps beside the one that fetches: a row a thread.
__device__ void scale_rows(const Finish& finish, const Job& job, float (*scales)[BN], Barriers* barriers) {
    wait_for_previous();
    int at = 0;
    unsigned parity = 1;
    for (Tiles tiles(job); tiles.more(); tiles.next()) {
        barrier_wait(shared_address(&barriers->unscaled[at]), parity);
        for (int row = threadIdx.x % 128 - 32; row < BN; row += SCALERS * 32) {
            const int token = tiles.token() + row;
            const bool is_scaled = finish.parts && token < finish.tokens;
            const float square = is_scaled ? sum_of_parts(finish.parts + size_t(token) * finish.part_count, finish.part_count) : 0.0f;
            scales[at][row] = is_scaled ? rsqrtf(square * finish.inverse_inputs + finish.epsilon) : 1.0f;
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&barriers->scaled[at]));
        at ^= 1;
        if (at == 0) parity ^= 1;
    }
}

// Four matrices of 8 by 8 numbers, each written as its transpose: lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_turned(unsigned to, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// A group's results of a tile. A thread has of outputs `output` and 8 further on, of each 8 rows, two.
struct Results {
    const Finish& finish;
    const float* scales;
    unsigned room;
    // The group's first output and the tile's first row.
    int first_output, first_token;
    int lane, warp, group;

    __device__ __forceinline__ int output() const { return first_output + warp * 16 + lane / 4; }
    __device__ __forceinline__ void sync() const { group_barrier(1 + group); }

    // 8 numbers of a row out of the room.
    __device__ __forceinline__ void put(unsigned short* to, unsigned from, int count) const {
        uint4 x;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(from) : "memory");
        if (count >= 8) {
            *reinterpret_cast<uint4*>(to) = x;
            return;
        }
        const unsigned words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (i < count) to[i] = static_cast<unsigned short>(words[i / 2] >> i % 2 * 16);
    }

    // Rows of 64 numbers, half of the tile's at a time. Pieces of 16 bytes change places from row to row.
    __device__ __forceinline__ void put_rows(const float (&sums)[BN / 2], unsigned short* out, int stride) const {
        const int thread = threadIdx.x % 128;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (half) sync();
#pragma unroll
            for (int e = 0; e < BN / 16; e += 2) {
                const float* four = sums + 4 * (half * BN / 16 + e);
                const int row = 8 * (e + lane / 16) + lane % 8, piece = 2 * warp + lane / 8 % 2;
                store_turned(room + row * 128 + ((piece ^ (row & 7)) << 4), pack<bf16>(four[0], four[1]), pack<bf16>(four[2], four[3]),
                             pack<bf16>(four[4], four[5]), pack<bf16>(four[6], four[7]));
            }
            sync();
#pragma unroll 4
            for (int i = thread; i < BN / 2 * 8; i += 128) {
                const int row = i / 8, piece = i % 8, token = first_token + half * BN / 2 + row, count = finish.outputs - (first_output + 8 * piece);
                if (token < finish.tokens) put(out + size_t(token) * stride + first_output + 8 * piece, room + row * 128 + ((piece ^ (row & 7)) << 4), count);
            }
        }
        sync();
    }

    // Rows of 32 numbers.
    __device__ __forceinline__ void put_gated(const float (&sums)[BN / 2]) const {
        const int thread = threadIdx.x % 128, activation = finish.activation;
        const float gate_bias = bias(0), bias_8 = bias(8);
#pragma unroll
        for (int e = 0; e < BN / 8; e += 4) {
            unsigned pairs[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float* four = sums + 4 * (e + i);
                const float2 scale = pair_at(scales + 8 * (e + i) + lane % 4 * 2);
                pairs[i] = pack<bf16>(gate_function(fmaf(four[0], scale.x, gate_bias), activation) * fmaf(four[2], scale.x, bias_8),
                                      gate_function(fmaf(four[1], scale.y, gate_bias), activation) * fmaf(four[3], scale.y, bias_8));
            }
            const int row = 8 * (e + lane / 8) + lane % 8;
            store_turned(room + row * 64 + ((warp ^ (row >> 1 & 3)) << 4), pairs[0], pairs[1], pairs[2], pairs[3]);
        }
        sync();
#pragma unroll 4
        for (int i = thread; i < BN * 4; i += 128) {
            const int row = i / 4, piece = i % 4, token = first_token + row, at = first_output / 2 + 8 * piece, count = finish.outputs / 2 - at;
            if (token < finish.tokens)
                put(static_cast<unsigned short*>(finish.out) + size_t(token) * finish.out_stride + at, room + row * 64 + ((piece ^ (row >> 1 & 3)) << 4), count);
        }
        sync();
    }

    __device__ __forceinline__ float bias(int further) const {
        return finish.bias && output() + further < finish.outputs ? finish.bias[output() + further] : 0.0f;
    }

    __device__ __forceinline__ void scale(float (&sums)[BN / 2]) const {
        const float upper = bias(0), lower = bias(8);
#pragma unroll
        for (int e = 0; e < BN / 8; ++e) {
            const float2 scale = pair_at(scales + 8 * e + lane % 4 * 2);
            sums[4 * e] = fmaf(sums[4 * e], scale.x, upper);
            sums[4 * e + 1] = fmaf(sums[4 * e + 1], scale.y, upper);
            sums[4 * e + 2] = fmaf(sums[4 * e + 2], scale.x, lower);
            sums[4 * e + 3] = fmaf(sums[4 * e + 3], scale.y, lower);
        }
    }

    // Floats of some rows, 64 each: all of the tile's in four turns. Which of them change places keeps the writers in different banks.
    __device__ __forceinline__ unsigned float_at(int row, int output) const { return room + (row * 64 + (output ^ (row >> 1 & 3) << 3)) * 4; }

    template <int TURN>
    __device__ __forceinline__ void leave_floats(const float (&sums)[BN / 2]) const {
#pragma unroll
        for (int e = 0; e < BN / 32; ++e)
#pragma unroll
            for (int c = 0; c < 4; ++c)
                write_word(float_at(8 * e + lane % 4 * 2 + c % 2, warp * 16 + lane / 4 + c / 2 * 8), __float_as_uint(sums[4 * (TURN * BN / 32 + e) + c]));
        sync();
    }

    // What a thread has of a turn's rows: four outputs of each, by half a warp a row.
    static constexpr int EACH = BN / 4 / 8;

    __device__ __forceinline__ int row_of(int i) const { return 8 * i + warp * 2 + lane / 16; }
    __device__ __forceinline__ int own_output() const { return first_output + lane % 16 * 4; }

    __device__ __forceinline__ float4 left_floats(int i) const {
        float4 x;
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(float_at(row_of(i), lane % 16 * 4)) : "memory");
        return x;
    }

    // Adds what the residual stream has: a box of 32 outputs by all rows.
    __device__ __forceinline__ void add_hidden(float (&sums)[BN / 2], unsigned box) const {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const int row = lane % 4 * 2 + c % 2, output = warp % 2 * 16 + lane / 4 + c / 2 * 8;
            const unsigned at = box + row * 128 + ((output / 4 ^ row) << 4) + output % 4 * 4;
#pragma unroll
            for (int e = 0; e < BN / 8; ++e) sums[4 * e + c] += __uint_as_float(read_word(at + e * 1024));
        }
    }

    // Writes the residual stream, which the sums are now, and the same times the next norm's gains, and sums of its squares.
    template <int TURN>
    __device__ __forceinline__ void put_hidden_of(const float (&sums)[BN / 2], float4 gain) const {
        const int count = finish.outputs - own_output(), first = first_token + TURN * BN / 4;
        leave_floats<TURN>(sums);
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int token = first + row_of(i);
            const float4 y = left_floats(i);
            float square = count > 0 ? y.x * y.x : 0.0f;
            if (count > 1) square += y.y * y.y;
            if (count > 2) square += y.z * y.z;
            if (count > 3) square += y.w * y.w;
#pragma unroll
            for (int apart = 8; apart > 0; apart /= 2) square += __shfl_xor_sync(WHOLE_WARP, square, apart);
            if (token >= finish.tokens) continue;
            put_floats(static_cast<float*>(finish.out) + size_t(token) * finish.out_stride + own_output(), y, count);
            if (!finish.gain) continue;
            put_numbers(finish.shadow + size_t(token) * finish.shadow_stride + own_output(),
                        make_float4(y.x * gain.x, y.y * gain.y, y.z * gain.z, y.w * gain.w), count);
            if (lane % 16 == 0 && first_output < finish.outputs) finish.out_parts[size_t(token) * finish.out_part_count + first_output / 64] = square;
        }
        sync();
    }

    __device__ __forceinline__ void put_hidden(const float (&sums)[BN / 2]) const {
        const float4 gain = finish.gain ? floats_of(finish.gain, own_output(), finish.outputs - own_output()) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        put_hidden_of<0>(sums, gain);
        put_hidden_of<1>(sums, gain);
        put_hidden_of<2>(sums, gain);
        put_hidden_of<3>(sums, gain);
    }

    template <int TURN>
    __device__ __forceinline__ void put_floats_of(const float (&sums)[BN / 2]) const {
        leave_floats<TURN>(sums);
        const int count = finish.outputs - own_output();
        const float cap = finish.cap;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int token = first_token + TURN * BN / 4 + row_of(i);
            const float4 x = left_floats(i);
            if (token >= finish.tokens) continue;
            float* to = static_cast<float*>(finish.out) + size_t(token) * finish.out_stride + own_output();
            const float4 y = make_float4(capped(x.x, cap), capped(x.y, cap), capped(x.z, cap), capped(x.w, cap));
            if (finish.out_stride % 4 == 0 || count < 4) {
                put_floats(to, y, count);
            } else {
                to[0] = y.x, to[1] = y.y, to[2] = y.z, to[3] = y.w;
            }
        }
        sync();
    }
};

// Frees a stage that is full.
__device__ __forceinline__ void pass_by(Barriers* barriers, const Ring<STAGES>& ring, unsigned empty) {
    barrier_wait(shared_address(&barriers->full[ring.stage]), ring.parity);
    if (threadIdx.x % 32 < PEERS) barrier_arrive_at_peer(empty + ring.stage * 8);
}

__device__ void multiply(const Finish& finish, const Job& job, unsigned stages, float (*scales)[BN], Barriers* barriers) {
    const int lane = threadIdx.x % 32, group = threadIdx.x / 128;
    // One lane frees a stage for this block, another for its peer.
    const unsigned empty = peer_address(shared_address(&barriers->empty[0]), lane == 0 ? cluster_rank() : cluster_rank() ^ 1);
    Ring<STAGES> ring;
    int at = 0;
    unsigned parity = 0;
    for (Tiles tiles(job); tiles.more(); tiles.next()) {
        float sums[BN / 2];
        int previous = 0;
        for (int k = 0; k < job.boxes; ++k, ring.advance()) {
            barrier_wait(shared_address(&barriers->full[ring.stage]), ring.parity);
            const unsigned stage = stages + ring.stage * STAGE_BYTES;
            const unsigned long long weights = matrix_at(stage + group * BOX_BYTES), x = matrix_at(stage + WEIGHT_BYTES);
            products_begin();
#pragma unroll
            for (int step = 0; step < BOX / 16; ++step) Products<bf16, BN>::add(sums, weights + 2 * step, x + 2 * step, k + step);
            products_commit();
            // The stage before is free once its products are done; this one's run on meanwhile.
            if (k > 0) {
                products_wait<1>();
                if (lane < PEERS) barrier_arrive_at_peer(empty + previous * 8);
            }
            previous = ring.stage;
        }
        products_wait<0>();
        if (lane < PEERS) barrier_arrive_at_peer(empty + previous * 8);
        barrier_wait(shared_address(&barriers->scaled[at]), parity);
        const unsigned room = stages + STAGES * STAGE_BYTES + group * ROOM_BYTES;
        const Results results{finish, scales[at], room, tiles.output() + group * 64, tiles.token(), lane, static_cast<int>(threadIdx.x % 128 / 32), group};
        if (finish.kind == FINISH_GATED) {
            results.put_gated(sums);
        } else {
            results.scale(sums);
            if (finish.kind == FINISH_ROWS) {
                results.put_rows(sums, static_cast<unsigned short*>(finish.out), finish.out_stride);
            } else if (finish.kind == FINISH_ADD) {
                // A warp reads one of the boxes.
                const int own = group * 2 + results.warp / 2;
                for (int i = 0; i < own; ++i, ring.advance()) pass_by(barriers, ring, empty);
                barrier_wait(shared_address(&barriers->full[ring.stage]), ring.parity);
                results.add_hidden(sums, stages + ring.stage * STAGE_BYTES);
                __syncwarp();
                for (int i = own; i < job.hidden_boxes; ++i, ring.advance()) pass_by(barriers, ring, empty);
                results.put_hidden(sums);
            } else {
                results.put_floats_of<0>(sums);
                results.put_floats_of<1>(sums);
                results.put_floats_of<2>(sums);
                results.put_floats_of<3>(sums);
            }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&barriers->unscaled[at]));
        at ^= 1;
        if (at == 0) parity ^= 1;
    }
}

extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1)
    decoder_wide(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap hidden,
                 const __grid_constant__ Finish finish, int output_tiles, int token_tiles, int boxes) {
    // The ring, then the room of each group.
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ Barriers barriers;
    __shared__ __align__(8) float scales[2][BN];
    const Job job{&x, &weights, &hidden, finish.kind == FINISH_ADD ? TILE / 32 : 0, output_tiles, token_tiles, boxes};
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(shared_address(&barriers.full[i]), 1);
            barrier_init(shared_address(&barriers.empty[i]), PEERS * GROUPS * 4);
        }
        for (int i = 0; i < 2; ++i) {
            barrier_init(shared_address(&barriers.scaled[i]), SCALERS);
            barrier_init(shared_address(&barriers.unscaled[i]), GROUPS * 4);
        }
        barrier_init_done();
    }
    cluster_sync();
    let_next_begin();
    const unsigned stages = shared_address(memory);
    if (threadIdx.x >= 128 * GROUPS) {
        registers_give_back<GROUPS == 2 ? 40 : 32>();
        if (threadIdx.x >= 128 * GROUPS + 32) {
            scale_rows(finish, job, scales, &barriers);
        } else if (threadIdx.x == 128 * GROUPS) {
            fetch(job, stages, &barriers);
        }
        __syncwarp();
    } else {
        registers_take<GROUPS == 2 ? 232 : 160>();
        multiply(finish, job, stages, scales, &barriers);
    }
    // No block ends while the other frees stages of it, or fetches for it.
    cluster_sync();
}
