// Attention within each text, a head and 64 of its queries a block, by matrix instructions and an online softmax.
// Takes 16-bit numbers and heads of 32, 64 or 128 (HEAD), with biases by distance if BIAS is 1; reads nothing of a neighbour text, not even to discard it.
#include "instructions.cuh"
#include "order.cuh"

constexpr int THREADS = 128;
constexpr int ROW_BYTES = 2 * HEAD;
// Pieces of 16 bytes, the unit of all copies.
constexpr int ROW_PIECES = HEAD / 8;
// Keys of a chunk. Two chunks of keys and values fit into the 48 KiB that need no asking for.
constexpr int KEYS = HEAD == 128 ? 32 : 64;
constexpr unsigned VALUES_AT = KEYS * ROW_BYTES;
constexpr unsigned CHUNK_BYTES = 2 * VALUES_AT;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr float LOG2_E = 1.44269504f;

// Where a piece lies in the rows of a chunk. Pieces change places from row to row so that eight rows of one piece
// (values), and two rows of four (keys), are in eight different places of 128 bytes: no two share a bank.
__device__ __forceinline__ unsigned piece_at(int row, int piece) {
    const int turn = HEAD == 32 ? row >> 1 & 3 : (row & 1) << 2 | (row >> 1 & 3);
    return row * ROW_BYTES + (piece ^ turn) * 16;
}

// One chunk is worked on while the next is on its way. Aligned to the longest row.
struct alignas(256) Chunks {
    unsigned char bytes[2 * CHUNK_BYTES];
};

// What this thread copies of the keys and values of one head of one text: one piece of every ROWS_APART-th row.
struct Copier {
    static constexpr int ROWS_APART = THREADS / ROW_PIECES;
    // In the keys' next chunk; the values are in the same rows, `values` numbers further on.
    const NUMBER* next;
    int values;
    int stride;
    // Keys of the text from this thread's first one of the next chunk on.
    int left;

    __device__ __forceinline__ Copier(const NUMBER* keys, int values, int stride, int tokens)
        : values(values), stride(stride) {
        const int row = threadIdx.x / ROW_PIECES;
        next = keys + size_t(row) * stride + threadIdx.x % ROW_PIECES * 8;
        left = tokens - row;
    }

    // Begins to copy a chunk. Keys beyond the text become zeros, up to the end of a whole 16 of them.
    __device__ __forceinline__ void begin(unsigned chunk) {
        const int row = threadIdx.x / ROW_PIECES;
        // A multiple of 8 rows further on, pieces have the same places.
        static_assert(ROWS_APART % 8 == 0 && KEYS % ROWS_APART == 0);
        chunk += piece_at(row, threadIdx.x % ROW_PIECES);
        const int last = row + left - 1 | 15;
#pragma unroll
        for (int i = 0; i < KEYS; i += ROWS_APART) {
            if (row + i <= last) {
                begin_copy(chunk + i * ROW_BYTES, next + size_t(i) * stride, i < left);
                begin_copy(chunk + VALUES_AT + i * ROW_BYTES, next + size_t(i) * stride + values, i < left);
            }
        }
        next += size_t(KEYS) * stride;
        left -= KEYS;
    }
};

// The biases of a head by distance; none for most models.
struct Bias {
    const float* values;
    int last;
    // Where the value for this lane's first query and first key is.
    int origin;

    __device__ __forceinline__ float at(int keys_further) const {
        // Queries and keys beyond the text may be outside the table. What they get is not used.
        return values[min(max(origin + keys_further, 0), last)] * LOG2_E;
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
    __device__ __forceinline__ void attend(unsigned chunk, int left, float scale, const Bias& bias) {
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
            add_bias(scores, scale, bias);
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
            const uint4 weights = make_uint4(pack<NUMBER>(scores[n][0], scores[n][1]), pack<NUMBER>(scores[n][2], scores[n][3]),
                                             pack<NUMBER>(scores[n + 1][0], scores[n + 1][1]),
                                             pack<NUMBER>(scores[n + 1][2], scores[n + 1][3]));
#pragma unroll
            for (int i = 0; i < HEAD / 16; i++) {
                const uint4 b = load_turned((value ^ 32 * i) + 8 * n * ROW_BYTES);
                multiply(sums[2 * i], weights, b.x, b.y, NUMBER{});
                multiply(sums[2 * i + 1], weights, b.z, b.w, NUMBER{});
            }
        }
    }

    // Scales the scores too.
    __device__ __forceinline__ void add_bias(float (&scores)[KEYS / 8][4], float scale, const Bias& bias) {
        // Query g+8 is as far from a key as query g from the key eight before.
        float before[2] = {bias.at(-8), bias.at(-7)};
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const float here = bias.at(8 * n + c);
                scores[n][c] = scores[n][c] * scale + here;
                scores[n][c + 2] = scores[n][c + 2] * scale + before[c];
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

// Blocks that shall fit on a multiprocessor: they wait much, so many at once are worth a few numbers kept in memory.
constexpr int BLOCKS_AT_ONCE = HEAD == 32 ? 6 : HEAD == 64 ? 4 : 1;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
attention(const NUMBER* qkv, int qkv_stride, NUMBER* out, int out_stride, const int* counts, const int* offsets,
          const int2* blocks, const float* bias, int reach, int bias_stride, int hidden, float scale) {
    let_next_begin();
    wait_for_previous();
    // The heads of a text run side by side: together they read whole rows.
    const unsigned index = blockIdx.x + blockIdx.y * gridDim.x;
    const int block = index / gridDim.y, head = index % gridDim.y;
    const int2 place = blocks[block];
    if (block >= counts[2]) {
        return;
    }
    const int start = offsets[place.x], tokens = offsets[place.x + 1] - start;
    const NUMBER* of_head = qkv + size_t(start) * qkv_stride + head * HEAD;
    Copier copier(of_head + hidden, hidden, qkv_stride, tokens);

    __shared__ Chunks chunks;
    unsigned chunk = shared_address(&chunks), other = chunk + CHUNK_BYTES;
    copier.begin(chunk);
    close_copies();

    // A warp without queries only helps to copy.
    const int first = place.y + threadIdx.x / 32 * 16, count = tokens - first;
    Queries queries;
    queries.load(of_head + size_t(first) * qkv_stride, qkv_stride, count);
    Bias near{nullptr, bias_stride - 1, 0};
    if (BIAS) {
        near.values = bias + size_t(head) * bias_stride;
        near.origin = reach - (first + threadIdx.x % 32 / 4) + threadIdx.x % 4 * 2;
    }
    for (int from = 0; from < tokens; from += KEYS) {
        if (from + KEYS < tokens) {
            copier.begin(other);
        }
        close_copies();
        wait_for_copies<1>();
        __syncthreads();
        if (count > 0) {
            const int left = tokens - from;
            if (left >= KEYS) {
                queries.attend<true>(chunk, left, scale * LOG2_E, near);
            } else {
                queries.attend<false>(chunk, left, scale * LOG2_E, near);
            }
        }
        // The next round overwrites what was read in this one.
        __syncthreads();
        const unsigned read = chunk;
        chunk = other;
        other = read;
        near.origin += KEYS;
    }
    if (count > 0) {
        queries.store(out + size_t(start + first) * out_stride + head * HEAD, out_stride, count);
    }
}
