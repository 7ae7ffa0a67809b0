// Rules tokens out: logits of tokens whose bit is not set become the smallest number there is. Blocks share a row; rows without a mask stay.
// What is no finite number stays as it is: the kernel that chooses must see it.
#include "decoder.cuh"
#include "order.cuh"

constexpr int THREADS = 256;
constexpr unsigned NONE = 0xffffffffu;
constexpr float RULED_OUT = -3.402823466e38f;

// `masks` begins with the place of each row's mask, or NONE; `first` words on there are the masks, `words` each.
extern "C" __global__ void __launch_bounds__(THREADS)
    decoder_mask(float* logits, int vocabulary, const unsigned* masks, int first, int words) {
    let_next_begin();
    wait_for_previous();
    const unsigned place = masks[blockIdx.y];
    if (place == NONE) return;
    const unsigned* mask = masks + first + size_t(place) * words;
    float* of_row = logits + size_t(blockIdx.y) * vocabulary;
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < vocabulary; i += gridDim.x * THREADS) {
        // A warp has the tokens of one word.
        if (mask[i / 32] >> (i % 32) & 1u) continue;
        if (fabsf(of_row[i]) < __uint_as_float(0x7f800000u)) of_row[i] = RULED_OUT;
    }
}
