// The best of each query's candidates, a block a query; they become its first candidates, and the last of them its bar.
// Scores nothing.
#include "order.cuh"
#include "scan.cuh"

constexpr int THREADS = 1024;
// Candidates that a thread holds: a query has room for THREADS times as many.
constexpr int HELD = 8;
constexpr int SORTED = 1024;

struct Shared {
    Key sorted[SORTED];
    unsigned counts[256];
    unsigned taken;
    int digit;
    int above;
};

// Sorts `length` keys, a power of two, best first.
__device__ __forceinline__ void sort_keys(Key* keys, int length) {
    for (int size = 2; size <= length; size *= 2) {
        for (int step = size / 2; step > 0; step /= 2) {
            const int i = threadIdx.x;
            if (i < length / 2) {
                const int low = 2 * step * (i / step) + i % step, high = low + step;
                const Key a = keys[low], b = keys[high];
                if ((a < b) == ((low & size) == 0)) {
                    keys[low] = b;
                    keys[high] = a;
                }
            }
            __syncthreads();
        }
    }
}

// A key that at least `most` of the block's are not below, and few more.
__device__ Key lowest_wanted(const Key (&held)[HELD], int most, Shared& shared) {
    int wanted = most, passed = 0;
    Key prefix = 0, mask = 0;
    // Digit by digit, until those that share the digits of the last one wanted are few.
    for (int shift = 56; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256) shared.counts[threadIdx.x] = 0;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < HELD; ++i)
            if (held[i] && (held[i] & mask) == prefix) atomicAdd(&shared.counts[held[i] >> shift & 255], 1u);
        __syncthreads();
        if (threadIdx.x < 32) {
            // Each lane has eight digits, the largest first.
            const int top = 255 - 8 * static_cast<int>(threadIdx.x);
            int own = 0;
            for (int i = 0; i < 8; ++i) own += shared.counts[top - i];
            int sum = own;
            for (int offset = 1; offset < 32; offset *= 2) {
                const int other = __shfl_up_sync(0xffffffffu, sum, offset);
                if (threadIdx.x >= offset) sum += other;
            }
            int before = sum - own;
            if (threadIdx.x == 31 && sum < wanted) shared.digit = -1;
            if (before < wanted && sum >= wanted) {
                int digit = top;
                while (before + static_cast<int>(shared.counts[digit]) < wanted) before += shared.counts[digit--];
                shared.digit = digit;
                shared.above = before;
            }
        }
        __syncthreads();
        const int digit = shared.digit, above = shared.above;
        // There are not even as many.
        if (digit < 0) return 1;
        const int alike = shared.counts[digit];
        prefix |= static_cast<Key>(digit) << shift;
        mask |= static_cast<Key>(255) << shift;
        passed += above;
        wanted -= above;
        __syncthreads();
        if (passed + alike <= max(most, SORTED / 4)) break;
    }
    return prefix;
}

// The candidates are those counted, and `in_place` more from `most` on, of which some are none. At most half of SORTED are wanted.
// `out`, where it is not null, gets the number of the best and the best of each query; all ones where some were lost.
extern "C" __global__ void __launch_bounds__(THREADS)
    scan_select(Found* all, Key* all_keys, int room, int in_place, int most, Key* out) {
    __shared__ Shared shared;
    wait_for_previous();
    let_next_begin();
    Found* found = all + blockIdx.x;
    Key* keys = Candidates{all, all_keys, room}.of(blockIdx.x);
    const unsigned counted = __ldcg(&found->count);
    const int first = static_cast<int>(min(counted, static_cast<unsigned>(room)));
    Key held[HELD];
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        const int at = i * THREADS + threadIdx.x;
        held[i] = at < first || at >= most && at < most + in_place ? __ldcg(keys + at) : 0;
    }
    const Key lowest = first + in_place > SORTED / 4 ? lowest_wanted(held, most, shared) : 1;
    if (threadIdx.x == 0) shared.taken = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < HELD; ++i)
        if (held[i] && held[i] >= lowest) shared.sorted[atomicAdd(&shared.taken, 1u)] = held[i];
    __syncthreads();
    const int taken = shared.taken;
    int length = 2;
    while (length < taken) length *= 2;
    if (threadIdx.x >= taken && threadIdx.x < length) shared.sorted[threadIdx.x] = 0;
    __syncthreads();
    sort_keys(shared.sorted, length);
    const int best = min(taken, most);
    Key* told = out ? out + static_cast<long long>(blockIdx.x) * (most + 1) : nullptr;
    if (threadIdx.x < best) {
        keys[threadIdx.x] = shared.sorted[threadIdx.x];
        if (told) told[1 + threadIdx.x] = shared.sorted[threadIdx.x];
    }
    if (threadIdx.x == 0) {
        const bool is_lost = counted > static_cast<unsigned>(room) || found->is_lost;
        found->count = best;
        found->is_lost = is_lost;
        if (best == most) found->bar = max(found->bar, shared.sorted[most - 1]);
        if (told) told[0] = is_lost ? ~static_cast<Key>(0) : best;
    }
}
