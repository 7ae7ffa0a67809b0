// Weights in blocks as rows of bf16 numbers, for products of many rows: a thread has 16 bytes of a block, a warp the block.
// Rounds as the products do that read the blocks themselves.
#include "decoder.cuh"
#include "order.cuh"

constexpr int WARPS = 8;

__device__ __forceinline__ unsigned pair_of(float first, float second) { return to_bf16(first) | unsigned(to_bf16(second)) << 16; }

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    decoder_unpack(const unsigned char* weights, int form, int units, int rows, int inputs, unsigned short* out, int stride) {
    let_next_begin();
    wait_for_previous();
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int unit = blockIdx.x * WARPS + threadIdx.x / 32, row = blockIdx.y * 8 + (g >> 1 | (g & 1) << 2);
    if (unit >= units || row >= rows) return;
    const unsigned char* block = weights + (size_t(blockIdx.y) * units + unit) * bytes_of_block(form);
    unsigned short* to = out + size_t(row) * stride + unit * inputs_of_block(form) + 8 * t;
    const int left = inputs - (unit * inputs_of_block(form) + 8 * t);
    if (form == FORM_BYTES) {
        const uint4 own = reinterpret_cast<const uint4*>(block)[lane];
        const unsigned words[4] = {own.x, own.y, own.z, own.w};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float scale = reinterpret_cast<const float*>(block + 512)[2 * g + half];
            float numbers[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) numbers[i] = static_cast<float>(static_cast<signed char>(words[2 * half + i / 4] >> i % 4 * 8)) * scale;
            if (32 * half < left)
                *reinterpret_cast<uint4*>(to + 32 * half) = make_uint4(pair_of(numbers[0], numbers[1]), pair_of(numbers[2], numbers[3]),
                                                                      pair_of(numbers[4], numbers[5]), pair_of(numbers[6], numbers[7]));
        }
        return;
    }
    // Of 8 neighbours each of the row's four lanes has a pair.
    unsigned words[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint4 own = reinterpret_cast<const uint4*>(block)[4 * g + i];
        words[i][0] = own.x, words[i][1] = own.y, words[i][2] = own.z, words[i][3] = own.w;
    }
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
        const float2 scale = quarter_scale(block, form, g, quarter);
        unsigned pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned pair = words[i][quarter] >> 4 * t;
            const float even = static_cast<float>(static_cast<int>(pair & 15) - 8), odd = static_cast<float>(static_cast<int>(pair >> 16 & 15) - 8);
            pairs[i] = pair_of(fmaf(even, scale.x, scale.y), fmaf(odd, scale.x, scale.y));
        }
        if (32 * quarter < left) *reinterpret_cast<uint4*>(to + 32 * quarter) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
}
