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
    const bool is_bytes = form == FORM_BYTES;
    const unsigned char* block = weights + (size_t(blockIdx.y) * units + unit) * (is_bytes ? BYTES_BLOCK : NIBBLES_BLOCK);
    const uint4 own = reinterpret_cast<const uint4*>(block)[lane];
    const unsigned words[4] = {own.x, own.y, own.z, own.w};
    unsigned short* to = out + size_t(row) * stride + unit * (is_bytes ? BYTES_INPUTS : NIBBLES_INPUTS) + 8 * t;
    const int left = inputs - (unit * (is_bytes ? BYTES_INPUTS : NIBBLES_INPUTS) + 8 * t);
    if (is_bytes) {
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
    } else {
#pragma unroll
        for (int quarter = 0; quarter < 4; ++quarter) {
            const unsigned pair = reinterpret_cast<const unsigned*>(block + 512)[4 * g + quarter];
            const float scale = __uint_as_float(pair << 16), offset = __uint_as_float(pair & 0xffff0000u);
            float numbers[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) numbers[i] = fmaf(static_cast<float>(static_cast<int>(words[quarter] >> (4 * (i / 2) + 16 * (i % 2)) & 15) - 8), scale, offset);
            if (32 * quarter < left)
                *reinterpret_cast<uint4*>(to + 32 * quarter) = make_uint4(pair_of(numbers[0], numbers[1]), pair_of(numbers[2], numbers[3]),
                                                                         pair_of(numbers[4], numbers[5]), pair_of(numbers[6], numbers[7]));
        }
    }
}
