// Attention within each text, a head and 64 of its queries a block, by matrix instructions and an online softmax.
// Takes 16-bit numbers and heads of 32, 64 or 128 (HEAD), with biases by distance if BIAS is 1; reads nothing of a neighbour text, not even to discard it.
#include "instructions.cuh"
#include "order.cuh"

constexpr int THREADS = 128;
// Queries of a block: 16 a warp.
constexpr int QUERIES = THREADS / 2;
constexpr int ROW_BYTES = 2 * HEAD;
// Pieces of 16 bytes, the unit of all copies.
constexpr int ROW_PIECES = HEAD / 8;
// Keys of a chunk. More of them would need more registers, fewer would scale the sums more often.
#ifndef KEYS
#define KEYS (HEAD == 128 ? 32 : 64)
#endif
// Chunks that are on their way or worked on: the keys of a common text at once, in the 48 KiB that need no asking for.
constexpr int CHUNKS = (HEAD == 128 ? 64 : 128) / KEYS;
// Blocks that shall share a multiprocessor, which bounds the registers.
#ifndef RESIDENT
#if __CUDA_ARCH__ < 800
// There shared memory is the bound.
#define RESIDENT 1
#else
#define RESIDENT (HEAD == 32 ? 6 : HEAD == 64 ? 4 : 2)
#endif
#endif
constexpr unsigned VALUES_AT = KEYS * ROW_BYTES;
constexpr unsigned NEAR_AT = 2 * VALUES_AT;
constexpr unsigned CHUNK_BYTES = NEAR_AT + THREADS * 4;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr float LOG2_E = 1.44269504f;

// Where a piece lies in the rows of a chunk. Pieces change places from row to row so that eight rows of one piece
// (values), and two rows of four (keys), are in eight different places of 128 bytes: no two share a bank.
__device__ __forceinline__ unsigned piece_at(int row, int piece) {
    const int turn = HEAD == 32 ? row >> 1 & 3 : (row & 1) << 2 | (row >> 1 & 3);
    return row * ROW_BYTES + (piece ^ turn) * 16;
}

// Aligned to the longest row. A chunk holds keys, values, and biases by distance: from that of the first key to the
// last query up to that of the last key to the first query.
struct alignas(256) Chunks {
    unsigned char bytes[CHUNKS * CHUNK_BYTES];
};

// A thread copies the same piece of every ROWS_APART-th row.
constexpr int ROWS_APART = THREADS / ROW_PIECES;

__device__ __forceinline__ int own_row() { return threadIdx.x / ROW_PIECES; }
__device__ __forceinline__ int own_piece() { return threadIdx.x % ROW_PIECES; }

// Begins to copy a chunk of keys, `keys` being this thread's piece of the first that it copies, and of their values,
// which are in the same rows `values` numbers further on. From the chunk's first key on `left` are the text's; those
// beyond become zeros, up to the end of a whole 16.
__device__ __forceinline__ void begin_chunk(unsigned chunk, const NUMBER* keys, int values, int stride, int left) {
    // A multiple of 8 rows further on, pieces have the same places.
    static_assert(ROWS_APART % 8 == 0 && KEYS % ROWS_APART == 0);
    chunk += piece_at(own_row(), own_piece());
#pragma unroll
    for (int i = 0; i < KEYS; i += ROWS_APART) {
        const int row = own_row() + i;
        if (row <= (left - 1 | 15)) {
            begin_copy(chunk + i * ROW_BYTES, keys, row < left);
            begin_copy(chunk + VALUES_AT + i * ROW_BYTES, keys + values, row < left);
        }
        keys += size_t(ROWS_APART) * stride;
    }
}

// The biases of a head by distance; no table for most models.
struct Bias {
    const float* table;
    int last;

    // Begins to copy a chunk's. The one of the block's first query and the chunk's first key is at `place`.
    __device__ __forceinline__ void begin_chunk(unsigned chunk, int place) const {
        if (table && threadIdx.x < KEYS + QUERIES - 1) {
            // Queries and keys beyond the text may be outside the table. What they get is not used.
            const int at = min(max(place + int(threadIdx.x) - (QUERIES - 1), 0), last);
            begin_small_copy(chunk + NEAR_AT + 4 * threadIdx.x, table + at);
        }
    }
};

// One warp's 16 queries. Lane l, with g = l/4 and t = l%4, works on queries g and g+8.
struct Queries {
    // Dimensions 32i + 8t to 32i + 8t+7 of queries g and g+8. A product may take dimensions in any order if both sides
    // take the same: this one gives each lane 16 bytes of a row, of queries here and of keys later.
    uint4 rows[HEAD / 32][2];
    // Dimensions 8i + 2t and 8i + 2t+1 of both queries.
    float sums[HEAD / 8][4];
    // Finite from the start: the difference of two infinities would be NaN.
    float largest[2] = {-1e30f, -1e30f};
    // Of this lane's keys alone.
    float total[2] = {0.0f, 0.0f};

    __device__ __forceinline__ void load(const NUMBER* first, int stride, int count) {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const NUMBER* row = first + size_t(g + 8 * half) * stride + 8 * t;
#pragma unroll
            for (int i = 0; i < HEAD / 32; i++) {
                rows[i][half] = make_uint4(0, 0, 0, 0);
                if (g + 8 * half < count) {
                    rows[i][half] = *reinterpret_cast<const uint4*>(row + 32 * i);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < HEAD / 8; i++) {
            sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.0f;
        }
    }

    // Takes in a chunk, of which `left` keys are the text's; at least KEYS if it is WHOLE. Scores count in powers of
    // two: `scale` has the logarithm of e in it.
    template <bool WHOLE>
    __device__ __forceinline__ void attend(unsigned chunk, int left, float scale) {
        const int lane = threadIdx.x % 32, t = lane % 4;
        float scores[KEYS / 8][4];
        const unsigned key = chunk + piece_at(lane / 4, t);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0.0f;
            if (WHOLE || 8 * n < left) {
#pragma unroll
                for (int i = 0; i < HEAD / 32; i++) {
                    // The pieces' places differ by exclusive or, see `piece_at`.
                    const uint4 b = load_shared((key ^ 64 * i) + 8 * n * ROW_BYTES);
                    const uint4 q = rows[i][0], r = rows[i][1];
                    multiply(scores[n], make_uint4(q.x, r.x, q.y, r.y), b.x, b.y, NUMBER{});
                    multiply(scores[n], make_uint4(q.z, r.z, q.w, r.w), b.z, b.w, NUMBER{});
                }
            }
        }
        if (BIAS) {
            add_bias(scores, scale, chunk + NEAR_AT);
            scale = 1.0f;
        }
        if (!WHOLE) {
            const float none = __int_as_float(0xff800000);
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    scores[n][c] = 8 * n + 2 * t + c % 2 < left ? scores[n][c] : none;
                }
            }
        }
        const float2 shift = raise_largest(scores, scale);
        // Lanes 0 to 15 point at the rows of a piece, lanes 16 to 31 at those of the next.
        const unsigned value = chunk + VALUES_AT + piece_at(lane % 16, lane / 16);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n += 2) {
            if (!WHOLE && 8 * n >= left) {
                break;
            }
#pragma unroll
            for (int c = 0; c < 4; c++) {
                scores[n][c] = exp2_fast(scores[n][c] * scale - (c < 2 ? shift.x : shift.y));
                scores[n + 1][c] = exp2_fast(scores[n + 1][c] * scale - (c < 2 ? shift.x : shift.y));
                total[c / 2] += scores[n][c] + scores[n + 1][c];
            }
            const float(&lower)[4] = scores[n], (&upper)[4] = scores[n + 1];
            const uint4 weights = make_uint4(pack<NUMBER>(lower[0], lower[1]), pack<NUMBER>(lower[2], lower[3]),
                                             pack<NUMBER>(upper[0], upper[1]), pack<NUMBER>(upper[2], upper[3]));
#pragma unroll
            for (int i = 0; i < HEAD / 16; i++) {
                const uint4 b = load_turned((value ^ 32 * i) + 8 * n * ROW_BYTES);
                multiply(sums[2 * i], weights, b.x, b.y, NUMBER{});
                multiply(sums[2 * i + 1], weights, b.z, b.w, NUMBER{});
            }
        }
    }

    // Scales the scores too.
    __device__ __forceinline__ void add_bias(float (&scores)[KEYS / 8][4], float scale, unsigned near) {
        const int lane = threadIdx.x % 32, query = threadIdx.x / 32 * 16 + lane / 4;
        near += 4 * (QUERIES - 1 - query + lane % 4 * 2);
        // Query g+8 is as far from a key as query g from the key eight before.
        float before[2] = {load_shared_float(near - 32), load_shared_float(near - 28)};
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const float here = load_shared_float(near + 32 * n + 4 * c);
                scores[n][c] = scores[n][c] * scale + here * LOG2_E;
                scores[n][c + 2] = scores[n][c + 2] * scale + before[c] * LOG2_E;
                before[c] = here;
            }
        }
    }

    // Finds the largest scores so far, scales what was summed to them, and gives what to subtract from scores.
    __device__ __forceinline__ float2 raise_largest(const float (&scores)[KEYS / 8][4], float scale) {
        float shift[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = largest[half];
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
                most = fmaxf(most, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
            }
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
            shift[half] = most * scale;
            const float shrink = exp2_fast(largest[half] * scale - shift[half]);
            total[half] *= shrink;
#pragma unroll
            for (int i = 0; i < HEAD / 8; i++) {
                sums[i][2 * half] *= shrink;
                sums[i][2 * half + 1] *= shrink;
            }
            largest[half] = most;
        }
        return make_float2(shift[0], shift[1]);
    }

    // Divides by the totals and writes the rows, of which `count` are the text's.
    __device__ __forceinline__ void store(NUMBER* first, int stride, int count) {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float whole = total[half];
            whole += __shfl_xor_sync(ALL_LANES, whole, 1);
            whole += __shfl_xor_sync(ALL_LANES, whole, 2);
            const float inverse = 1.0f / whole;
            NUMBER* row = first + size_t(g + 8 * half) * stride + 8 * t;
#pragma unroll
            for (int i = 0; i < HEAD / 32; i++) {
                unsigned pairs[4];
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    const float(&sum)[4] = sums[4 * i + n];
                    pairs[n] = pack<NUMBER>(sum[2 * half] * inverse, sum[2 * half + 1] * inverse);
                }
                exchange(pairs[0], pairs[1], 1);
                exchange(pairs[2], pairs[3], 1);
                exchange(pairs[0], pairs[2], 2);
                exchange(pairs[1], pairs[3], 2);
                // Now lane t has what the four lanes had of dimensions 8t to 8t+7: 16 bytes in a row.
                if (g + 8 * half < count) {
                    *reinterpret_cast<uint4*>(row + 32 * i) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
                }
            }
        }
    }

    // A step of turning over the square of four lanes and their four pairs.
    __device__ __forceinline__ static void exchange(unsigned& a, unsigned& b, int apart) {
        const bool upper = threadIdx.x & apart;
        const unsigned got = __shfl_xor_sync(ALL_LANES, upper ? a : b, apart);
        (upper ? a : b) = got;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
attention(const NUMBER* qkv, int qkv_stride, NUMBER* out, int out_stride, const int* counts, const int* offsets,
          const int2* blocks, const float* bias, int reach, int bias_stride, int hidden, float scale) {
    let_next_begin();
    // The heads of a text run side by side: together they read whole rows.
    const unsigned index = blockIdx.x + blockIdx.y * gridDim.x;
    const int block = index / gridDim.y, head = index % gridDim.y;
    const int2 place = blocks[block];
    if (block >= counts[2]) {
        return;
    }
    const int start = offsets[place.x], tokens = offsets[place.x + 1] - start;
    // The batch was there before the pass began; queries, keys and values come from the kernel ahead.
    wait_for_previous();
    const NUMBER* of_head = qkv + size_t(start) * qkv_stride + head * HEAD;
    const NUMBER* keys = of_head + hidden + size_t(own_row()) * qkv_stride + own_piece() * 8;
    const Bias near{BIAS ? bias + size_t(head) * bias_stride : nullptr, bias_stride - 1};

    __shared__ Chunks chunks;
    const unsigned first_chunk = shared_address(&chunks), last_chunk = first_chunk + (CHUNKS - 1) * CHUNK_BYTES;
    // Keys that no copy was begun for.
    int ahead = tokens;
#pragma unroll
    for (int i = 0; i < CHUNKS - 1; i++) {
        if (ahead > 0) {
            begin_chunk(first_chunk + i * CHUNK_BYTES, keys, hidden, qkv_stride, ahead);
            near.begin_chunk(first_chunk + i * CHUNK_BYTES, reach - place.y + tokens - ahead);
        }
        close_copies();
        keys += size_t(KEYS) * qkv_stride;
        ahead -= KEYS;
    }

    // A warp without queries only helps to copy.
    const int first = place.y + threadIdx.x / 32 * 16, count = tokens - first;
    Queries queries;
    queries.load(of_head + size_t(first) * qkv_stride, qkv_stride, count);
    unsigned chunk = first_chunk;
    int left = tokens;
    for (; left >= KEYS; left -= KEYS) {
        if (ahead > 0) {
            // Into the chunk that was read in the last round.
            const unsigned next = chunk == first_chunk ? last_chunk : chunk - CHUNK_BYTES;
            begin_chunk(next, keys, hidden, qkv_stride, ahead);
            near.begin_chunk(next, reach - place.y + tokens - ahead);
            keys += size_t(KEYS) * qkv_stride;
            ahead -= KEYS;
        }
        close_copies();
        wait_for_copies<CHUNKS - 1>();
        __syncthreads();
        if (count > 0) {
            queries.attend<true>(chunk, left, scale * LOG2_E);
        }
        if (ahead > 0) {
            // The next round overwrites what was read in this one.
            __syncthreads();
        }
        chunk = chunk == last_chunk ? first_chunk : chunk + CHUNK_BYTES;
    }
    if (left > 0) {
        wait_for_copies<0>();
        __syncthreads();
        if (count > 0) {
            queries.attend<false>(chunk, left, scale * LOG2_E);
        }
    }
    if (count > 0) {
        queries.store(out + size_t(start + tokens - count) * out_stride + head * HEAD, out_stride, count);
    }
}
