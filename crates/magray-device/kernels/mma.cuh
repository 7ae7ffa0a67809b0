// The instructions under a matrix product: fragments out of shared memory, products on tensor cores.
// Knows no tiles and no layers. KIND chooses the number type, as in gemm_mma.cu; f32 needs no tensor cores.
//
// For every number type one product takes 16 rows and 8 columns over 32 bytes of the inputs, and the threads hold the same
// bytes: in thread 4 g + t, a[0] is bytes 4 t.. of row g, a[1] of row g + 8, a[2] and a[3] the same 16 bytes further on; b[0]
// is bytes 4 t.. of column g, b[1] 16 bytes further on; c[0], c[1] are columns 2 t, 2 t + 1 of row g, c[2], c[3] of row g + 8.
#pragma once

#include "shared_memory.cuh"

#define BF16 1
#define F16 2
#define TF32 3
#define F32 4
#define INT8 5

#if KIND == INT8
typedef int Sum;
#else
typedef float Sum;
#endif

__device__ __forceinline__ void store_chunk(unsigned to, uint4 chunk) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(chunk.x), "r"(chunk.y), "r"(chunk.z), "r"(chunk.w) : "memory");
}

__device__ __forceinline__ float4 load_floats(unsigned from) {
    float4 y;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(y.x), "=f"(y.y), "=f"(y.z), "=f"(y.w) : "r"(from) : "memory");
    return y;
}

// Four matrices of 8 rows of 16 bytes: lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

#if KIND == TF32
// Rounds to nearest; the tensor core alone would cut the lower bits off.
__device__ __forceinline__ unsigned round_input(unsigned bits) {
    unsigned y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(__uint_as_float(bits)));
    return y;
}
#else
__device__ __forceinline__ unsigned round_input(unsigned bits) { return bits; }
#endif

#if KIND != F32
__device__ __forceinline__ void multiply(Sum (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if KIND == INT8 && __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#elif KIND == INT8
#define QUARTER(x, y, of_a, of_b)                                                                                     \
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+r"(x), "+r"(y) : "r"(of_a), "r"(of_b))
    QUARTER(c[0], c[1], a[0], b0);
    QUARTER(c[2], c[3], a[1], b0);
    QUARTER(c[0], c[1], a[2], b1);
    QUARTER(c[2], c[3], a[3], b1);
#undef QUARTER
#elif KIND == F16 && __CUDA_ARCH__ < 800
#define HALF(first, second, of_b)                                                                                     \
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"         \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                              \
        : "r"(first), "r"(second), "r"(of_b))
    HALF(a[0], a[1], b0);
    HALF(a[2], a[3], b1);
#undef HALF
#elif __CUDA_ARCH__ < 800
#error "bf16 and tf32 products begin with sm_80"
#else
#if KIND == BF16
#define SHAPE "m16n8k16.row.col.f32.bf16.bf16.f32"
#elif KIND == F16
#define SHAPE "m16n8k16.row.col.f32.f16.f16.f32"
#else
#define SHAPE "m16n8k8.row.col.f32.tf32.tf32.f32"
#endif
    asm("mma.sync.aligned." SHAPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#undef SHAPE
#endif
}
#endif
