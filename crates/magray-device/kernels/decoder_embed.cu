// The first rows of the residual stream: rows of the table of tokens, in floats, and what the first norm needs of them.
// Refuses no id: callers check them.
#include "decoder.cuh"
#include "order.cuh"

constexpr int THREADS = 256;
// An id with this bit is the token that was chosen in the named row of the step before.
constexpr unsigned CHOSEN = 1u << 31;

extern "C" __global__ void __launch_bounds__(THREADS)
    decoder_embed(const unsigned* ids, const unsigned* chosen, const unsigned char* table, int form, int stride, int units, float scale,
                  int columns, const Finish finish) {
    __shared__ float squares[THREADS / 32];
    let_next_begin();
    wait_for_previous();
    const int token = blockIdx.x;
    unsigned id = ids[token];
    if (id & CHOSEN) id = chosen[id & ~CHOSEN];
    // What no token was chosen for is no row of the table.
    if (id >= static_cast<unsigned>(finish.outputs)) id = 0;
    float square = 0.0f;
    for (int column = threadIdx.x; column < columns; column += THREADS) {
        const float x = scale * weight_at(table, form, stride, units, id, column);
        static_cast<float*>(finish.out)[size_t(token) * finish.out_stride + column] = x;
        // Rows that go to other devices first have no norm yet.
        if (finish.gain) finish.shadow[size_t(token) * finish.shadow_stride + column] = to_bf16(x * finish.gain[column]);
        square += x * x;
    }
    square = warp_sum(square);
    if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = square;
    __syncthreads();
    if (threadIdx.x == 0 && finish.gain) {
        float sum = 0.0f;
        for (int i = 0; i < THREADS / 32; ++i) sum += squares[i];
        finish.out_parts[token] = sum;
    }
}
