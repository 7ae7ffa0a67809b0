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
#define SLICE (BM * BN >= 128 * 128 ? 64 : 128)
#endif
#ifndef STAGES
#if __CUDA_ARCH__ >= 800
#define STAGES (3)
#else
#define STAGES (2)
#endif
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

constexpr int THREADS = WARPS_M * WARPS_N * 32;
constexpr int STAGE_BYTES = (BM + BN) * SLICE;
// Inputs are read in chunks of 16 bytes. Parts begin at multiples of PART chunks, whatever SLICE is.
constexpr int CHUNK = 16;
constexpr int NUMBERS = CHUNK / int(sizeof(Input));
constexpr int PART = 128 / CHUNK;
// The sums that a warp makes.
constexpr int WARP_ROWS = BM / WARPS_M;
constexpr int WARP_COLUMNS = BN / WARPS_N;
// Neighbouring columns that a product leaves in one thread, and how many of them lie side by side once the weights' rows
// are permuted on their way into shared memory: enough for stores of 16 bytes.
constexpr int PAIR = KIND == F32 ? 1 : 2;
constexpr int WIDEST = WARP_COLUMNS / 8 * PAIR;
constexpr int RUN = 16 / int(sizeof(Output)) < WIDEST ? 16 / int(sizeof(Output)) : WIDEST;
constexpr int GROUP = RUN / PAIR * 8;

static_assert(SLICE == 64 || SLICE == 128, "the swizzle knows these");
static_assert(WARP_ROWS % 16 == 0 && WARP_COLUMNS % 16 == 0 && WARP_COLUMNS % GROUP == 0, "whole fragments");

__device__ __forceinline__ int divide_up(int x, int by) { return (x + by - 1) / by; }

// Where a chunk lies: eight rows of one chunk, as products read them, and all chunks of a row, as copies write them, touch
// all banks once.
__device__ __forceinline__ int place(int row, int chunk) {
    return row * SLICE + (chunk ^ (SLICE == 128 ? row & 7 : row >> 1 & 3)) * CHUNK;
}

// The column of the tile whose weights lie in row `row` of the tile in shared memory.
__device__ __forceinline__ int column_at(int row) {
    const int within = row % GROUP;
    return row - within + within % 8 / PAIR * RUN + within / 8 * PAIR + within % PAIR;
}

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

// Brings slices of the inputs into the stages, several ahead of the products.
struct Feed {
    static constexpr int CHUNKS = SLICE / CHUNK;
    static constexpr int TALL = THREADS / CHUNKS;
    static constexpr int PASSES = (BM + BN) / TALL;
    static_assert(BM % TALL == 0 && BN % TALL == 0, "a pass copies rows of one matrix");

    // From `from` on, in chunks of a row's `chunks`.
    __device__ __forceinline__ Feed(const Rows& x, const Rows& weights, int from, int chunks, int slices)
        : x(x.numbers), weights(weights.numbers), slices(slices) {
        const int chunk = threadIdx.x % CHUNKS;
        const int slot = threadIdx.x / CHUNKS;
        to = place(slot, chunk);
        left = chunks - from - chunk;
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const int row = slot + pass * TALL;
            at[pass] = from + chunk + (pass * TALL < BM ? x.chunk_at(row) : weights.chunk_at(column_at(row - BM)));
        }
    }

    // Asks for the next slice; it is there after `settle` and `await`.
    __device__ __forceinline__ void request(unsigned stage) {
        filling = stage + to;
        if (slices-- <= 0) {
            return;
        }
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            // Chunks are counted in 32 bits, for registers; bytes would not fit.
            const uint4* const from = (pass * TALL < BM ? x : weights) + at[pass];
#if __CUDA_ARCH__ >= 800
            copy_chunk(filling + pass * TALL * SLICE, from, left > 0);
#else
            held[pass] = left > 0 ? *from : make_uint4(0, 0, 0, 0);
#endif
            at[pass] += CHUNKS;
        }
        left -= CHUNKS;
    }

    __device__ __forceinline__ void settle() {
#if __CUDA_ARCH__ >= 800
        close_group();
#else
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            store_chunk(filling + pass * TALL * SLICE, held[pass]);
        }
#endif
    }

    // The oldest slice asked for and not yet awaited is there for all threads, and all are done with the one before it.
    __device__ __forceinline__ void await() {
#if __CUDA_ARCH__ >= 800
        await_groups<STAGES - 2>();
#endif
        __syncthreads();
    }

    const uint4* x;
    const uint4* weights;
    int slices;
    int left;
    int to;
    unsigned filling;
    unsigned at[PASSES];
#if __CUDA_ARCH__ < 800
    uint4 held[PASSES] = {};
#endif
};

#if KIND == F32
// A thread's sums on plain cores. The products of CARRY_BYTES are summed by themselves before they join the rest: one long
// chain of additions would lose a digit.
struct Tile {
    static constexpr int ROWS = WARP_ROWS / 4;
    static constexpr int COLUMNS = WARP_COLUMNS / 8;
    static constexpr int CARRY_BYTES = 256;

    __device__ __forceinline__ explicit Tile(int warp, int lane)
        : row(warp / WARPS_N * WARP_ROWS + lane / 8 * ROWS),
          column(warp % WARPS_N * WARP_COLUMNS + lane % 8 * RUN),
          weights_row(BM + warp % WARPS_N * WARP_COLUMNS + lane % 8) {}

    __device__ __forceinline__ void start(int i, int j, float sum) {
        sums[i][j] = sum;
        fresh[i][j] = 0.0f;
    }

    __device__ __forceinline__ void load_first(unsigned) {}

    template <class Await>
    __device__ __forceinline__ void take(unsigned stage, unsigned, int bytes_done, Await await) {
#pragma unroll
        for (int chunk = 0; chunk < SLICE / CHUNK; ++chunk) {
            float4 a[ROWS];
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                a[i] = load_floats(stage + place(row + i, chunk));
            }
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                const float4 b = load_floats(stage + place(weights_row + j * 8, chunk));
#pragma unroll
                for (int i = 0; i < ROWS; ++i) {
                    fresh[i][j] = fmaf(a[i].w, b.w, fmaf(a[i].z, b.z, fmaf(a[i].y, b.y, fmaf(a[i].x, b.x, fresh[i][j]))));
                }
            }
        }
        if (bytes_done % CARRY_BYTES == 0) {
            carry();
        }
        await();
    }

    __device__ __forceinline__ void carry() {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                sums[i][j] += fresh[i][j];
                fresh[i][j] = 0.0f;
            }
        }
    }

    __device__ __forceinline__ int row_of(int i) const { return row + i; }
    __device__ __forceinline__ float sum(int i, int j) const { return sums[i][j] + fresh[i][j]; }

    int row;
    int column;
    int weights_row;
    float sums[ROWS][COLUMNS];
    float fresh[ROWS][COLUMNS];
};
#else
// A thread's sums on tensor cores. The fragments of the next step are on their way while the tensor cores have this one's.
struct Tile {
    static constexpr int ROWS = WARP_ROWS / 8;
    static constexpr int COLUMNS = WARP_COLUMNS / 8 * 2;
    static constexpr int STEP = 2;
    static constexpr int STEPS = SLICE / CHUNK / STEP;
    static_assert(STEPS % 2 == 0, "a slice begins with the first of the two sets of fragments");

    __device__ __forceinline__ explicit Tile(int warp, int lane)
        : row(warp / WARPS_N * WARP_ROWS + lane / 4),
          column(warp % WARPS_N * WARP_COLUMNS + lane % 4 * RUN),
          x_place(place(warp / WARPS_N * WARP_ROWS + lane % 16, lane / 16)),
          w_place(place(BM + warp % WARPS_N * WARP_COLUMNS + lane / 16 * 8 + lane % 8, lane / 8 % 2)) {}

    __device__ __forceinline__ void start(int i, int j, Sum sum) { sums[i / 2][j / 2][i % 2 * 2 + j % 2] = sum; }

    __device__ __forceinline__ void load_first(unsigned stage) { load(stage, 0, 0); }

    template <class Await>
    __device__ __forceinline__ void take(unsigned stage, unsigned next, int, Await await) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if (step + 1 < STEPS) {
                load(stage, step + 1, (step + 1) % 2);
            } else {
                await();
                load(next, 0, 0);
            }
#pragma unroll
            for (int m = 0; m < WARP_ROWS / 16; ++m) {
#pragma unroll
                for (int n = 0; n < WARP_COLUMNS / 8; ++n) {
                    multiply(sums[m][n], x[step % 2][m], w[step % 2][n / 2][n % 2 * 2], w[step % 2][n / 2][n % 2 * 2 + 1]);
                }
            }
        }
    }

    // A step further on in a row flips bits of the place alone: rows begin at multiples of SLICE.
    __device__ __forceinline__ void load(unsigned stage, int step, int set) {
#pragma unroll
        for (int m = 0; m < WARP_ROWS / 16; ++m) {
            load_matrices(x[set][m], stage + (x_place ^ step * STEP * CHUNK) + m * 16 * SLICE);
        }
#pragma unroll
        for (int n = 0; n < WARP_COLUMNS / 16; ++n) {
            load_matrices(w[set][n], stage + (w_place ^ step * STEP * CHUNK) + n * 16 * SLICE);
        }
#if KIND == TF32
#pragma unroll
        for (int part = 0; part < 4; ++part) {
#pragma unroll
            for (int m = 0; m < WARP_ROWS / 16; ++m) {
                x[set][m][part] = round_input(x[set][m][part]);
            }
#pragma unroll
            for (int n = 0; n < WARP_COLUMNS / 16; ++n) {
                w[set][n][part] = round_input(w[set][n][part]);
            }
        }
#endif
    }

    __device__ __forceinline__ int row_of(int i) const { return row + i * 8; }
    __device__ __forceinline__ Sum sum(int i, int j) const { return sums[i / 2][j / 2][i % 2 * 2 + j % 2]; }

    int row;
    int column;
    int x_place;
    int w_place;
    Sum sums[WARP_ROWS / 16][WARP_COLUMNS / 8][4];
    unsigned x[2][WARP_ROWS / 16][4];
    unsigned w[2][WARP_COLUMNS / 16][4];
};
#endif

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

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_mma(const Input* __restrict__ x, int x_stride, const Input* __restrict__ weights, int w_stride, const float* __restrict__ x_scales,
             const float* __restrict__ w_scales, const float* __restrict__ bias, void* __restrict__ out, int out_stride, int rows, int columns,
             int inputs, int parts, long long plane) {
    let_next_begin();
    wait_for_previous();
#if STAGES * (BM + BN) * SLICE > 49152
    extern __shared__ __align__(128) char stages[];
#else
    __shared__ __align__(128) char stages[STAGES * STAGE_BYTES];
#endif
    const int row = blockIdx.y * BM;
    const int column = blockIdx.x * BN;

    // This block's part of the inputs, in chunks. The last parts may be empty.
    const int chunks = divide_up(inputs, NUMBERS);
    const int share = divide_up(divide_up(chunks, PART), parts) * PART;
    const int from = blockIdx.z * share;
    const int slices = divide_up(max(0, min(share, chunks - from)), Feed::CHUNKS);

    const unsigned begin = shared_address(stages);
    const unsigned end = begin + STAGES * STAGE_BYTES;
    Feed feed(Rows{reinterpret_cast<const uint4*>(x), x_stride / NUMBERS, row, rows},
              Rows{reinterpret_cast<const uint4*>(weights), w_stride / NUMBERS, column, columns}, from, chunks, slices);
#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ++ahead) {
        feed.request(begin + ahead * STAGE_BYTES);
        feed.settle();
    }

    Tile tile(threadIdx.x / 32, threadIdx.x % 32);
    // Sums of floats begin with the bias: it arrives while the first slices do.
#pragma unroll
    for (int j = 0; j < Tile::COLUMNS; ++j) {
        const int at = column + tile.column + j / RUN * GROUP + j % RUN;
        const Sum first = !SUMS && KIND != INT8 && bias && at < columns ? bias[at] : 0;
#pragma unroll
        for (int i = 0; i < Tile::ROWS; ++i) {
            tile.start(i, j, first);
        }
    }

    unsigned stage = begin;
    unsigned free = begin + (STAGES - 1) * STAGE_BYTES;
    feed.await();
    tile.load_first(stage);
    for (int slice = 0; slice < slices; ++slice) {
        const unsigned next = stage + STAGE_BYTES == end ? begin : stage + STAGE_BYTES;
        feed.request(free);
        tile.take(stage, next, (slice + 1) * SLICE, [&] {
            feed.settle();
            feed.await();
        });
        free = stage;
        stage = next;
    }

    Output* const to = static_cast<Output*>(out) + (SUMS ? blockIdx.z * plane : 0);
#pragma unroll
    for (int group = 0; group < Tile::COLUMNS / RUN; ++group) {
        const int first = column + tile.column + group * GROUP;
        if (first >= columns) {
            break;
        }
#if KIND == INT8
        float scales[RUN];
        float shifts[RUN];
#pragma unroll
        for (int j = 0; j < RUN; ++j) {
            scales[j] = first + j < columns ? w_scales[first + j] : 0.0f;
            shifts[j] = !SUMS && bias && first + j < columns ? bias[first + j] : 0.0f;
        }
#endif
#pragma unroll
        for (int i = 0; i < Tile::ROWS; ++i) {
            const int at = row + tile.row_of(i);
            if (at >= rows) {
                continue;
            }
            float numbers[RUN];
#if KIND == INT8
            const float scale = x_scales[at];
#endif
#pragma unroll
            for (int j = 0; j < RUN; ++j) {
                float number = tile.sum(i, group * RUN + j);
#if KIND == INT8
                number = fmaf(number * scale, scales[j], shifts[j]);
#endif
#if !SUMS
                number = activate(number);
#endif
                // The columns up to the stride hold zeros.
                numbers[j] = first + j < columns ? number : 0.0f;
            }
            store(to + static_cast<long long>(at) * out_stride + first, numbers);
        }
    }
}
