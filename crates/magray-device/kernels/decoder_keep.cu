// Puts keys and values of parts of prompts into their pages; keys are normalised and turned before. A block has a head of 32 rows, which
// mostly are one page: then its values are turned over on the way. Queries are left to attention.
#include "decoder_pages.cuh"
#include "order.cuh"

constexpr int WARPS = 8;
constexpr int HEAD_MOST = 256;
// Lanes read values of one number of all rows: in different banks.
constexpr int VALUE_STRIDE = HEAD_MOST + 2;

extern "C" __global__ void __launch_bounds__(WARPS * 32) decoder_keep(const unsigned short* qkv, int stride, int count, const Places places, const Layer layer) {
    __shared__ float heads[WARPS][HEAD_MOST];
    __shared__ unsigned short values[PAGE][VALUE_STRIDE];
    __shared__ int slots[PAGE], pages[PAGE];
    let_next_begin();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y, size = layer.head_size;
    const int own = blockIdx.x * PAGE + lane, own_row = own < count ? places.rows[own] : -1;
    // Rows beyond the last have none.
    const int own_position = own_row < 0 ? -1 : places.positions[own_row];
    const int own_page = own_row < 0 ? 0 : places.pages[places.page_starts[own_row] + own_position / PAGE];
    if (warp == 0) {
        slots[lane] = own_position < 0 ? -1 : own_position % PAGE;
        pages[lane] = own_page;
    }
    wait_for_previous();
    float* numbers = heads[warp];
    for (int i = warp; i < PAGE; i += WARPS) {
        const int row = __shfl_sync(WHOLE_WARP, own_row, i), position = __shfl_sync(WHOLE_WARP, own_position, i);
        const int page = __shfl_sync(WHOLE_WARP, own_page, i);
        if (row < 0) continue;
        const unsigned short* key = qkv + size_t(row) * stride + (layer.heads + head) * size;
        const unsigned short* value = key + layer.kv_heads * size;
        for (int k = lane; k < size; k += 32) {
            numbers[k] = from_bf16(key[k]);
            values[i][k] = value[k];
        }
        turn_head(layer, Turn(layer, position), numbers, layer.key_gain, layer.key_epsilon);
        unsigned short* to = keys_of(layer, page, head) + position % PAGE * size;
        for (int k = lane; k < size; k += 32) to[k] = to_bf16(numbers[k]);
        __syncwarp();
    }
    __syncthreads();
    const int slot = slots[lane];
    if (slot < 0) return;
    unsigned short* to = values_of(layer, pages[lane], head) + slot;
    for (int k = warp; k < size; k += WARPS) to[k * PAGE] = values[lane][k];
}
