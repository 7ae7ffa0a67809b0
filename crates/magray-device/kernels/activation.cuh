// The functions that follow a product, chosen when a kernel is compiled: ACTIVATION is one of these numbers.
// Where results are 16 bits wide (NUMBER_16), the hardware's own functions are exact enough. Needs no header of the toolkit.
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
#elif ACTIVATION == GELU && defined(NUMBER_16)
    // The normal distribution by the hyperbolic tangent of a fitted polynomial: wrong by 3e-5 at most, and the hardware's
    // tangent by 2^-11 of it, both less than the rounding to 16 bits. Beyond the limit the tangent is 1 anyway.
    const float t = fminf(x * x, 50.0f);
    const float u = x * fmaf(fmaf(-0.00035151680f, t, 0.037005646f), t, 0.79750788f);
    float tangent;
    asm("tanh.approx.f32 %0, %1;" : "=f"(tangent) : "f"(u));
    const float half = 0.5f * x;
    return fmaf(half, tangent, half);
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
