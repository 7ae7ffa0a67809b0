// Four neighbours of a row at once, of which the last may not be there. Knows no tile.
#pragma once

#include "decoder.cuh"

__device__ __forceinline__ float4 floats_of(const float* values, int at, int count) {
    if (count >= 4) return *reinterpret_cast<const float4*>(values + at);
    return make_float4(count > 0 ? values[at] : 0.0f, count > 1 ? values[at + 1] : 0.0f, count > 2 ? values[at + 2] : 0.0f, 0.0f);
}

__device__ __forceinline__ void put_floats(float* values, float4 x, int count) {
    if (count >= 4) {
        *reinterpret_cast<float4*>(values) = x;
        return;
    }
    if (count > 0) values[0] = x.x;
    if (count > 1) values[1] = x.y;
    if (count > 2) values[2] = x.z;
}

__device__ __forceinline__ void put_numbers(unsigned short* numbers, float4 x, int count) {
    if (count >= 4) {
        *reinterpret_cast<uint2*>(numbers) = make_uint2(pack<bf16>(x.x, x.y), pack<bf16>(x.z, x.w));
        return;
    }
    if (count > 0) numbers[0] = to_bf16(x.x);
    if (count > 1) numbers[1] = to_bf16(x.y);
    if (count > 2) numbers[2] = to_bf16(x.z);
}

__device__ __forceinline__ float capped(float x, float cap) { return cap != 0.0f ? cap * tanhf(x / cap) : x; }
