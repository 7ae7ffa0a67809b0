// Keys and values in pages, what is done to a head before it is kept, and a layer's attention as the kernels get it.
// A page has, by layer: of each head 32 keys, then of each head the values of 32 tokens turned over, so that both are read along rows.
#pragma once

#include "decoder.cuh"

struct Layer {
    unsigned short* pages;
    const float* radians;
    const float* query_gain;
    const float* key_gain;
    float query_epsilon, key_epsilon, rope_scale, scale;
    // 0 for none.
    float cap;
    int window;
    int pairs, neighbours;
    int heads, kv_heads, head_size;
    int layer, layers, unused;
};

// Where the new tokens stand, by row.
struct Places {
    const int* positions;
    // Where the pages of a row's sequence begin.
    const int* page_starts;
    const int* pages;
    // The rows that a kernel is for.
    const int* rows;
};

__device__ __forceinline__ unsigned short* keys_of(const Layer& layer, int page, int head) {
    return layer.pages + ((size_t(page) * layer.layers + layer.layer) * 2 * layer.kv_heads + head) * PAGE * layer.head_size;
}

__device__ __forceinline__ unsigned short* values_of(const Layer& layer, int page, int head) { return keys_of(layer, page, head + layer.kv_heads); }

// The first token that a token of this position attends to.
__device__ __forceinline__ int first_seen(const Layer& layer, int position) {
    return layer.window > 0 ? max(position + 1 - layer.window, 0) : 0;
}

// Sine and cosine of large angles too: whole turns are taken off first, in two steps that lose nothing.
__device__ __forceinline__ void sine_cosine(float x, float& sine, float& cosine) {
    const float turns = rintf(x * 0.15915494f);
    x = fmaf(turns, -6.2831855f, x);
    x = fmaf(turns, 1.7484556e-7f, x);
    sine = __sinf(x);
    cosine = __cosf(x);
}

// Sines and cosines of a position, a lane every 32nd pair: known before the head is.
struct Turn {
    float sines[4], cosines[4];

    __device__ __forceinline__ Turn(const Layer& layer, int position) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int pair = 32 * i + threadIdx.x % 32;
            sines[i] = cosines[i] = 0.0f;
            if (pair < layer.pairs) {
                sine_cosine(static_cast<float>(position) * layer.radians[pair], sines[i], cosines[i]);
                sines[i] *= layer.rope_scale;
                cosines[i] *= layer.rope_scale;
            }
        }
    }
};

// Normalises and turns a head in shared memory, by a whole warp.
__device__ __forceinline__ void turn_head(const Layer& layer, const Turn& turn, float* head, const float* gain, float epsilon) {
    const int lane = threadIdx.x % 32, size = layer.head_size;
    __syncwarp();
    if (gain) {
        float square = 0.0f;
        for (int i = lane; i < size; i += 32) square += head[i] * head[i];
        const float scale = rsqrtf(warp_sum(square) / size + epsilon);
        for (int i = lane; i < size; i += 32) head[i] *= scale * gain[i];
        __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int pair = 32 * i + lane;
        if (pair < layer.pairs) {
            const int a = layer.neighbours ? 2 * pair : pair, b = layer.neighbours ? 2 * pair + 1 : pair + layer.pairs;
            const float x = head[a], y = head[b];
            head[a] = x * turn.cosines[i] - y * turn.sines[i];
            head[b] = y * turn.cosines[i] + x * turn.sines[i];
        }
    }
    __syncwarp();
}

// Puts a row's key of a head, from shared memory, and its value into their page, by a whole warp.
__device__ __forceinline__ void keep(const Layer& layer, int page, int slot, int head, const float* key, const unsigned short* value) {
    unsigned short* keys = keys_of(layer, page, head) + slot * layer.head_size;
    unsigned short* values = values_of(layer, page, head) + slot;
    for (int i = threadIdx.x % 32; i < layer.head_size; i += 32) {
        keys[i] = to_bf16(key[i]);
        values[i * PAGE] = value[i];
    }
}

__device__ __forceinline__ float score_of(const Layer& layer, float dot) {
    const float score = dot * layer.scale;
    return layer.cap != 0.0f ? layer.cap * tanhf(score / layer.cap) : score;
}
