// Normalises and turns queries and keys in their rows, and puts keys and values into pages. A warp a head of a row.
// Waits for nobody: attention is the next kernel.
#include "decoder_pages.cuh"
#include "order.cuh"

constexpr int WARPS = 8;
constexpr int HEAD_MOST = 256;

extern "C" __global__ void __launch_bounds__(WARPS * 32) decoder_append(unsigned short* qkv, int stride, const Places places, const Layer layer) {
    __shared__ float heads[WARPS][HEAD_MOST];
    let_next_begin();
    const int row = places.rows[blockIdx.x];
    // Rows beyond the last have none.
    if (row < 0) return;
    const int lane = threadIdx.x % 32, position = places.positions[row];
    const int page = places.pages[places.page_starts[row] + position / PAGE];
    float* own = heads[threadIdx.x / 32];
    const Turn turn(layer, position);
    wait_for_previous();
    const int head = blockIdx.y * WARPS + threadIdx.x / 32;
    if (head < layer.heads + layer.kv_heads) {
        unsigned short* numbers = qkv + size_t(row) * stride + head * layer.head_size;
        for (int i = lane; i < layer.head_size; i += 32) own[i] = from_bf16(numbers[i]);
        if (head < layer.heads) {
            turn_head(layer, turn, own, layer.query_gain, layer.query_epsilon);
            for (int i = lane; i < layer.head_size; i += 32) numbers[i] = to_bf16(own[i]);
        } else {
            turn_head(layer, turn, own, layer.key_gain, layer.key_epsilon);
            keep(layer, page, position % PAGE, head - layer.heads, own, numbers + layer.kv_heads * layer.head_size);
        }
    }
}
