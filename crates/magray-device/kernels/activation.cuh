// The functions that follow a product, chosen when a kernel is compiled: ACTIVATION is one of these numbers.
// Needs no header of the CUDA toolkit.
#pragma once

#define IDENTITY 0
#define GELU 1
#define GELU_TANH 2
#define RELU 3
#define SILU 4
#define TANH 5

__device__ __forceinline__ float activate(float x) {
#if ACTIVATION == IDENTITY
    return x;
#elif ACTIVATION == GELU
    return 0.5f * x * (1.0f + erff(x * 0.70710678f));
#elif ACTIVATION == GELU_TANH
    return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
#elif ACTIVATION == RELU
    // Not fmaxf: it would turn NaN into 0.
    return x < 0.0f ? 0.0f : x;
#elif ACTIVATION == SILU
    return x / (1.0f + expf(-x));
#elif ACTIVATION == TANH
    return tanhf(x);
#endif
}
