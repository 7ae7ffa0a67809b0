// Products of vectors with queries that lie in shared memory as floats.
// Knows no candidate.
//
// NUMBER  of the vectors
#pragma once

#include "numbers.cuh"

// A query's numbers, eight at `at`: the first and the second four of each eight apart, so that lanes read side by side.
__device__ __forceinline__ void put_eight(float4* query, int eights, int at, uint4 x) {
    float4 a, b;
    unpack(x.x, a.x, a.y, NUMBER{}), unpack(x.y, a.z, a.w, NUMBER{});
    unpack(x.z, b.x, b.y, NUMBER{}), unpack(x.w, b.z, b.w, NUMBER{});
    query[at] = a;
    query[eights + at] = b;
}

// The sum of eight products.
__device__ __forceinline__ float products(uint4 x, float4 a, float4 b, float sum) {
    float u, v;
    unpack(x.x, u, v, NUMBER{});
    sum = fmaf(u, a.x, sum), sum = fmaf(v, a.y, sum);
    unpack(x.y, u, v, NUMBER{});
    sum = fmaf(u, a.z, sum), sum = fmaf(v, a.w, sum);
    unpack(x.z, u, v, NUMBER{});
    sum = fmaf(u, b.x, sum), sum = fmaf(v, b.y, sum);
    unpack(x.w, u, v, NUMBER{});
    sum = fmaf(u, b.z, sum), sum = fmaf(v, b.w, sum);
    return sum;
}
