// Attention of up to 16 rows a warp to one page of keys and values after the other, on the tensor cores with an online softmax.
// A row is a query of one head. Needs bf16 products: compute capability 8.0. HEAD is the size of a head, a multiple of 32.
#pragma once

#include "decoder_pages.cuh"
#include "instructions.cuh"

constexpr float LOG2_E = 1.44269504f;

__device__ __forceinline__ uint4 load_piece(const unsigned short* from) { return *reinterpret_cast<const uint4*>(from); }

// Values and keys of large heads are read when they are needed: there are no registers to hold them.
#ifndef VALUES_HELD_MOST
#define VALUES_HELD_MOST 64
#endif
constexpr bool HOLDS_VALUES = HEAD <= VALUES_HELD_MOST;
constexpr bool HOLDS_KEYS = HEAD <= 128;

// What lane 4 g + t has of a page.
struct Page {
    static constexpr int KEY_PARTS = HOLDS_KEYS ? HEAD / 32 : 1;
    // Column n of product i is key 8 (n / 2) + 2 i + n % 2: a lane gets the scores of keys 8 t to 8 t + 7, and the same of values.
    uint4 keys[4][HOLDS_KEYS ? HEAD / 32 : 1];
    // Keys 8 t to 8 t + 7 of number 8 i + g.
    uint4 values[HOLDS_VALUES ? HEAD / 8 : 1];
    const unsigned short* keys_at;
    const unsigned short* values_at;

    __device__ __forceinline__ void load(const unsigned short* keys_from, const unsigned short* values_from) {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        keys_at = keys_from + (g / 2 * 8 + g % 2) * HEAD + 8 * t;
        if (HOLDS_KEYS) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int part = 0; part < HEAD / 32; ++part) keys[i][part % KEY_PARTS] = load_piece(keys_at + 2 * i * HEAD + 32 * part);
            }
        }
        values_at = values_from + g * PAGE + 8 * t;
        if (HOLDS_VALUES) {
#pragma unroll
            for (int i = 0; i < HEAD / 8; ++i) values[i % (sizeof(values) / 16)] = load_piece(values_at + 8 * i * PAGE);
        } else {
#pragma unroll
            for (int i = 0; i < HEAD / 8; ++i) asm volatile("prefetch.global.L2 [%0];" ::"l"(values_at + 8 * i * PAGE));
        }
    }

    __device__ __forceinline__ uint4 key(int i, int part) const {
        return HOLDS_KEYS ? keys[i][part % KEY_PARTS] : load_piece(keys_at + 2 * i * HEAD + 32 * part);
    }

    __device__ __forceinline__ uint4 value(int i) const { return HOLDS_VALUES ? values[i % (sizeof(values) / 16)] : load_piece(values_at + 8 * i * PAGE); }

    // Puts a token's key and value, which lie in shared memory, in the place of what was read for it.
    __device__ __forceinline__ void replace(int slot, const unsigned short* key, const unsigned short* value) {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (HOLDS_KEYS && g / 2 * 8 + g % 2 + 2 * i == slot) {
#pragma unroll
                for (int part = 0; part < HEAD / 32; ++part) keys[i][part % KEY_PARTS] = load_piece(key + 32 * part + 8 * t);
            }
        }
        if (HOLDS_VALUES && slot / 8 == t) {
            const unsigned mask = slot % 2 ? 0x0000ffffu : 0xffff0000u;
#pragma unroll
            for (int i = 0; i < HEAD / 8; ++i) {
                const unsigned number = unsigned(value[8 * i + g]) << slot % 2 * 16;
                uint4& four = values[i % (sizeof(values) / 16)];
                if (slot % 8 / 2 == 0) four.x = four.x & mask | number;
                if (slot % 8 / 2 == 1) four.y = four.y & mask | number;
                if (slot % 8 / 2 == 2) four.z = four.z & mask | number;
                if (slot % 8 / 2 == 3) four.w = four.w & mask | number;
            }
        }
    }
};

// Lane 4 g + t works on rows g and g + 8.
struct Attending {
    // Numbers 32 i + 8 t to 32 i + 8 t + 7 of rows g and g + 8.
    uint4 queries[HEAD / 32][2];
    // Numbers 8 i + 2 t and the next of both rows.
    float sums[HEAD / 8][4];
    // Finite from the start: the difference of two infinities would be NaN.
    float largest[2] = {-1e30f, -1e30f};
    // Of this lane's keys alone.
    float total[2] = {0.0f, 0.0f};

    __device__ __forceinline__ Attending() {
#pragma unroll
        for (int i = 0; i < HEAD / 8; ++i) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.0f;
    }

    // Takes in the keys of a page, whose first has the position `start`. Row g sees keys from first[0] to last[0], row g + 8 those
    // from first[1] to last[1].
    template <class AnyPage>
    __device__ __forceinline__ void attend(const Layer& layer, const AnyPage& page, int start, const int (&first)[2], const int (&last)[2]) {
        const int t = threadIdx.x % 4;
        float scores[4][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[i][0] = scores[i][1] = scores[i][2] = scores[i][3] = 0.0f;
#pragma unroll
        for (int part = 0; part < HEAD / 32; ++part) {
            const uint4 q = queries[part][0], r = queries[part][1];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint4 key = page.key(i, part);
                multiply(scores[i], make_uint4(q.x, r.x, q.y, r.y), key.x, key.y, bf16{});
                multiply(scores[i], make_uint4(q.z, r.z, q.w, r.w), key.z, key.w, bf16{});
            }
        }
        float factor = layer.scale * LOG2_E;
        if (layer.cap != 0.0f) {
            factor = LOG2_E;
#pragma unroll
            for (int i = 0; i < 16; ++i) (&scores[0][0])[i] = score_of(layer, (&scores[0][0])[i]);
        }
        // Most pages are seen as a whole.
        const bool sees_all = start >= first[0] && start >= first[1] && start + PAGE - 1 <= last[0] && start + PAGE - 1 <= last[1];
        if (!__all_sync(WHOLE_WARP, sees_all)) {
            const float none = -__uint_as_float(0x7f800000u);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    const int at = start + 8 * t + 2 * i + c % 2;
                    if (at < first[c / 2] || at > last[c / 2]) scores[i][c] = none;
                }
            }
        }
        float most[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float own = fmaxf(scores[0][2 * half], scores[0][2 * half + 1]);
#pragma unroll
            for (int i = 1; i < 4; ++i) own = fmaxf(own, fmaxf(scores[i][2 * half], scores[i][2 * half + 1]));
            own = fmaxf(own, __shfl_xor_sync(WHOLE_WARP, own, 1));
            own = fmaxf(own, __shfl_xor_sync(WHOLE_WARP, own, 2));
            most[half] = fmaxf(largest[half], own * factor);
        }
        if (__any_sync(WHOLE_WARP, most[0] > largest[0] || most[1] > largest[1])) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float shrink = exp2_fast(largest[half] - most[half]);
                largest[half] = most[half];
                total[half] *= shrink;
#pragma unroll
                for (int i = 0; i < HEAD / 8; ++i) {
                    sums[i][2 * half] *= shrink;
                    sums[i][2 * half + 1] *= shrink;
                }
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int c = 2 * half; c < 2 * half + 2; ++c) {
                    scores[i][c] = exp2_fast(fmaf(scores[i][c], factor, -largest[half]));
                    total[half] += scores[i][c];
                }
            }
        }
        uint4 weights[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float(&low)[4] = scores[2 * i], (&high)[4] = scores[2 * i + 1];
            weights[i] = make_uint4(pack<bf16>(low[0], low[1]), pack<bf16>(low[2], low[3]), pack<bf16>(high[0], high[1]), pack<bf16>(high[2], high[3]));
        }
#pragma unroll
        for (int i = 0; i < HEAD / 8; ++i) {
            const uint4 b = page.value(i);
            multiply(sums[i], weights[0], b.x, b.y, bf16{});
            multiply(sums[i], weights[1], b.z, b.w, bf16{});
        }
    }

    // The sum of all keys' weights, of row g or g + 8.
    __device__ __forceinline__ float whole(int half) const {
        float x = total[half];
        x += __shfl_xor_sync(WHOLE_WARP, x, 1);
        return x + __shfl_xor_sync(WHOLE_WARP, x, 2);
    }
};
