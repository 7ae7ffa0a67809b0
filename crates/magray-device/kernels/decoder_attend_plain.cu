// Attention of new tokens to the pages of their sequences, on every GPU and for heads of any size up to 256: a warp has one head of one
// row, a lane a key, then some numbers of the values. Queries are turned already.
#include "decoder_pages.cuh"
#include "order.cuh"

constexpr int WARPS = 4;
constexpr int HEAD_MOST = 256;

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    decoder_attend_plain(const unsigned short* qkv, int stride, unsigned short* out, int out_stride, const Places places, const Layer layer) {
    __shared__ float queries[WARPS][HEAD_MOST];
    let_next_begin();
    wait_for_previous();
    const int lane = threadIdx.x % 32, size = layer.head_size, row = places.rows[blockIdx.x];
    const int head = blockIdx.y * WARPS + threadIdx.x / 32;
    if (row < 0 || head >= layer.heads) return;
    float* query = queries[threadIdx.x / 32];
    for (int i = lane; i < size; i += 32) query[i] = from_bf16(qkv[size_t(row) * stride + head * size + i]);
    __syncwarp();
    const int position = places.positions[row], first = first_seen(layer, position);
    const int kv_head = head / (layer.heads / layer.kv_heads);
    float sums[HEAD_MOST / 32] = {}, largest = -1e30f, total = 0.0f;
    for (int page = first / PAGE; page <= position / PAGE; ++page) {
        const int number = places.pages[places.page_starts[row] + page], token = page * PAGE + lane;
        float score = -__uint_as_float(0x7f800000u);
        if (token >= first && token <= position) {
            const unsigned short* key = keys_of(layer, number, kv_head) + lane * size;
            float dot = 0.0f;
            for (int i = 0; i < size; ++i) dot += query[i] * from_bf16(key[i]);
            score = score_of(layer, dot);
        }
        float most = fmaxf(largest, score);
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2) most = fmaxf(most, __shfl_xor_sync(WHOLE_WARP, most, apart));
        const float shrink = expf(largest - most), share = expf(score - most);
        largest = most;
        total = total * shrink + warp_sum(share);
        const unsigned short* values = values_of(layer, number, kv_head);
#pragma unroll
        for (int i = 0; i < HEAD_MOST / 32; ++i) {
            sums[i] *= shrink;
            const bool is_there = 32 * i + lane < size;
            for (int key = 0; 32 * i < size && key < PAGE; ++key) {
                const float weight = __shfl_sync(WHOLE_WARP, share, key);
                if (is_there) sums[i] += weight * from_bf16(values[(32 * i + lane) * PAGE + key]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < HEAD_MOST / 32; ++i)
        if (32 * i + lane < size) out[size_t(row) * out_stride + head * size + 32 * i + lane] = to_bf16(sums[i] / total);
}
