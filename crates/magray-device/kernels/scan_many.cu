// Scores vectors by many queries on Hopper: products on the tensor cores, of which only candidates leave the chip.
// Refuses nothing at run time: its caller sees to the shapes. Compiled for sm_90a alone.
//
// A block keeps its queries in shared memory. One warpgroup fetches vectors into a ring of stages, two multiply. Each has tiles
// of its own: while one looks through its scores, the other multiplies.
//
// NUMBER    bf16 or f16
// BN        queries of a block: 64 or 128
// STAGES    length of the ring
// IN_PLACE  there are no bars: every score is a candidate, in the place of its row
#include "numbers.cuh"
#include "hopper_tile.cuh"
#include "order.cuh"
#include "scan.cuh"

constexpr int ROWS = 2;
constexpr int GROUPS = 2;
constexpr int TILE_ROWS = BOX * ROWS;
constexpr int QUERY_BOXES = BN / BOX;
constexpr int STAGE_BYTES = ROWS * BOX_BYTES;
// Scores that a group gathers in fours before they are looked at one by one.
constexpr int GATHERED = 640;

struct Barriers {
    unsigned long long full[STAGES];
    unsigned long long empty[STAGES];
    // The turns of two groups: a group's barrier says that the other has begun all products of its tile.
    unsigned long long turn[2];
    unsigned long long queries;
};

struct Job {
    const TensorMap* rows;
    const TensorMap* queries;
    unsigned begin, end;
    int query_tiles;
    int depth;
    const float* offsets;
    const unsigned* allowed;
    Candidates candidates;
    int query_count;
    // Of the first row, where scores have places.
    int place;
};

// Scores of two queries for two rows, 8 apart, of which one is above its bar.
struct Four {
    float4 scores;
    unsigned slot;
    int query;
};

// What a group has found. The warp that finds it goes on at once; all of the group bring it out together.
struct Gathered {
    Four fours[GATHERED];
    unsigned count;

    __device__ __forceinline__ void add(float4 scores, unsigned slot, int query) {
        const unsigned at = atomicAdd(&count, 1u);
        if (at < GATHERED) fours[at] = {scores, slot, query};
    }

    // By the whole group.
    __device__ __forceinline__ void bring_out(const Job& job, const Place& place, const float* bars, int column, bool is_end) {
        place.sync();
        const unsigned found = count;
        place.sync();
        if (found < GATHERED / 4 && !is_end) return;
        for (unsigned i = threadIdx.x % 128; i < min(found, static_cast<unsigned>(GATHERED)) * 4; i += 128) {
            const Four& four = fours[i / 4];
            const unsigned slot = four.slot + (i & 2) * 4;
            const int own = four.query + (i & 1), query = column + own;
            const float score = (&four.scores.x)[i & 3];
            if (score > bars[own]) job.candidates.add(query, key_of(score, slot));
        }
        if (found > GATHERED)
            for (int i = threadIdx.x % 128; i < BN && column + i < job.query_count; i += 128) job.candidates.found[column + i].is_lost = 1;
        place.sync();
        if (place.leads()) count = 0;
        place.sync();
    }
};

// The tiles of this block: all of the same queries.
struct Tiles {
    unsigned row, end, step;

    __device__ __forceinline__ explicit Tiles(const Job& job)
        : row(job.begin + blockIdx.x / job.query_tiles * TILE_ROWS), end(job.end), step(gridDim.x / job.query_tiles * TILE_ROWS) {}

    __device__ __forceinline__ bool more() const { return row < end; }
    __device__ __forceinline__ void next(int tiles) { row += step * tiles; }
};

__device__ void fetch(const Job& job, unsigned queries, unsigned stages, Barriers* barriers) {
    Ring<STAGES> ring;
    const int column = static_cast<int>(blockIdx.x) % job.query_tiles * BN;
    const unsigned there = shared_address(&barriers->queries);
    wait_for_previous();
    barrier_arrive_expecting(there, job.depth * QUERY_BOXES * BOX_BYTES);
    for (int k = 0; k < job.depth; ++k)
        for (int i = 0; i < QUERY_BOXES; ++i)
            box_load(queries + (k * QUERY_BOXES + i) * BOX_BYTES, job.queries, k * BOX, column + i * BOX, there);
    for (Tiles tiles(job); tiles.more(); tiles.next(1)) {
        for (int k = 0; k < job.depth; ++k, ring.advance()) {
            const unsigned full = shared_address(&barriers->full[ring.stage]), at = stages + ring.stage * STAGE_BYTES;
            barrier_wait(shared_address(&barriers->empty[ring.stage]), ring.parity ^ 1);
            barrier_arrive_expecting(full, STAGE_BYTES);
#pragma unroll
            for (int i = 0; i < ROWS; ++i) box_load(at + i * BOX_BYTES, job.rows, k * BOX, tiles.row + i * BOX, full);
        }
    }
}

struct Sums {
    float values[ROWS][BN / 2];
};

// Keeps the scores of a tile that are above the bars.
__device__ __forceinline__ void look_through(const Job& job, const Sums& sums, const Place& place, unsigned row, const float* bars,
                                             int column, Gathered& gathered) {
    // What is not to be found scores below every bar.
    float offsets[ROWS][2];
#pragma unroll
    for (int m = 0; m < ROWS; ++m)
#pragma unroll
        for (int low = 0; low < 2; ++low) {
            const unsigned slot = row + m * BOX + place.row + 8 * low;
            const bool is_scored = slot < job.end && is_allowed(job.allowed, slot);
            offsets[m][low] = !is_scored ? __uint_as_float(0xff800000u) : job.offsets ? job.offsets[slot] : 0.0f;
        }
#pragma unroll
    for (int eight = 0; eight < BN / 8; ++eight) {
        const int own = eight * 8 + (place.lane & 3) * 2;
        const float2 bar = pair_at(bars + own);
#pragma unroll
        for (int m = 0; m < ROWS; ++m) {
            const float* pairs = sums.values[m] + eight * 4;
            const float4 scores = make_float4(pairs[0] + offsets[m][0], pairs[1] + offsets[m][0], pairs[2] + offsets[m][1],
                                              pairs[3] + offsets[m][1]);
            const unsigned slot = row + m * BOX + place.row;
#if IN_PLACE
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const unsigned at = slot + (i & 2) * 4;
                const int query = column + own + (i & 1);
                const float score = (&scores.x)[i];
                if (at >= job.end || query >= job.query_count) continue;
                const bool is_better = score > (i & 1 ? bar.y : bar.x);
                job.candidates.of(query)[job.place + at - job.begin] = is_better ? key_of(score, at) : 0;
            }
#else
            if (scores.x > bar.x | scores.y > bar.y | scores.z > bar.x | scores.w > bar.y) gathered.add(scores, slot, own);
#endif
        }
    }
}

__device__ void multiply(const Job& job, unsigned queries, unsigned stages, Barriers* barriers, const float* bars, Gathered& gathered) {
    const Place place;
    const int column = static_cast<int>(blockIdx.x) % job.query_tiles * BN;
    Ring<STAGES> ring;
    ring.skip(place.group * job.depth);
    Tiles tiles(job);
    tiles.next(place.group);
    barrier_wait(shared_address(&barriers->queries), 0);
    for (unsigned turn = 0; tiles.more(); tiles.next(GROUPS), ++turn) {
        // Groups multiply in the order of their tiles: a barrier of the ring can only be waited for by the one whose turn it is.
        barrier_wait(shared_address(&barriers->turn[place.group]), turn & 1 ^ (place.group == 0));
        Sums sums;
        int previous = 0;
        for (int k = 0; k < job.depth; ++k, ring.advance()) {
            barrier_wait(shared_address(&barriers->full[ring.stage]), ring.parity);
            const unsigned long long rows = matrix_at(stages + ring.stage * STAGE_BYTES);
            const unsigned long long columns = matrix_at(queries + k * QUERY_BOXES * BOX_BYTES);
            products_begin();
#pragma unroll
            for (int step = 0; step < BOX / 16; ++step)
#pragma unroll
                for (int m = 0; m < ROWS; ++m)
                    Products<NUMBER, BN>::add(sums.values[m], rows + m * (BOX_BYTES / 16) + 2 * step, columns + 2 * step, k + step);
            products_commit();
            // The stage before is free once its products are done; this one's run on meanwhile.
            if (k > 0) {
                products_wait<1>();
                if (place.lane == 0) barrier_arrive(shared_address(&barriers->empty[previous]));
            }
            previous = ring.stage;
        }
        if (place.lane == 0) barrier_arrive(shared_address(&barriers->turn[1 - place.group]));
        products_wait<0>();
        if (place.lane == 0) barrier_arrive(shared_address(&barriers->empty[previous]));
        // The next tile is the other group's.
        ring.skip((GROUPS - 1) * job.depth);
        look_through(job, sums, place, tiles.row, bars, column, gathered);
        if (!IN_PLACE) gathered.bring_out(job, place, bars, column, false);
    }
    if (!IN_PLACE) gathered.bring_out(job, place, bars, column, true);
}

extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1)
    scan_many(const __grid_constant__ TensorMap rows, const __grid_constant__ TensorMap queries, unsigned begin, unsigned end,
              int query_count, int query_tiles, int depth, const float* __restrict__ offsets, const unsigned* __restrict__ allowed,
              Found* found, Key* keys, int room, int place) {
    // The queries, then the ring.
    extern __shared__ __align__(1024) unsigned char boxes[];
    __shared__ Barriers barriers;
    __shared__ __align__(16) float bars[BN];
    __shared__ Gathered gathered[GROUPS];
    const Job job{&rows, &queries, begin, end, query_tiles, depth, offsets, allowed, {found, keys, room}, query_count, place};
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(shared_address(&barriers.full[i]), 1);
            barrier_init(shared_address(&barriers.empty[i]), 4);
        }
        for (int i = 0; i < 2; ++i) barrier_init(shared_address(&barriers.turn[i]), 4);
        barrier_init(shared_address(&barriers.queries), 1);
        barrier_init_done();
    }
    wait_for_previous();
    for (int i = threadIdx.x; i < BN; i += blockDim.x) {
        const int q = static_cast<int>(blockIdx.x) % query_tiles * BN + i;
        bars[i] = q < query_count ? job.candidates.bar(q) : __uint_as_float(0x7f800000u);
    }
    if (threadIdx.x < GROUPS) gathered[threadIdx.x].count = 0;
    __syncthreads();
    let_next_begin();
    const unsigned at = shared_address(boxes), stages = at + depth * QUERY_BOXES * BOX_BYTES;
    if (threadIdx.x >= 128 * GROUPS) {
        registers_give_back<24>();
        if (threadIdx.x == 128 * GROUPS) fetch(job, at, stages, &barriers);
    } else {
        registers_take<240>();
        multiply(job, at, stages, &barriers, bars, gathered[threadIdx.x / 128]);
    }
}
