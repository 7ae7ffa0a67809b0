// What Hopper's products have in common: the ring that boxes are fetched into, and where a thread's sums belong.
// Knows no shape: the kernels that include it do.
#pragma once

#include "hopper.cuh"

// A place in the ring, and the parity its barriers have there.
template <int STAGES_IN_RING>
struct Ring {
    int stage = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES_IN_RING) {
            stage = 0;
            parity ^= 1;
        }
    }

    __device__ __forceinline__ void skip(int stages) {
        for (int i = 0; i < stages; ++i) advance();
    }
};

// A thread's place in its warpgroup: it has two rows of each 64, 8 apart, and of each 8 columns a pair.
struct Place {
    int group, row, lane;

    __device__ __forceinline__ Place() {
        lane = threadIdx.x % 32;
        group = threadIdx.x / 128;
        row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    }

    // The word of a pair, in a box.
    __device__ __forceinline__ unsigned word(unsigned box, int eight, int low) const {
        const int r = row + 8 * low;
        return box + r * 128 + ((eight ^ (r & 7)) << 4) + (lane & 3) * 4;
    }

    // Its pair's place in 64 columns of a vector.
    __device__ __forceinline__ int column(int eight) const { return eight * 8 + (lane & 3) * 2; }

    // One thread of the warpgroup speaks for all.
    __device__ __forceinline__ bool leads() const { return threadIdx.x % 128 == 0; }

    __device__ __forceinline__ void sync() const { group_barrier(1 + group); }
};

__device__ __forceinline__ unsigned read_word(unsigned address) {
    unsigned word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address));
    return word;
}

__device__ __forceinline__ void write_word(unsigned address, unsigned word) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

__device__ __forceinline__ float2 pair_at(const float* values) { return *reinterpret_cast<const float2*>(values); }
