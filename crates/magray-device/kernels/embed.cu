// From ids to the first activations: word, position and type vectors, summed and normalised, a warp a row.
// Checks no id: one outside its table is a bug of the caller. Rows beyond the last token become zero.
#include "rows.cuh"
#include "order.cuh"

// The rows of the tables that a token is the sum of. They hold zeros beyond the last column.
struct TokenRows {
    const NUMBER* word;
    const NUMBER* position;
    const NUMBER* type;
    int quads;

    template <bool EVEN, int HELD>
    __device__ __forceinline__ void fill(float4 (&x)[HELD], int quad) const {
        add_row(x, quad, word, true);
        add_row(x, quad, position, false);
        if (type) {
            add_row(x, quad, type, false);
        }
    }

    template <int HELD>
    __device__ __forceinline__ void add_row(float4 (&x)[HELD], int quad, const NUMBER* row, bool first) const {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const bool inside = quad + 32 * i < quads;
            const float4 y = widen(inside ? load_quad(row + 4 * (quad + 32 * i)) : Quad<NUMBER>{});
            x[i] = first ? y : add(x[i], y);
        }
    }
};

extern "C" __global__ void __launch_bounds__(128, 5)
embed(const int* counts, const unsigned* ids, const unsigned* places, const NUMBER* words, const NUMBER* positions,
      const NUMBER* types, const float* gain, const float* shift, float epsilon, int columns, int stride, int rows,
      NUMBER* out) {
    let_next_begin();
    wait_for_previous();
    const int row = blockIdx.x * 4 + threadIdx.x / 32;
    if (row >= rows) {
        return;
    }
    out += size_t(row) * stride;
    if (row >= counts[0]) {
        for (int column = threadIdx.x % 32 * 4; column < stride; column += 128) {
            store_quad(out + column, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
        }
        return;
    }
    const unsigned place = places[row];
    const TokenRows token{
        words + size_t(ids[row]) * stride,
        positions + size_t(place & 0xffff) * stride,
        types ? types + size_t(place >> 16) * stride : nullptr,
        stride / 4,
    };
    norm_row(RowNorm<NUMBER>{gain, shift, epsilon, columns, out}, token);
}
