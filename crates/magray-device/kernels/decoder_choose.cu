// The most likely token of each row of logits; of equal ones the first. Blocks share a row.
// A row that is not finite has no such token: its answer is the largest number there is.
#include "decoder.cuh"
#include "order.cuh"

constexpr int THREADS = 256;
constexpr unsigned NONE = 0xffffffffu;

// The order of keys is the order of logits, and the first of equal ones has the larger key.
__device__ __forceinline__ unsigned long long key_of(float x, unsigned index) {
    const unsigned bits = __float_as_uint(x);
    const unsigned ordered = bits >> 31 ? ~bits : bits | 1u << 31;
    return static_cast<unsigned long long>(ordered) << 32 | (NONE - index);
}

struct Found {
    unsigned long long best;
    unsigned blocks, is_bad;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    decoder_choose(const float* logits, int vocabulary, Found* found, unsigned* chosen) {
    let_next_begin();
    wait_for_previous();
    const int row = blockIdx.y;
    const float* of_row = logits + size_t(row) * vocabulary;
    unsigned long long best = 0;
    bool is_bad = false;
#pragma unroll 4
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < vocabulary; i += gridDim.x * THREADS) {
        const float x = of_row[i];
        is_bad |= !(fabsf(x) < __uint_as_float(0x7f800000u));
        const unsigned long long key = key_of(x, i);
        best = key > best ? key : best;
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
        const unsigned long long other = __shfl_xor_sync(WHOLE_WARP, best, apart);
        best = other > best ? other : best;
    }
    is_bad = __any_sync(WHOLE_WARP, is_bad);
    if (threadIdx.x % 32 == 0) {
        atomicMax(&found[row].best, best);
        if (is_bad) atomicOr(&found[row].is_bad, 1u);
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(&found[row].blocks, 1u) == gridDim.x - 1) {
        __threadfence();
        const unsigned long long all = atomicMax(&found[row].best, 0ull);
        chosen[row] = atomicOr(&found[row].is_bad, 0u) ? NONE : NONE - static_cast<unsigned>(all);
        // As the next step expects it.
        found[row].best = 0;
        found[row].blocks = found[row].is_bad = 0;
    }
}
