// The instructions that CUDA C++ has no name for: matrix products of a warp and what feeds them, powers, packing.
// Needs no header of the CUDA toolkit. Hides what sm_75 lacks behind slower ways to the same result.
#pragma once

#include "numbers.cuh"
#include "shared_memory.cuh"

// 2^x to about two units in the last place; 0 for numbers below 2^-126.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Four integers as signed bytes, the first lowest; those out of range become the nearest in it.
__device__ __forceinline__ unsigned pack_bytes(int a, int b, int c, int d) {
    unsigned upper, all;
    asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(upper) : "r"(d), "r"(c));
    asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(all) : "r"(b), "r"(a), "r"(upper));
    return all;
}

__device__ __forceinline__ uint4 load_shared(unsigned shared) {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(shared)
                 : "memory");
    return x;
}

__device__ __forceinline__ float load_shared_float(unsigned shared) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(shared) : "memory");
    return x;
}

// Four 8x8 matrices of 16-bit numbers, turned over: lanes 8i to 8i+7 say where the rows of matrix i are; lane l gets
// the numbers of rows 2(l%4) and 2(l%4)+1 in column l/4 of each.
__device__ __forceinline__ uint4 load_turned(unsigned shared) {
    uint4 x;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(shared)
                 : "memory");
    return x;
}

// c[16][8] += a[16][16] * b[16][8]. Lane l, with g = l/4 and t = l%4, holds pairs of a: (row g, columns 2t), (g+8, 2t),
// (g, 2t+8), (g+8, 2t+8); of b: (rows 2t, column g), (2t+8, g); of c: two in (row g, columns 2t), two in (g+8, 2t).
__device__ __forceinline__ void multiply(float (&c)[4], uint4 a, unsigned b0, unsigned b1, f16) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.z), "r"(a.w), "r"(b1));
#endif
}

#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ void multiply(float (&c)[4], uint4 a, unsigned b0, unsigned b1, bf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
#endif
