// Weights of 4 bits in the registers of a warp, as the tensor cores take them. FORM is FORM_NIBBLES or FORM_CENTRED.
// Needs bf16 arithmetic in pairs: Hopper.
#pragma once

#include "decoder.cuh"
#include "hopper.cuh"
#include "instructions.cuh"

constexpr int NIBBLE_BYTES = FORM == FORM_NIBBLES ? NIBBLES_BLOCK : CENTRED_BLOCK;

// The bits of two numbers. The compiler does not know that there is one block in this direction: a constant would be loaded before each use.
__device__ __forceinline__ unsigned nibble_mask() { return gridDim.z * 0x000f000fu; }

// Two numbers of 4 bits, at bits 0 and 16 of the word, as bf16: in the lowest bits of 128 they are 136 more than what is meant.
__device__ __forceinline__ unsigned raised_pair(unsigned word, unsigned mask) {
    unsigned pair;
    asm("lop3.b32 %0, %1, %2, 0x43004300, 0xea;" : "=r"(pair) : "r"(word), "r"(mask));
    return pair;
}

constexpr unsigned RAISED = 0x43084308u;
constexpr unsigned RAISED_NEGATIVE = 0xc308c308u;

// What a lane has of an eight of rows, in a block of 128 inputs.
struct Nibbles {
    uint4 words;
    // By quarters: scales, or pairs of scale and offset.
    uint4 scales;

    __device__ __forceinline__ void load(unsigned block) {
        const int lane = threadIdx.x % 32, g = lane / 4;
        words = load_shared(block + lane * 16);
        if (FORM == FORM_NIBBLES) {
            scales = load_shared(block + 512 + g * 16);
        } else {
            asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(scales.x), "=r"(scales.y) : "r"(block + 512 + g * 8) : "memory");
        }
    }

    __device__ __forceinline__ unsigned word(int quarter) const { return quarter == 0 ? words.x : quarter == 1 ? words.y : quarter == 2 ? words.z : words.w; }

    __device__ __forceinline__ unsigned pair(int quarter) const {
        return quarter == 0 ? scales.x : quarter == 1 ? scales.y : quarter == 2 ? scales.z : scales.w;
    }

    __device__ __forceinline__ float scale(int quarter) const {
        if (FORM == FORM_NIBBLES) return __uint_as_float(pair(quarter) << 16);
        const unsigned two = pair(quarter / 2);
        return __uint_as_float(quarter % 2 ? two & 0xffff0000u : two << 16);
    }

    __device__ __forceinline__ float offset(int quarter) const { return __uint_as_float(pair(quarter) & 0xffff0000u); }

    // Inputs 16 STEP to 16 STEP + 15 of a quarter, as bf16 numbers with their scale: this lane's of the lower and the upper 8.
    template <int STEP>
    __device__ __forceinline__ uint2 numbers(int quarter, unsigned mask) const {
        const unsigned two = pair(FORM == FORM_NIBBLES ? quarter : quarter / 2);
        const unsigned scale = __byte_perm(two, 0, FORM == FORM_NIBBLES || quarter % 2 == 0 ? 0x1010 : 0x3232);
        uint2 numbers;
        asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(numbers.x) : "r"(raised_pair(word(quarter) >> 8 * STEP, mask)), "r"(RAISED));
        asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(numbers.y) : "r"(raised_pair(word(quarter) >> (8 * STEP + 4), mask)), "r"(RAISED));
        if (FORM == FORM_NIBBLES) {
            const unsigned offset = __byte_perm(two, 0, 0x3232);
            asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(numbers.x) : "r"(scale), "r"(offset));
            asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(numbers.y) : "r"(scale), "r"(offset));
        } else {
            asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(numbers.x) : "r"(scale));
            asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(numbers.y) : "r"(scale));
        }
        return numbers;
    }
};
