// One bit a dimension of vectors: how the bits lie, and what they say of a score.
// Needs no header of the CUDA toolkit.
#pragma once

constexpr int ROUNDS = 4;
// Bits of a query's number.
constexpr int SLICES = 4;

// What a product with a vector's signs is worth.
struct alignas(16) Worth {
    float factor;
    // The usual error of the estimate, for a query of length one.
    float error;
    // The part of the product that is known.
    float known;
    float unused;
};

// What a query makes of it. The slices of its numbers lie behind this: four for each word.
struct Gauge {
    // What a level of the query is worth.
    float scale;
    // Weight of a vector's error in the margin.
    float by_error;
    // The product of the query with the centre.
    float shift;
    float unused;
};

// The words of 32 vectors lie together, the first of each, then the second.
__device__ __forceinline__ unsigned long long word_at(unsigned row, int word, int words) {
    return (static_cast<unsigned long long>(row / 32) * words + word) * 32 + row % 32;
}
