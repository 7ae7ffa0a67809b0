// Scores those vectors whose signs say that they may be among the best, for one query a block column.
// Misses a few: the margin of the estimate is a likely one.
//
// NUMBER  of the vectors
#include "order.cuh"
#include "scan.cuh"
#include "scan_rows.cuh"
#include "signs.cuh"

constexpr int WARPS = 8;
// Lanes that share a vector.
constexpr int LANES = 16;

// As `scan_few`; `begin` is a multiple of 32. `gauges` of four words, then four for each of `words`.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    scan_signs(const uint4* __restrict__ rows, int eights, unsigned begin, unsigned end, const uint4* queries,
               const float* __restrict__ offsets, const unsigned* __restrict__ allowed, Found* found, Key* keys, int room,
               const unsigned* __restrict__ signs, int words, int dims, const Worth* __restrict__ worth, const uint4* gauges) {
    extern __shared__ float4 query[];
    uint4* slices = reinterpret_cast<uint4*>(query + 2 * eights);
    const Candidates candidates{found, keys, room};
    const int q = blockIdx.y;
    wait_for_previous();
    let_next_begin();
    for (int i = threadIdx.x; i < eights; i += blockDim.x) {
        put_eight(query, eights, i, queries[q * eights + i]);
    }
    const uint4* own = gauges + q * (1 + words);
    for (int i = threadIdx.x; i < words; i += blockDim.x) slices[i] = own[1 + i];
    const uint4 head = own[0];
    const Gauge gauge{__uint_as_float(head.x), __uint_as_float(head.y), __uint_as_float(head.z), 0.0f};
    const float bar = candidates.bar(q);
    __syncthreads();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sixteenth = lane % LANES, half = lane / LANES;
    for (unsigned first = begin + (blockIdx.x * WARPS + warp) * 32; first < end; first += gridDim.x * WARPS * 32) {
        const unsigned row = first + lane;
        const unsigned* group = signs + word_at(first, 0, words) + lane;
        const Worth own_worth = row < end ? worth[row] : Worth{0, 0, 0, 0};
        int unlike = 0;
#pragma unroll 12
        for (int word = 0; word < words; ++word) {
            const unsigned bits = __ldcs(group + word * 32);
            const uint4 slice = slices[word];
            unlike += __popc(bits ^ slice.x) + 2 * __popc(bits ^ slice.y) + 4 * __popc(bits ^ slice.z) + 8 * __popc(bits ^ slice.w);
        }
        const float product = static_cast<float>(((1 << SLICES) - 1) * dims - 2 * unlike) * gauge.scale;
        float likely = product * own_worth.factor + own_worth.known + gauge.shift;
        likely += own_worth.error * gauge.by_error;
        bool may_be = row < end && is_allowed(allowed, row);
        if (may_be && offsets) likely += offsets[row];
        may_be = may_be && likely > bar;
        unsigned left = __ballot_sync(0xffffffffu, may_be);
        // Two at a time.
        while (left) {
            const int a = __ffs(left) - 1;
            left &= left - 1;
            const int b = left ? __ffs(left) - 1 : a;
            left &= left - 1;
            const unsigned slot = first + (half ? b : a);
            const uint4* numbers = rows + static_cast<unsigned long long>(slot) * eights;
            float sum = 0.0f;
#pragma unroll 3
            for (int c = sixteenth; c < eights; c += LANES) sum = products(__ldcs(numbers + c), query[c], query[eights + c], sum);
            for (int offset = LANES / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            if (offsets) sum += offsets[slot];
            if (sixteenth == 0 && (half == 0 || b != a) && sum > bar) candidates.add(q, key_of(sum, slot));
        }
    }
}
