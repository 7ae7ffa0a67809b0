// What the kernels of decoders share: how a product's sums become a layer's outputs, norms by parts, forms of weights.
// Needs no header of the CUDA toolkit. Knows no tile.
//
// A root mean square norm is taken in two steps. Who writes rows of the residual stream also writes them times the next norm's
// gains in 16 bits (the shadow), and sums of squares of the columns that it wrote (the parts). Who multiplies the shadow with
// weights multiplies the sums with the inverse root. So no kernel reads rows only to normalise them.
#pragma once

#include "numbers.cuh"

constexpr unsigned WHOLE_WARP = 0xffffffffu;

// Tokens of a page of keys and values.
constexpr int PAGE = 32;

#define FINISH_ROWS 0
#define FINISH_GATED 1
#define FINISH_ADD 2
#define FINISH_FLOATS 3

// What follows a product.
struct Finish {
    // ROWS: out = sum + bias, in bf16. GATED: out = activation(gate) * up. ADD: out += sum + bias, in floats. FLOATS: out = sum + bias.
    int kind;
    int activation;
    const float* bias;
    // Sums of squares of the rows that were multiplied, `part_count` a row; none where they are not normalised.
    const float* parts;
    int part_count;
    float inverse_inputs;
    float epsilon;
    // Floats become cap * tanh(x / cap) if it is not 0.
    float cap;
    void* out;
    int out_stride;
    // ADD: where there is a gain, also the shadow and the parts of the rows that are left.
    int shadow_stride;
    const float* gain;
    unsigned short* shadow;
    float* out_parts;
    int out_part_count;
    int tokens;
    int outputs;
    // For the host alone.
    int first_row;
};

__device__ __forceinline__ unsigned short to_bf16(float x) {
#if __CUDA_ARCH__ >= 800
    return narrow<bf16>(x).bits;
#else
    const unsigned bits = __float_as_uint(x);
    // To the nearest, ties to even; what is no number stays none.
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<unsigned short>(bits >> 16 | 0x40);
    return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}

__device__ __forceinline__ float from_bf16(unsigned short x) { return __uint_as_float(unsigned(x) << 16); }

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(WHOLE_WARP, x, apart);
    return x;
}

// The function of a gate: 4 is SiLU, anything else GELU by the hyperbolic tangent.
__device__ __forceinline__ float gate_function(float x, int activation) {
    if (activation == 4) return __fdividef(x, 1.0f + __expf(-x));
    return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

// What a row's sums are multiplied with, by a whole warp.
__device__ __forceinline__ float row_scale(const Finish& finish, int token) {
    if (!finish.parts) return 1.0f;
    const float* parts = finish.parts + size_t(token) * finish.part_count;
    float square = 0.0f;
    for (int i = threadIdx.x % 32; i < finish.part_count; i += 32) square += parts[i];
    return rsqrtf(warp_sum(square) * finish.inverse_inputs + finish.epsilon);
}

// What a lane reads for its output before the sum is known.
struct Before {
    float bias, hidden, gain;
};

__device__ __forceinline__ Before read_before(const Finish& finish, int token, int output, bool is_there) {
    Before before{0.0f, 0.0f, 0.0f};
    if (is_there) {
        if (finish.bias) before.bias = finish.bias[output];
        if (finish.kind == FINISH_ADD) before.hidden = static_cast<const float*>(finish.out)[size_t(token) * finish.out_stride + output];
        if (finish.gain) before.gain = finish.gain[output];
    }
    return before;
}

// Finishes up to 32 outputs of a token, one a lane, by a whole warp. Gates stand 8 lanes before what they gate. `part` is the index of
// these outputs among the parts of a row.
__device__ __forceinline__ void finish_lanes(const Finish& finish, const Before& before, int token, int output, bool is_there, float sum,
                                             float scale, int part) {
    float x = sum * scale + before.bias;
    const size_t row = size_t(token) * finish.out_stride;
    if (finish.kind == FINISH_ADD) {
        x += before.hidden;
        if (is_there) static_cast<float*>(finish.out)[row + output] = x;
        if (finish.gain) {
            if (is_there) finish.shadow[size_t(token) * finish.shadow_stride + output] = to_bf16(x * before.gain);
            const float square = warp_sum(is_there ? x * x : 0.0f);
            if (threadIdx.x % 32 == 0) finish.out_parts[size_t(token) * finish.out_part_count + part] = square;
        }
    } else if (finish.kind == FINISH_GATED) {
        const float up = __shfl_down_sync(WHOLE_WARP, x, 8);
        if (is_there && (output & 8) == 0)
            static_cast<unsigned short*>(finish.out)[row + (output >> 4) * 8 + (output & 7)] = to_bf16(gate_function(x, finish.activation) * up);
    } else if (is_there) {
        if (finish.kind == FINISH_ROWS) {
            static_cast<unsigned short*>(finish.out)[row + output] = to_bf16(x);
        } else {
            static_cast<float*>(finish.out)[row + output] = finish.cap != 0.0f ? finish.cap * tanhf(x / finish.cap) : x;
        }
    }
}

// Weights. Rows of bf16 numbers; or blocks of 8 rows, as the warps of `decoder_stream.cu` read them: lane 4 g + t has 16 bytes of row
// (g >> 1) + 4 (g & 1), so that column n of a product is the same row in all forms.
#define FORM_NUMBERS 0
// 64 inputs a block: numbers of 8 bits (inputs 8 t to 8 t + 7 of both halves), then a float for each half of lane group g's row.
#define FORM_BYTES 1
// 128 inputs a block: numbers of 4 bits, 8 more than what is meant. Lane t has inputs 2 t and 2 t + 1 of each 8: those of a quarter of the
// block in one word, the even ones in its lower half, as the tensor cores take them. Then scale and offset in bf16 for each quarter of lane
// group g's row. From the middle, an offset is small and loses little.
#define FORM_NIBBLES 2
// The same without offsets: of each quarter the scale alone.
#define FORM_CENTRED 3

constexpr int BYTES_INPUTS = 64;
constexpr int BYTES_BLOCK = 512 + 64;
constexpr int NIBBLES_INPUTS = 128;
constexpr int NIBBLES_BLOCK = 512 + 128;
constexpr int CENTRED_BLOCK = 512 + 64;

__device__ __forceinline__ int inputs_of_block(int form) { return form == FORM_BYTES ? BYTES_INPUTS : NIBBLES_INPUTS; }

__device__ __forceinline__ int bytes_of_block(int form) {
    return form == FORM_BYTES ? BYTES_BLOCK : form == FORM_NIBBLES ? NIBBLES_BLOCK : CENTRED_BLOCK;
}

// Scale and offset of a quarter of a row, of a block of 4 bits.
__device__ __forceinline__ float2 quarter_scale(const unsigned char* block, int form, int g, int quarter) {
    if (form == FORM_CENTRED) return make_float2(from_bf16(reinterpret_cast<const unsigned short*>(block + 512)[4 * g + quarter]), 0.0f);
    const unsigned pair = reinterpret_cast<const unsigned*>(block + 512)[4 * g + quarter];
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

// One weight; `units` are the blocks of a row.
__device__ __forceinline__ float weight_at(const unsigned char* weights, int form, int stride, int units, int row, int k) {
    if (form == FORM_NUMBERS) return from_bf16(reinterpret_cast<const unsigned short*>(weights)[size_t(row) * stride + k]);
    const int r = row & 7, g = (r & 3) << 1 | r >> 2;
    const int unit = k / inputs_of_block(form), left = k % inputs_of_block(form), group = left / 32, i = left % 32;
    const unsigned char* block = weights + (size_t(row >> 3) * units + unit) * bytes_of_block(form);
    if (form == FORM_BYTES) {
        const float scale = reinterpret_cast<const float*>(block + 512)[2 * g + group];
        return static_cast<float>(static_cast<signed char>(block[(4 * g + i / 8) * 16 + 8 * group + i % 8])) * scale;
    }
    const unsigned word = reinterpret_cast<const unsigned*>(block)[(4 * g + i % 8 / 2) * 4 + group];
    const float2 scale = quarter_scale(block, form, g, group);
    return from_bf16(to_bf16(fmaf(static_cast<float>(static_cast<int>(word >> (4 * (i / 8) + 16 * (i & 1)) & 15) - 8), scale.x, scale.y)));
}
