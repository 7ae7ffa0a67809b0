// Attention of parts of prompts to the pages of their sequences: a warp has 16 queries of one head, on its own.
// Queries are turned already, and the new keys and values are in their pages. HEAD is the size of a head.
#include "decoder_attend.cuh"
#include "order.cuh"

constexpr int WARPS = 4;

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    decoder_attend_prompt(const unsigned short* qkv, int stride, unsigned short* out, int out_stride, const Places places, const Layer layer) {
    let_next_begin();
    wait_for_previous();
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    // Its first row, how many it has, and the position of the first.
    const int* place = places.rows + 4 * (blockIdx.x * WARPS + threadIdx.x / 32);
    const int row = place[0], count = place[1], position = place[2], head = blockIdx.y;
    if (count <= 0) return;
    const int* pages = places.pages + place[3];
    Attending attending;
    int first[2], last[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const bool is_there = g + 8 * half < count;
        const unsigned short* query = qkv + size_t(row + g + 8 * half) * stride + head * HEAD + 8 * t;
#pragma unroll
        for (int i = 0; i < HEAD / 32; ++i) attending.queries[i][half] = is_there ? load_piece(query + 32 * i) : make_uint4(0, 0, 0, 0);
        last[half] = position + g + 8 * half;
        first[half] = first_seen(layer, last[half]);
    }
    const int kv_head = head / (layer.heads / layer.kv_heads);
    for (int page = first_seen(layer, position) / PAGE; page <= (position + count - 1) / PAGE; ++page) {
        const int number = pages[page];
        Page held;
        held.load(keys_of(layer, number, kv_head), values_of(layer, number, kv_head));
        attending.attend(layer, held, page * PAGE, first, last);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float inverse = 1.0f / attending.whole(half);
        if (g + 8 * half >= count) continue;
        unsigned short* to = out + size_t(row + g + 8 * half) * out_stride + head * HEAD + 2 * t;
#pragma unroll
        for (int i = 0; i < HEAD / 8; ++i)
            *reinterpret_cast<unsigned*>(to + 8 * i) = pack<bf16>(attending.sums[i][2 * half] * inverse, attending.sums[i][2 * half + 1] * inverse);
    }
}
