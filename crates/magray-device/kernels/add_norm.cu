// What follows a product that goes back to the hidden state: hidden = norm(hidden + bias + product), a warp a row.
// Adds the parts of a split product in their order, never by atomics: the same input gives the same bits.
#include "rows.cuh"
#include "order.cuh"

// A row of the hidden state with what is added to it.
struct Sum {
    const NUMBER* hidden;
    const float* bias;
    const float* product;
    int parts;
    long long plane;
    int columns;

    template <bool EVEN, int HELD>
    __device__ __forceinline__ void fill(float4 (&x)[HELD], int quad) const {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const int column = 4 * (quad + 32 * i);
            x[i] = widen(column < columns ? load_quad(hidden + column) : Quad<NUMBER>{});
        }
        if (bias) {
            add_floats<EVEN>(x, quad, bias);
        }
        // Several parts at a time where registers allow it, so that their loads wait together.
#pragma unroll(HELD > 3 ? 1 : 4)
        for (int part = 0; part < parts; part++) {
            add_floats<EVEN>(x, quad, product + part * plane);
        }
    }

    template <bool EVEN, int HELD>
    __device__ __forceinline__ void add_floats(float4 (&x)[HELD], int quad, const float* row) const {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            x[i] = add(x[i], floats_at<EVEN>(row, 4 * (quad + 32 * i), columns));
        }
    }
};

extern "C" __global__ void __launch_bounds__(128, 6)
add_norm(const float* sums, int parts, long long plane, const float* bias, const float* gain, const float* shift,
         float epsilon, int rows, int columns, int stride, NUMBER* hidden) {
    let_next_begin();
    wait_for_previous();
    const int row = blockIdx.x * 4 + threadIdx.x / 32;
    if (row >= rows) {
        return;
    }
    hidden += size_t(row) * stride;
    const Sum sum{hidden, bias, sums + size_t(row) * stride, parts, plane, columns};
    norm_row(RowNorm<NUMBER>{gain, shift, epsilon, columns, hidden}, sum);
}
