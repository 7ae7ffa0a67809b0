// The number types of activations and weights, and how they turn into 32-bit floats and back.
// Needs no header of the CUDA toolkit: the runtime compiler alone must be enough.
#pragma once

struct bf16 {
    unsigned short bits;
};

struct f16 {
    unsigned short bits;
};

__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float(unsigned(x.bits) << 16); }

__device__ __forceinline__ float widen(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

__device__ __forceinline__ float widen(float x) { return x; }

template <class T>
__device__ __forceinline__ T narrow(float x);

template <>
__device__ __forceinline__ f16 narrow<f16>(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

template <>
__device__ __forceinline__ float narrow<float>(float x) {
    return x;
}

// Two numbers as they lie in memory, the first in the lower half.
template <class T>
__device__ __forceinline__ unsigned pack(float first, float second);

template <>
__device__ __forceinline__ unsigned pack<f16>(float first, float second) {
    return unsigned(narrow<f16>(first).bits) | unsigned(narrow<f16>(second).bits) << 16;
}

#if __CUDA_ARCH__ >= 800
template <>
__device__ __forceinline__ bf16 narrow<bf16>(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

template <>
__device__ __forceinline__ unsigned pack<bf16>(float first, float second) {
    unsigned y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
    return y;
}
#endif

__device__ __forceinline__ void unpack(unsigned pair, float& first, float& second, bf16) {
    first = __uint_as_float(pair << 16);
    second = __uint_as_float(pair & 0xffff0000u);
}

__device__ __forceinline__ void unpack(unsigned pair, float& first, float& second, f16) {
    first = widen(f16{static_cast<unsigned short>(pair)});
    second = widen(f16{static_cast<unsigned short>(pair >> 16)});
}
