// What scans of vectors have in common: candidates, and the bar that they must be above.
// Needs no header of the CUDA toolkit. Knows no vector.
#pragma once

// A candidate: a better score is a larger key, and of equal scores the lower slot is. 0 is none.
typedef unsigned long long Key;

// A query's candidates.
struct Found {
    // Only larger keys can still be among the best.
    Key bar;
    unsigned count;
    // There were more than there is room for: some are lost, and the scan must be done again without bars.
    unsigned is_lost;
};

__device__ __forceinline__ Key key_of(float score, unsigned slot) {
    const unsigned bits = __float_as_uint(score);
    const unsigned ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<Key>(ordered) << 32 | ~slot;
}

__device__ __forceinline__ float score_of(Key key) {
    const unsigned ordered = static_cast<unsigned>(key >> 32);
    return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

// Where a query's candidates lie.
struct Candidates {
    Found* found;
    Key* keys;
    int room;

    __device__ __forceinline__ Key* of(int query) const { return keys + static_cast<long long>(query) * room; }

    __device__ __forceinline__ void add(int query, Key key) const {
        const unsigned at = atomicAdd(&found[query].count, 1u);
        if (at < static_cast<unsigned>(room)) of(query)[at] = key;
    }

    __device__ __forceinline__ float bar(int query) const { return score_of(__ldcg(&found[query].bar)); }
};

__device__ __forceinline__ bool is_allowed(const unsigned* allowed, unsigned slot) {
    return allowed == nullptr || (allowed[slot / 32] >> slot % 32 & 1u);
}
