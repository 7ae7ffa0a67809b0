// Draws the token of each row that has a temperature, in place of the most likely one: of the tokens that its cut-offs leave, by their
// weights, in the order of their ids. A block has a row. Weights are integers, so that sums do not depend on their order.
#include "decoder.cuh"
#include "order.cuh"

constexpr int THREADS = 1024;
constexpr int WARPS = THREADS / 32;
constexpr unsigned NONE = 0xffffffffu;
// The most likely token has the largest weight of this many bits.
constexpr int WEIGHT_BITS = 30;
constexpr int DIGIT_BITS = 10;
constexpr int DIGITS = 1 << DIGIT_BITS;
static_assert(WEIGHT_BITS % DIGIT_BITS == 0 && DIGITS == THREADS, "whole digits, and a thread for each value of one");

// As the host writes it; see `draws.rs`.
struct Choice {
    float inverse_temperature, top_p, min_p;
    unsigned top_k;
    // Of 2^64.
    unsigned draw_low, draw_high;
};

using Mass = unsigned long long;

struct Row {
    const float* logits;
    int vocabulary;
    float most, inverse_temperature;

    __device__ unsigned weight(int i) const {
        const float part = __expf((logits[i] - most) * inverse_temperature);
        return min(static_cast<unsigned>(part * float(1u << WEIGHT_BITS)), (1u << WEIGHT_BITS) - 1);
    }
};

struct Shared {
    Mass sums[WARPS];
    Mass digits[DIGITS];
    Mass before;
    int digit;
};

__device__ Mass warp_sum(Mass x) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(WHOLE_WARP, x, apart);
    return x;
}

// The sums of all threads before this one; `total` of all.
__device__ Mass sum_before(Mass own, Shared& shared, Mass& total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Mass up = own;
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
        const Mass other = __shfl_up_sync(WHOLE_WARP, up, apart);
        if (lane >= apart) up += other;
    }
    __syncthreads();
    if (lane == 31) shared.sums[warp] = up;
    __syncthreads();
    Mass before = 0;
    total = 0;
    for (int i = 0; i < WARPS; i++) {
        if (i == warp) before = total;
        total += shared.sums[i];
    }
    return before + up - own;
}

// The smallest weight that is left where the heaviest are kept until their counts (or weights, `by_mass`) reach `wanted`; `least` where all
// together do not. Digit by digit from the top.
__device__ unsigned cut(const Row& row, unsigned least, Mass wanted, bool by_mass, Shared& shared) {
    unsigned prefix = 0;
    for (int shift = WEIGHT_BITS - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        const int upper = shift + DIGIT_BITS;
        shared.digits[threadIdx.x] = 0;
        __syncthreads();
        // Most tokens are light and would meet in one place.
        Mass lightest = 0;
        for (int i = threadIdx.x; i < row.vocabulary; i += THREADS) {
            const unsigned weight = row.weight(i);
            if (weight < least || weight >> upper != prefix) continue;
            const unsigned digit = weight >> shift & (DIGITS - 1);
            const Mass adds = by_mass ? weight : 1;
            if (digit == 0) lightest += adds;
            else atomicAdd(&shared.digits[digit], adds);
        }
        lightest = warp_sum(lightest);
        if (threadIdx.x % 32 == 0 && lightest > 0) atomicAdd(&shared.digits[0], lightest);
        if (threadIdx.x == 0) shared.digit = -1;
        __syncthreads();
        // A thread a digit, the heaviest first.
        const int digit = DIGITS - 1 - threadIdx.x;
        const Mass own = shared.digits[digit];
        Mass total;
        const Mass before = sum_before(own, shared, total);
        if (before < wanted && before + own >= wanted) {
            shared.digit = digit;
            shared.before = before;
        }
        __syncthreads();
        if (shared.digit < 0) return least;
        prefix = prefix << DIGIT_BITS | shared.digit;
        wanted -= shared.before;
        __syncthreads();
    }
    return prefix > least ? prefix : least;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    decoder_draw(const float* logits, int vocabulary, const Choice* choices, unsigned* chosen) {
    __shared__ Shared shared;
    let_next_begin();
    wait_for_previous();
    const Choice choice = choices[blockIdx.x];
    const unsigned best = chosen[blockIdx.x];
    if (choice.inverse_temperature == 0.0f || best == NONE) return;
    const float* of_row = logits + size_t(blockIdx.x) * vocabulary;
    const Row row = {of_row, vocabulary, of_row[best], choice.inverse_temperature};

    unsigned least = static_cast<unsigned>(choice.min_p * float(1u << WEIGHT_BITS));
    least = least > 0 ? least : 1;
    if (choice.top_k > 0) least = cut(row, least, choice.top_k, false, shared);

    // Warps have neighbouring tokens each.
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int segment = (vocabulary + WARPS - 1) / WARPS;
    const int first = warp * segment, last = min(first + segment, vocabulary);
    for (int pass = 0; pass < 2; pass++) {
        Mass own = 0;
        for (int i = first + lane; i < last; i += 32) {
            const unsigned weight = row.weight(i);
            own += weight >= least ? weight : 0;
        }
        own = warp_sum(own);
        __syncthreads();
        if (lane == 0) shared.sums[warp] = own;
        __syncthreads();
        if (pass == 1 || choice.top_p >= 1.0f) break;
        Mass total = 0;
        for (int i = 0; i < WARPS; i++) total += shared.sums[i];
        __syncthreads();
        const Mass wanted = static_cast<Mass>(double(choice.top_p) * double(total));
        least = cut(row, least, wanted > 0 ? wanted : 1, true, shared);
    }

    Mass total = 0;
    for (int i = 0; i < WARPS; i++) total += shared.sums[i];
    Mass target = __umul64hi(Mass(choice.draw_high) << 32 | choice.draw_low, total);
    int at = 0;
    while (at < WARPS - 1 && target >= shared.sums[at]) target -= shared.sums[at++];

    // All threads look into the segment: a few neighbours each.
    const int begin = at * segment, end = min(begin + segment, vocabulary);
    const int each = (segment + THREADS - 1) / THREADS;
    const int mine = begin + threadIdx.x * each, mine_end = min(mine + each, end);
    Mass own = 0;
    for (int i = mine; i < mine_end; i++) {
        const unsigned weight = row.weight(i);
        own += weight >= least ? weight : 0;
    }
    Mass all;
    Mass before = sum_before(own, shared, all);
    if (target < before || target >= before + own) return;
    for (int i = mine; i < mine_end; i++) {
        const unsigned weight = row.weight(i);
        before += weight >= least ? weight : 0;
        if (target < before) {
            chosen[blockIdx.x] = i;
            return;
        }
    }
}
