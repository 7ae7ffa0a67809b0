// Products of activations with weights on Hopper, with bias and activation in the same pass: out = activation(x * weights + bias).
// Refuses nothing at run time: its caller sees to the shapes. Compiled for sm_90a alone.
//
// One warpgroup fetches boxes into a ring of stages, the others multiply. Each of them has tiles of its own: while one writes
// out its results, the other multiplies.
//
// NUMBER     bf16 or f16
// ROWS       rows of a tile in 64: 1 or 2
// BN         columns of a tile: 64, 128 or 192
// GROUPS     warpgroups that multiply: 1 or 2
// STAGES     length of the ring
// ACTIVATION what follows the bias
#include "numbers.cuh"
#include "activation.cuh"
#include "hopper_tile.cuh"
#include "order.cuh"

constexpr int TILE_ROWS = BOX * ROWS;
constexpr int WEIGHT_BOXES = BN / BOX;
constexpr int STAGE_BYTES = (ROWS + WEIGHT_BOXES) * BOX_BYTES;
// Slices are 64 columns of a tile. Each group has room for two: one is written while the other is copied out.
constexpr int SLICES = BN / BOX;
constexpr int SLICE_BYTES = ROWS * BOX_BYTES;

struct Barriers {
    unsigned long long full[STAGES];
    unsigned long long empty[STAGES];
    // The turns of two groups: a group's barrier says that the other has begun all products of its tile.
    unsigned long long turn[2];
};

struct Job {
    const TensorMap* x;
    const TensorMap* weights;
    const TensorMap* out;
    const float* bias;
    int row_tiles;
    int column_tiles;
    int depth;
};

// The tiles of this block, in the order of time: the columns of a row of tiles are done side by side.
struct Tiles {
    int tile, count, column_tiles;

    __device__ __forceinline__ explicit Tiles(const Job& job)
        : tile(blockIdx.x), count(job.row_tiles * job.column_tiles), column_tiles(job.column_tiles) {}

    __device__ __forceinline__ bool more() const { return tile < count; }
    __device__ __forceinline__ void next(int tiles) { tile += gridDim.x * tiles; }
    __device__ __forceinline__ int row() const { return tile / column_tiles * TILE_ROWS; }
    __device__ __forceinline__ int column() const { return tile % column_tiles * BN; }
};

__device__ __forceinline__ void fetch_weights(const Job& job, unsigned at, int k, int column, unsigned full) {
#pragma unroll
    for (int i = 0; i < WEIGHT_BOXES; ++i) box_load(at + (ROWS + i) * BOX_BYTES, job.weights, k * BOX, column + i * BOX, full);
}

// Fetches all that is multiplied, tile after tile.
__device__ void fetch(const Job& job, unsigned stages, Barriers* barriers) {
    Ring<STAGES> ring;
    Tiles tiles(job);
    // Weights do not come from the kernel ahead: the first of them are fetched while that one still runs.
    const int early = !tiles.more() ? 0 : job.depth < STAGES ? job.depth : STAGES;
    for (int k = 0; k < early; ++k) {
        const unsigned full = shared_address(&barriers->full[k]);
        barrier_arrive_expecting(full, STAGE_BYTES);
        fetch_weights(job, stages + k * STAGE_BYTES, k, tiles.column(), full);
    }
    wait_for_previous();
    for (bool first = true; tiles.more(); tiles.next(1), first = false) {
        for (int k = 0; k < job.depth; ++k, ring.advance()) {
            const unsigned full = shared_address(&barriers->full[ring.stage]), at = stages + ring.stage * STAGE_BYTES;
            if (!first || k >= early) {
                barrier_wait(shared_address(&barriers->empty[ring.stage]), ring.parity ^ 1);
                barrier_arrive_expecting(full, STAGE_BYTES);
                fetch_weights(job, at, k, tiles.column(), full);
            }
#pragma unroll
            for (int i = 0; i < ROWS; ++i) box_load(at + i * BOX_BYTES, job.x, k * BOX, tiles.row() + i * BOX, full);
        }
    }
}

// The sums of a thread's rows: of each 8 columns a pair, and below it the pair of the row 8 further on.
struct Sums {
    float values[ROWS][BN / 2];
};

// Writes a tile's results into the group's slices and from there into the matrix.
__device__ __forceinline__ void write_out(const Job& job, const Sums& sums, const Place& place, int row, int column, unsigned slices,
                                          bool is_first) {
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) {
        const unsigned to = slices + slice % 2 * SLICE_BYTES;
        // What was copied out of this place before must have been read: of this tile the slice before the last, of the tile
        // before all.
        if (!is_first || slice >= 2) {
            if (place.leads()) slice ? stores_wait_read<1>() : stores_wait_read<0>();
            place.sync();
        }
#pragma unroll
        for (int eight = 0; eight < 8; ++eight) {
            const float2 bias = pair_at(job.bias + column + slice * BOX + place.column(eight));
#pragma unroll
            for (int m = 0; m < ROWS; ++m) {
                const float* pairs = sums.values[m] + (slice * 8 + eight) * 4;
#pragma unroll
                for (int low = 0; low < 2; ++low)
                    write_word(place.word(to + m * BOX_BYTES, eight, low),
                               pack<NUMBER>(activate(pairs[2 * low] + bias.x), activate(pairs[2 * low + 1] + bias.y)));
            }
        }
        fence_for_copies();
        place.sync();
        if (place.leads()) {
#pragma unroll
            for (int m = 0; m < ROWS; ++m) box_store(job.out, column + slice * BOX, row + m * BOX, to + m * BOX_BYTES);
            stores_commit();
        }
    }
}

__device__ void multiply(const Job& job, unsigned stages, unsigned slices, Barriers* barriers) {
    const Place place;
    Ring<STAGES> ring;
    ring.skip(place.group * job.depth);
    Tiles tiles(job);
    tiles.next(place.group);
    for (unsigned turn = 0; tiles.more(); tiles.next(GROUPS), ++turn) {
        // Groups multiply in the order of their tiles: a barrier of the ring can only be waited for by the one whose turn it is.
        if (GROUPS > 1) barrier_wait(shared_address(&barriers->turn[place.group]), turn & 1 ^ (place.group == 0));
        Sums sums;
        int previous = 0;
        for (int k = 0; k < job.depth; ++k, ring.advance()) {
            barrier_wait(shared_address(&barriers->full[ring.stage]), ring.parity);
            const unsigned long long x = matrix_at(stages + ring.stage * STAGE_BYTES);
            const unsigned long long weights = x + ROWS * (BOX_BYTES / 16);
            products_begin();
#pragma unroll
            for (int step = 0; step < BOX / 16; ++step)
#pragma unroll
                for (int m = 0; m < ROWS; ++m)
                    Products<NUMBER, BN>::add(sums.values[m], x + m * (BOX_BYTES / 16) + 2 * step, weights + 2 * step, k + step);
            products_commit();
            // The stage before is free once its products are done; this one's run on meanwhile.
            if (k > 0) {
                products_wait<1>();
                if (place.lane == 0) barrier_arrive(shared_address(&barriers->empty[previous]));
            }
            previous = ring.stage;
        }
        if (GROUPS > 1 && place.lane == 0) barrier_arrive(shared_address(&barriers->turn[1 - place.group]));
        products_wait<0>();
        if (place.lane == 0) barrier_arrive(shared_address(&barriers->empty[previous]));
        // The next tile is the other group's.
        ring.skip((GROUPS - 1) * job.depth);
        write_out(job, sums, place, tiles.row(), tiles.column(), slices, turn == 0);
    }
    if (place.leads()) stores_wait_read<0>();
}

extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1)
    gemm_wgmma(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap out,
               const float* __restrict__ bias, int row_tiles, int column_tiles, int depth) {
    // The ring, then two slices of each group.
    extern __shared__ __align__(1024) unsigned char boxes[];
    __shared__ Barriers barriers;
    const Job job{&x, &weights, &out, bias, row_tiles, column_tiles, depth};
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(shared_address(&barriers.full[i]), 1);
            barrier_init(shared_address(&barriers.empty[i]), 4);
        }
        for (int i = 0; i < 2; ++i) barrier_init(shared_address(&barriers.turn[i]), 4);
        barrier_init_done();
    }
    __syncthreads();
    let_next_begin();
    const unsigned stages = shared_address(boxes);
    if (threadIdx.x >= 128 * GROUPS) {
        if (GROUPS > 1) registers_give_back<24>();
        if (threadIdx.x == 128 * GROUPS) fetch(job, stages, &barriers);
    } else {
        if (GROUPS > 1) registers_take<240>();
        multiply(job, stages, stages + STAGES * STAGE_BYTES + threadIdx.x / 128 * (2 * SLICE_BYTES), &barriers);
    }
}
