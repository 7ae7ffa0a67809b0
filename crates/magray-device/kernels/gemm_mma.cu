// A linear layer on every GPU from sm_75 on: out = activate(x weights^T + bias), or the sums alone with the inputs in parts.
// Refuses strides that are no multiple of 16 numbers and pointers not aligned to 16 bytes; knows nothing of texts or counts.
//
// KIND 1 bf16, 2 f16, 3 tf32 and 5 int8 use tensor cores, 4 is f32 on plain cores. A block of WARPS_M x WARPS_N warps makes a
// tile of BM x BN sums; grid (ceil(columns / BN), ceil(rows / BM), parts). The sums of a number are added in the same order
// whatever the tile, so a row has the same bits in every batch, as long as `parts` is the same.
// Above 48 KiB of stages the launch gives STAGES * (BM + BN) * SLICE bytes of dynamic shared memory; below that none.
#include "activation.cuh"
#include "mma.cuh"
#include "numbers.cuh"
#include "order.cuh"

#ifndef WARPS_M
#define WARPS_M (BM >= 128 ? 4 : BM >= 32 ? 2 : 1)
#endif
#ifndef WARPS_N
#define WARPS_N (BM >= 32 ? 2 : 4)
#endif
// Bytes of the inputs that a stage holds of every row.
#ifndef SLICE
#define SLICE (BM * BN > 64 * 64 ? 64 : 128)
#endif
#ifndef STAGES
#if __CUDA_ARCH__ >= 800
#define STAGES 3
#else
#define STAGES 2
#endif
#endif
// Blocks that should fit into a multiprocessor at once: what the registers of the largest tile are held down for.
#if KIND != F32 && __CUDA_ARCH__ >= 800 && BM * BN >= 128 * 128
#define BLOCKS 2
#else
#define BLOCKS 1
#endif

#if KIND == BF16
typedef bf16 Input;
#elif KIND == F16
typedef f16 Input;
#elif KIND == INT8
typedef signed char Input;
#else
typedef float Input;
#endif

#if SUMS
typedef float Output;
#else
typedef NUMBER Output;
#endif

#include "gemm_tile.cuh"

constexpr int THREADS = WARPS_M * WARPS_N * 32;
constexpr int STAGE_BYTES = (BM + BN) * SLICE;
constexpr int NUMBERS = CHUNK / int(sizeof(Input));
// Parts of the inputs begin at multiples of this many chunks, whatever SLICE is.
constexpr int PART = 128 / CHUNK;

__device__ __forceinline__ int divide_up(int x, int by) { return (x + by - 1) / by; }

// The rows of a matrix from `first` on. Beyond the last one stands for all: their sums are never stored.
struct Rows {
    __device__ __forceinline__ unsigned chunk_at(int row) const {
        return static_cast<unsigned>(min(first + row, count - 1)) * static_cast<unsigned>(stride);
    }

    const uint4* numbers;
    int stride;
    int first;
    int count;
};

// Brings slices of the inputs into the stages, ahead of the products: through registers where the GPU cannot copy by itself.
struct Feed {
    static constexpr int CHUNKS = SLICE / CHUNK;
    static constexpr int TALL = THREADS / CHUNKS;
    static constexpr int X_PASSES = BM / TALL;
    static constexpr int PASSES = (BM + BN) / TALL;
    static_assert(BM % TALL == 0 && BN % TALL == 0, "a pass copies rows of one matrix");

    // From chunk `from` of each row's `chunks` on.
    __device__ __forceinline__ Feed(const Rows& x, const Rows& weights, int from, int chunks) : x(x.numbers), weights(weights.numbers) {
        const int chunk = threadIdx.x % CHUNKS;
        const int slot = threadIdx.x / CHUNKS;
        to = place(slot, chunk);
        left = chunks - from - chunk;
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const int row = slot + pass * TALL;
            at[pass] = from + chunk + (pass < X_PASSES ? x.chunk_at(row) : weights.chunk_at(column_at(row - BM)));
        }
    }

    // Asks for x's or the weights' rows of the slice that is `ahead` of the next.
    __device__ __forceinline__ void ask_x(unsigned stage, int ahead) { ask<0, X_PASSES>(stage, ahead); }
    __device__ __forceinline__ void ask_weights(unsigned stage, int ahead) { ask<X_PASSES, PASSES>(stage, ahead); }

    template <int FIRST, int END>
    __device__ __forceinline__ void ask(unsigned stage, int ahead) {
        const bool inside = left > ahead * CHUNKS;
#pragma unroll
        for (int pass = FIRST; pass < END; ++pass) {
            // Chunks are counted in 32 bits, to save registers; bytes would not fit.
            const uint4* const from = (pass < X_PASSES ? x : weights) + (at[pass] + ahead * CHUNKS);
#if __CUDA_ARCH__ >= 800
            begin_copy(stage + to + pass * TALL * SLICE, from, inside);
#else
            held[pass] = inside ? *from : make_uint4(0, 0, 0, 0);
#endif
        }
    }

    __device__ __forceinline__ void advance(int slices) {
        left -= slices * CHUNKS;
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            at[pass] += slices * CHUNKS;
        }
    }

    // Ends the asking for a slice, also where there was none left to ask for.
    __device__ __forceinline__ void settle(unsigned stage, bool asked) {
#if __CUDA_ARCH__ >= 800
        close_copies();
#else
        static_assert(STAGES == 2, "registers hold one slice");
        if (asked) {
#pragma unroll
            for (int pass = 0; pass < PASSES; ++pass) {
                store_chunk(stage + to + pass * TALL * SLICE, held[pass]);
            }
        }
#endif
    }

    // The oldest slice settled and not yet awaited is there for all threads, and all are done with the one before it.
    __device__ __forceinline__ void await() {
#if __CUDA_ARCH__ >= 800
        wait_for_copies<STAGES - 2>();
#endif
        __syncthreads();
    }

    const uint4* x;
    const uint4* weights;
    int left;
    int to;
    unsigned at[PASSES];
#if __CUDA_ARCH__ < 800
    uint4 held[PASSES];
#endif
};

#if KIND == INT8
// What turns a thread's sums of bytes into numbers. A row's second number is what its byte 0 is worth, a column's the sum of
// its weights: what their product adds belongs to all the inputs, so that the first part alone has it.
struct Scales {
    __device__ __forceinline__ void load_rows(const Tile& tile, const Rows& x, const float2* scales) {
#pragma unroll
        for (int i = 0; i < Tile::ROWS; ++i) {
            rows[i] = scales[min(x.first + tile.row_of(i), x.count - 1)];
            rows[i].y = blockIdx.z == 0 ? rows[i].y : 0.0f;
        }
    }

    // Columns from..end of the thread's.
    __device__ __forceinline__ void load_columns(int from, int end, const Tile& tile, const Rows& weights, const float2* scales,
                                                 const float* bias) {
#pragma unroll
        for (int j = from; j < end; ++j) {
            const int column = min(weights.first + tile.column_of(j), weights.count - 1);
            columns[j] = scales[column];
            shifts[j] = bias ? bias[column] : 0.0f;
        }
    }

    __device__ __forceinline__ float apply(int sum, int i, int j) const {
        return fmaf(float(sum) * rows[i].x, columns[j].x, fmaf(rows[i].y, columns[j].y, shifts[j]));
    }

    float2 rows[Tile::ROWS];
    float2 columns[Tile::COLUMNS];
    float shifts[Tile::COLUMNS];
};
#else
// Sums of floats are numbers already, and began with the bias.
struct Scales {
    __device__ __forceinline__ void load_rows(const Tile&, const Rows&, const float2*) {}
    __device__ __forceinline__ void load_columns(int, int, const Tile&, const Rows&, const float2*, const float*) {}
    __device__ __forceinline__ float apply(float sum, int, int) const { return sum; }
};
#endif
// Small tiles have registers to hold scales from the start; large ones load them when the sums are done.
constexpr bool SCALES_EARLY = BM * BN <= 64 * 64;

// Stores a run of numbers side by side at once.
template <class T>
__device__ __forceinline__ void store(T* to, const float (&numbers)[RUN]) {
    constexpr int WORDS = RUN * int(sizeof(T)) / 4;
    unsigned words[WORDS];
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
        if constexpr (sizeof(T) == 4) {
            words[i] = __float_as_uint(numbers[i]);
        } else {
            words[i] = pack<T>(numbers[i * 2], numbers[i * 2 + 1]);
        }
    }
    if constexpr (WORDS == 4) {
        *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
        *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    gemm_mma(const Input* x, int x_stride, const Input* __restrict__ weights, int w_stride, const float2* x_scales,
             const float2* __restrict__ w_scales, const float* __restrict__ bias, void* out, int out_stride, int rows, int columns,
             int inputs, int parts, long long plane) {
    let_next_begin();
#if STAGES * (BM + BN) * SLICE > 49152
    extern __shared__ __align__(128) char stages[];
#else
    __shared__ __align__(128) char stages[STAGES * STAGE_BYTES];
#endif
    const unsigned begin = shared_address(stages);
    const unsigned end = begin + STAGES * STAGE_BYTES;
    const Rows of_x{reinterpret_cast<const uint4*>(x), x_stride / NUMBERS, static_cast<int>(blockIdx.y) * BM, rows};
    const Rows of_weights{reinterpret_cast<const uint4*>(weights), w_stride / NUMBERS, static_cast<int>(blockIdx.x) * BN, columns};

    // This block's part of the inputs, in chunks. The last parts may be empty.
    const int chunks = divide_up(inputs, NUMBERS);
    const int share = divide_up(divide_up(chunks, PART), parts) * PART;
    const int from = blockIdx.z * share;
    const int slices = divide_up(max(0, min(share, chunks - from)), Feed::CHUNKS);

    // Weights and bias do not come from the kernel ahead: the first of them are fetched while that one still runs.
    Feed feed(of_x, of_weights, from, chunks);
#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ++ahead) {
        if (ahead < slices) {
            feed.ask_weights(begin + ahead * STAGE_BYTES, ahead);
        }
    }
    const float* const added = SUMS ? nullptr : bias;
    Tile tile(threadIdx.x / 32, threadIdx.x % 32);
#pragma unroll
    for (int j = 0; j < Tile::COLUMNS; ++j) {
        const Sum first = KIND != INT8 && added ? added[min(of_weights.first + tile.column_of(j), columns - 1)] : 0;
#pragma unroll
        for (int i = 0; i < Tile::ROWS; ++i) {
            tile.start(i, j, first);
        }
    }

    wait_for_previous();
#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ++ahead) {
        if (ahead < slices) {
            feed.ask_x(begin + ahead * STAGE_BYTES, ahead);
        }
        feed.settle(begin + ahead * STAGE_BYTES, ahead < slices);
    }
    feed.advance(STAGES - 1);
    Scales scales;
    if (SCALES_EARLY) {
        scales.load_rows(tile, of_x, x_scales);
        scales.load_columns(0, Tile::COLUMNS, tile, of_weights, w_scales, added);
    }

    unsigned stage = begin;
    unsigned free = begin + (STAGES - 1) * STAGE_BYTES;
    feed.await();
    tile.load_first(stage);
    for (int slice = 0; slice < slices; ++slice) {
        const unsigned next = stage + STAGE_BYTES == end ? begin : stage + STAGE_BYTES;
        const bool more = slice + STAGES - 1 < slices;
        if (more) {
            feed.ask_x(free, 0);
            feed.ask_weights(free, 0);
            feed.advance(1);
        }
        tile.take(stage, next, (slice + 1) * SLICE, [&] {
            feed.settle(free, more);
            feed.await();
        });
        free = stage;
        stage = next;
    }

    if (!SCALES_EARLY) {
        scales.load_rows(tile, of_x, x_scales);
    }
    Output* const to = static_cast<Output*>(out) + (SUMS ? blockIdx.z * plane : 0);
#pragma unroll
    for (int j = 0; j < Tile::COLUMNS; j += RUN) {
        const int column = of_weights.first + tile.column_of(j);
        if (!SCALES_EARLY) {
            scales.load_columns(j, j + RUN, tile, of_weights, w_scales, added);
        }
#pragma unroll
        for (int i = 0; i < Tile::ROWS; ++i) {
            const int row = of_x.first + tile.row_of(i);
            if (row < rows && column < columns) {
                float numbers[RUN];
#pragma unroll
                for (int k = 0; k < RUN; ++k) {
                    const float number = scales.apply(tile.sum(i, j + k), i, j + k);
                    // A row's columns up to its stride hold zeros.
                    numbers[k] = column + k >= columns ? 0.0f : SUMS ? number : activate(number);
                }
                store(to + static_cast<long long>(row) * out_stride + column, numbers);
            }
        }
    }
}
