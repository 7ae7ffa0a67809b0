// Products of activations with weights on Hopper, with bias, residual and layer norm in the same pass:
// hidden = norm(hidden + x * weights + bias). Refuses nothing at run time: its caller sees to the shapes. For sm_90a alone.
//
// One warpgroup fetches boxes into a ring of stages, the others multiply, each 64 rows of a tile. After the last product the
// ring's next stages bring the residual in and carry the results out. The blocks of a cluster share the rows of their tiles
// and tell each other what the norm needs.
//
// NUMBER     bf16 or f16
// BN         columns of a tile: 64, 128, 192, 256 or 384
// GROUPS     warpgroups that multiply: a tile has 64 * GROUPS rows
// STAGES     length of the ring
// CLUSTER    blocks that share a row: the matrix has BN * CLUSTER columns
#include "numbers.cuh"
#include "hopper_tile.cuh"
#include "order.cuh"

constexpr int TILE_ROWS = BOX * GROUPS;
constexpr int PIECE = BN > 256 ? BN / 2 : BN;
constexpr int PIECES = BN / PIECE;
constexpr int WEIGHT_BOXES = BN / BOX;
constexpr int STAGE_BOXES = GROUPS + WEIGHT_BOXES;
// Slices are 64 columns of a tile: a box for each warpgroup.
constexpr int SLICES = BN / BOX;
constexpr int SLICES_A_STAGE = STAGE_BOXES / GROUPS;
constexpr int OUT_STAGES = (SLICES + SLICES_A_STAGE - 1) / SLICES_A_STAGE;
static_assert(OUT_STAGES < STAGES, "a tile's results fit into the ring");

struct Barriers {
    unsigned long long full[STAGES];
    unsigned long long empty[STAGES];
    unsigned long long stats[2];
};

// Mean and sum of squared differences of each row's part, from each block of the cluster.
struct Stats {
    float2 parts[2][CLUSTER][TILE_ROWS];
};

struct Job {
    const TensorMap* x;
    const TensorMap* weights;
    const TensorMap* hidden;
    const float* bias;
    const float* gain;
    const float* shift;
    float epsilon;
    int row_tiles;
    int depth;
};

// The tiles of this block, in the order of time.
struct Tiles {
    int tile, step, count, rank;

    __device__ __forceinline__ explicit Tiles(const Job& job) {
        rank = blockIdx.x % CLUSTER;
        tile = blockIdx.x / CLUSTER;
        step = gridDim.x / CLUSTER;
        count = job.row_tiles;
    }

    __device__ __forceinline__ bool more() const { return tile < count; }
    __device__ __forceinline__ void next() { tile += step; }
    __device__ __forceinline__ int row() const { return tile * TILE_ROWS; }
    __device__ __forceinline__ int column() const { return rank * BN; }
};

__device__ __forceinline__ unsigned stage_at(unsigned boxes, int stage) { return boxes + stage * STAGE_BOXES * BOX_BYTES; }

__device__ __forceinline__ void fetch_weights(const Job& job, unsigned at, int k, int column, unsigned full) {
#pragma unroll
    for (int i = 0; i < WEIGHT_BOXES; ++i) box_load(at + (GROUPS + i) * BOX_BYTES, job.weights, k * BOX, column + i * BOX, full);
}

__device__ void fetch(const Job& job, unsigned boxes, Barriers* barriers) {
    Ring<STAGES> ring;
    Tiles tiles(job);
    // Weights do not come from the kernel ahead: the first of them are fetched while that one still runs.
    const int early = !tiles.more() ? 0 : job.depth < STAGES ? job.depth : STAGES;
    for (int k = 0; k < early; ++k) {
        const unsigned full = shared_address(&barriers->full[k]);
        barrier_arrive_expecting(full, STAGE_BOXES * BOX_BYTES);
        fetch_weights(job, stage_at(boxes, k), k, tiles.column(), full);
    }
    wait_for_previous();
    for (bool first = true; tiles.more(); tiles.next(), first = false) {
        for (int k = 0; k < job.depth; ++k, ring.advance()) {
            const unsigned full = shared_address(&barriers->full[ring.stage]), at = stage_at(boxes, ring.stage);
            if (!first || k >= early) {
                barrier_wait(shared_address(&barriers->empty[ring.stage]), ring.parity ^ 1);
                barrier_arrive_expecting(full, STAGE_BOXES * BOX_BYTES);
                fetch_weights(job, at, k, tiles.column(), full);
            }
#pragma unroll
            for (int i = 0; i < GROUPS; ++i) box_load(at + i * BOX_BYTES, job.x, k * BOX, tiles.row() + i * BOX, full);
        }
#pragma unroll
        for (int stage = 0; stage < OUT_STAGES; ++stage, ring.advance()) {
            const unsigned full = shared_address(&barriers->full[ring.stage]), at = stage_at(boxes, ring.stage);
            const int slice = stage * SLICES_A_STAGE;
            const int slices = SLICES - slice < SLICES_A_STAGE ? SLICES - slice : SLICES_A_STAGE;
            barrier_wait(shared_address(&barriers->empty[ring.stage]), ring.parity ^ 1);
            barrier_arrive_expecting(full, slices * GROUPS * BOX_BYTES);
            for (int i = 0; i < slices * GROUPS; ++i)
                box_load(at + i * BOX_BYTES, job.hidden, tiles.column() + (slice + i / GROUPS) * BOX, tiles.row() + i % GROUPS * BOX, full);
        }
    }
}

// The sums of a thread: two rows, 8 apart, and of each 8 columns a pair.
struct Sums {
    float values[PIECES][PIECE / 2];

    // The first of a row's two neighbouring sums in a group of 8 columns.
    __device__ __forceinline__ float& at(int eight, int low) {
        return values[eight * 8 / PIECE][eight * 8 % PIECE / 2 + 2 * low];
    }
    __device__ __forceinline__ float& after(int eight, int low) {
        return values[eight * 8 / PIECE][eight * 8 % PIECE / 2 + 2 * low + 1];
    }
};

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// What a row needs to be normalised: subtract the mean, multiply by the reciprocal deviation.
struct RowNorm {
    float mean, scale;
};

// Joins the parts of the rows that the other blocks of the cluster hold.
__device__ __forceinline__ void join(RowNorm (&rows)[2], float (&squares)[2], const Place& place, Stats* stats, Barriers* barriers,
                                     unsigned turn) {
    const unsigned slot = turn & 1, barrier = shared_address(&barriers->stats[slot]);
    if (threadIdx.x == 0) barrier_arrive_expecting(barrier, CLUSTER * TILE_ROWS * sizeof(float2));
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#pragma unroll
    for (int low = 0; low < 2; ++low) {
        const int row = place.group * BOX + place.row + 8 * low;
        const unsigned to = shared_address(&stats->parts[slot][rank][row]);
        // The four threads of a row serve the peers in turn.
        for (int peer = place.lane & 3; peer < CLUSTER; peer += 4)
            peer_store(peer_address(to, peer), rows[low].mean, squares[low], peer_address(barrier, peer));
    }
    barrier_wait(barrier, turn >> 1 & 1);
#pragma unroll
    for (int low = 0; low < 2; ++low) {
        const int row = place.group * BOX + place.row + 8 * low;
        float mean = 0.0f, sum = 0.0f;
#pragma unroll
        for (int peer = 0; peer < CLUSTER; ++peer) mean += stats->parts[slot][peer][row].x;
        mean *= 1.0f / CLUSTER;
#pragma unroll
        for (int peer = 0; peer < CLUSTER; ++peer) {
            const float2 part = stats->parts[slot][peer][row];
            sum += part.y + (part.x - mean) * (part.x - mean) * BN;
        }
        rows[low].mean = mean;
        squares[low] = sum;
    }
}

// Adds bias and residual to the sums and returns how their rows are normalised. The residual lies in the ring from `ring` on.
__device__ __forceinline__ void add_residual(const Job& job, Sums& sums, const Place& place, int column, unsigned boxes, Ring<STAGES> ring,
                                             Barriers* barriers, float (&totals)[2]) {
#pragma unroll
    for (int stage = 0; stage < OUT_STAGES; ++stage, ring.advance()) {
        barrier_wait(shared_address(&barriers->full[ring.stage]), ring.parity);
#pragma unroll
        for (int i = 0; i < SLICES_A_STAGE; ++i) {
            const int slice = stage * SLICES_A_STAGE + i;
            if (slice >= SLICES) break;
            const unsigned box = stage_at(boxes, ring.stage) + (i * GROUPS + place.group) * BOX_BYTES;
#pragma unroll
            for (int eight = 0; eight < 8; ++eight) {
                const float2 bias = pair_at(job.bias + column + slice * BOX + place.column(eight));
#pragma unroll
                for (int low = 0; low < 2; ++low) {
                    float first, second;
                    unpack(read_word(place.word(box, eight, low)), first, second, NUMBER{});
                    float &a = sums.at(slice * 8 + eight, low), &b = sums.after(slice * 8 + eight, low);
                    a += bias.x + first;
                    b += bias.y + second;
                    totals[low] += a + b;
                }
            }
        }
    }
}

__device__ __forceinline__ void norm_rows(const Job& job, Sums& sums, const Place& place, Stats* stats, Barriers* barriers, unsigned turn,
                                          const float (&totals)[2], RowNorm (&rows)[2]) {
    float squares[2];
#pragma unroll
    for (int low = 0; low < 2; ++low) {
        const float mean = quad_sum(totals[low]) * (1.0f / BN);
        float sum = 0.0f;
#pragma unroll
        for (int eight = 0; eight < BN / 8; ++eight) {
            const float a = sums.at(eight, low) - mean, b = sums.after(eight, low) - mean;
            sum += a * a + b * b;
        }
        rows[low].mean = mean;
        squares[low] = quad_sum(sum);
    }
#if CLUSTER > 1
    join(rows, squares, place, stats, barriers, turn);
#endif
#pragma unroll
    for (int low = 0; low < 2; ++low) rows[low].scale = rsqrtf(squares[low] * (1.0f / (BN * CLUSTER)) + job.epsilon);
}

// Writes a tile's results into the ring's next stages and from there into the matrix.
__device__ __forceinline__ void write_out(const Job& job, Sums& sums, const Place& place, int row, int column, unsigned boxes, Ring<STAGES>& ring,
                                          Barriers* barriers, const RowNorm (&rows)[2]) {
#pragma unroll
    for (int stage = 0; stage < OUT_STAGES; ++stage, ring.advance()) {
#pragma unroll
        for (int i = 0; i < SLICES_A_STAGE; ++i) {
            const int slice = stage * SLICES_A_STAGE + i;
            if (slice >= SLICES) break;
            const unsigned box = stage_at(boxes, ring.stage) + (i * GROUPS + place.group) * BOX_BYTES;
#pragma unroll
            for (int eight = 0; eight < 8; ++eight) {
                const int at = column + slice * BOX + place.column(eight);
                const float2 gain = pair_at(job.gain + at), shift = pair_at(job.shift + at);
#pragma unroll
                for (int low = 0; low < 2; ++low) {
                    const int e = slice * 8 + eight;
                    const float first = (sums.at(e, low) - rows[low].mean) * rows[low].scale * gain.x + shift.x;
                    const float second = (sums.after(e, low) - rows[low].mean) * rows[low].scale * gain.y + shift.y;
                    write_word(place.word(box, eight, low), pack<NUMBER>(first, second));
                }
            }
            fence_for_copies();
            place.sync();
            if (place.leads()) {
                box_store(job.hidden, column + slice * BOX, row + place.group * BOX, box);
                stores_commit();
            }
        }
        if (place.leads()) stores_wait_read<0>();
        if (place.lane == 0) barrier_arrive(shared_address(&barriers->empty[ring.stage]));
    }
}

__device__ void multiply(const Job& job, unsigned boxes, Barriers* barriers, Stats* stats) {
    const Place place;
    Ring<STAGES> ring;
    unsigned turn = 0;
    for (Tiles tiles(job); tiles.more(); tiles.next(), ++turn) {
        Sums sums;
        int previous = 0;
        for (int k = 0; k < job.depth; ++k, ring.advance()) {
            barrier_wait(shared_address(&barriers->full[ring.stage]), ring.parity);
            const unsigned at = stage_at(boxes, ring.stage);
            const unsigned long long x = matrix_at(at + place.group * BOX_BYTES);
            const unsigned long long weights = matrix_at(at + GROUPS * BOX_BYTES);
            products_begin();
#pragma unroll
            for (int step = 0; step < BOX / 16; ++step)
#pragma unroll
                for (int piece = 0; piece < PIECES; ++piece)
                    Products<NUMBER, PIECE>::add(sums.values[piece], x + 2 * step, weights + 2 * step + piece * (PIECE * 128 / 16),
                                                 k + step);
            products_commit();
            // The stage before is free once its products are done; this one's run on meanwhile.
            if (k > 0) {
                products_wait<1>();
                if (place.lane == 0) barrier_arrive(shared_address(&barriers->empty[previous]));
            }
            previous = ring.stage;
        }
        products_wait<0>();
        if (place.lane == 0) barrier_arrive(shared_address(&barriers->empty[previous]));

        RowNorm rows[2] = {};
        float totals[2] = {};
        add_residual(job, sums, place, tiles.column(), boxes, ring, barriers, totals);
        norm_rows(job, sums, place, stats, barriers, turn, totals, rows);
        write_out(job, sums, place, tiles.row(), tiles.column(), boxes, ring, barriers, rows);
    }
}

extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1)
    gemm_norm_wgmma(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weights,
                    const __grid_constant__ TensorMap hidden,
                    const float* __restrict__ bias, const float* __restrict__ gain, const float* __restrict__ shift, float epsilon,
                    int row_tiles, int depth) {
    extern __shared__ __align__(1024) unsigned char ring_memory[];
    __shared__ Barriers barriers;
#if CLUSTER > 1
    __shared__ Stats stats_memory;
    Stats* const stats = &stats_memory;
#else
    Stats* const stats = nullptr;
#endif
    const Job job{&x, &weights, &hidden, bias, gain, shift, epsilon, row_tiles, depth};
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(shared_address(&barriers.full[i]), 1);
            barrier_init(shared_address(&barriers.empty[i]), 4 * GROUPS);
        }
        for (int i = 0; i < 2; ++i) barrier_init(shared_address(&barriers.stats[i]), 1);
        barrier_init_done();
    }
    __syncthreads();
#if CLUSTER > 1
    cluster_sync();
#endif
    let_next_begin();
    const unsigned boxes = shared_address(ring_memory);
    if (threadIdx.x >= 128 * GROUPS) {
        if (GROUPS > 1) registers_give_back<24>();
        if (threadIdx.x == 128 * GROUPS) fetch(job, boxes, &barriers);
    } else {
        if (GROUPS > 1) registers_take<240>();
        multiply(job, boxes, &barriers, stats);
    }
}
