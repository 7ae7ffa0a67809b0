// Scores vectors by few queries in one read of them.
// Refuses nothing at run time: its caller sees to the shapes.
//
// QUERIES  1, 2 or 4
// NUMBER   of the vectors
#include "order.cuh"
#include "scan.cuh"
#include "scan_rows.cuh"

constexpr int WARPS = 8;
// Lanes that share a vector, and vectors that each has at once.
constexpr int LANES = 16;
constexpr int AT_ONCE = 4;
constexpr int OF_WARP = 32 / LANES * AT_ONCE;

// `rows` of `eights` times eight numbers; those of `begin` to `end` are scored. `queries` of as many numbers each. A score is the
// product and what `offsets` adds for the row. From `place` on, if it is not negative, every score is a candidate in the place of
// its row; else those above the bar are.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    scan_few(const uint4* __restrict__ rows, int eights, unsigned begin, unsigned end, const uint4* queries, int query_count,
             const float* __restrict__ offsets, const unsigned* __restrict__ allowed, Found* found, Key* keys, int room, int place) {
    extern __shared__ float4 query[];
    const Candidates candidates{found, keys, room};
    wait_for_previous();
    let_next_begin();
    for (int i = threadIdx.x; i < QUERIES * eights; i += blockDim.x) {
        const int q = i / eights, j = i % eights;
        const uint4 x = q < query_count ? queries[i] : make_uint4(0, 0, 0, 0);
        put_eight(query + 2 * q * eights, eights, j, x);
    }
    const int lane = threadIdx.x % LANES, half = threadIdx.x % 32 / LANES, warp = threadIdx.x / 32;
    // Each lane looks at the scores of one query and one of its vectors.
    const int own = lane / QUERIES, own_query = lane % QUERIES;
    const bool has_own = own < AT_ONCE && own_query < query_count;
    const float bar = has_own ? candidates.bar(own_query) : 0.0f;
    __syncthreads();
    const unsigned step = gridDim.x * WARPS * OF_WARP;
    for (unsigned base = begin + (blockIdx.x * WARPS + warp) * OF_WARP; base < end; base += step) {
        const unsigned first = base + half * AT_ONCE;
        float sums[AT_ONCE][QUERIES];
        const uint4* row[AT_ONCE];
        bool is_scored[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
            is_scored[j] = first + j < end && is_allowed(allowed, first + j);
            row[j] = rows + static_cast<unsigned long long>(first + j) * eights;
#pragma unroll
            for (int q = 0; q < QUERIES; ++q) sums[j][q] = 0.0f;
        }
#pragma unroll 3
        for (int c = lane; c < eights; c += LANES) {
            uint4 x[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) x[j] = is_scored[j] ? __ldcs(row[j] + c) : make_uint4(0, 0, 0, 0);
#pragma unroll
            for (int q = 0; q < QUERIES; ++q) {
                const float4 a = query[2 * q * eights + c], b = query[(2 * q + 1) * eights + c];
#pragma unroll
                for (int j = 0; j < AT_ONCE; ++j) sums[j][q] = products(x[j], a, b, sums[j][q]);
            }
        }
        float score = 0.0f;
        bool is_mine = false;
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
#pragma unroll
            for (int q = 0; q < QUERIES; ++q) {
#pragma unroll
                for (int offset = LANES / 2; offset > 0; offset /= 2)
                    sums[j][q] += __shfl_xor_sync(0xffffffffu, sums[j][q], offset);
                if (own == j && own_query == q) score = sums[j][q], is_mine = is_scored[j];
            }
        }
        const unsigned slot = first + own;
        if (!has_own || slot >= end) continue;
        if (is_mine && offsets) score += offsets[slot];
        const bool is_better = is_mine && score > bar;
        if (place >= 0) {
            candidates.of(own_query)[place + slot - begin] = is_better ? key_of(score, slot) : 0;
        } else if (is_better) {
            candidates.add(own_query, key_of(score, slot));
        }
    }
}
