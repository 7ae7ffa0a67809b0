// Attention of parts of prompts to the pages of their sequences: a block has up to 64 queries of a sequence, of one head, a warp 16 of them.
// Queries are normalised and turned here; the new keys and values are in their pages. Pages come through a ring in shared memory, which
// the warps share. HEAD is the size of a head.
#include "decoder_attend.cuh"
#include "order.cuh"

constexpr int WARPS = 4;
constexpr int QUERIES = 16;
constexpr int STAGES = HEAD > 128 ? 2 : 3;
// Numbers of keys, and of values, of a page.
constexpr int PAGE_NUMBERS = PAGE * HEAD;
// Rows lie in different banks.
constexpr int QUERY_STRIDE = HEAD + 8;

// A page in shared memory. Where rows of keys have the same banks, every second has its halves of 128 bytes exchanged.
struct SharedPage {
    static constexpr int SWAP = HEAD % 64 == 0 ? 4 : 0;
    const unsigned short* keys_at;
    const unsigned short* values_at;
    int swap;

    __device__ __forceinline__ explicit SharedPage(const unsigned short* page) {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        // A lane's rows are all even or all odd.
        swap = g % 2 ? SWAP : 0;
        keys_at = page + (g / 2 * 8 + g % 2) * HEAD + 8 * t;
        values_at = page + PAGE_NUMBERS + g * PAGE + 8 * t;
    }

    __device__ __forceinline__ uint4 key(int i, int part) const { return load_piece(keys_at + 2 * i * HEAD + 8 * (4 * part ^ swap)); }

    __device__ __forceinline__ uint4 value(int i) const { return load_piece(values_at + 8 * i * PAGE); }

    __device__ static __forceinline__ void begin_load(unsigned short* page, const unsigned short* keys, const unsigned short* values) {
        constexpr int PIECES = HEAD / 8;
        const unsigned to = shared_address(page);
#pragma unroll
        for (int i = threadIdx.x; i < PAGE * PIECES; i += WARPS * 32) {
            const int row = i / PIECES, piece = i % PIECES;
            begin_copy(to + (row * PIECES + (piece ^ (row % 2 ? SWAP : 0))) * 16, keys + i * 8, true);
            begin_copy(to + (PAGE * PIECES + i) * 16, values + i * 8, true);
        }
    }
};

// Normalises and turns a query in shared memory, by a whole warp.
__device__ __forceinline__ void turn_query(const Layer& layer, const Turn& turn, unsigned short* query) {
    const int lane = threadIdx.x % 32;
    float x[HEAD / 32];
    float scale = 1.0f;
#pragma unroll
    for (int i = 0; i < HEAD / 32; ++i) x[i] = from_bf16(query[32 * i + lane]);
    if (layer.query_gain) {
        float square = 0.0f;
#pragma unroll
        for (int i = 0; i < HEAD / 32; ++i) square += x[i] * x[i];
        scale = rsqrtf(warp_sum(square) / HEAD + layer.query_epsilon);
    }
    const auto number = [&](int at) {
        const float x = from_bf16(query[at]);
        return layer.query_gain ? x * scale * layer.query_gain[at] : x;
    };
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int pair = 32 * i + lane;
        if (32 * i < HEAD / 2 && pair < layer.pairs) {
            const int a = layer.neighbours ? 2 * pair : pair, b = layer.neighbours ? 2 * pair + 1 : pair + layer.pairs;
            const float x = number(a), y = number(b);
            query[a] = to_bf16(x * turn.cosines[i] - y * turn.sines[i]);
            query[b] = to_bf16(y * turn.cosines[i] + x * turn.sines[i]);
        }
    }
    if (layer.query_gain)
        for (int at = 2 * layer.pairs + lane; at < HEAD; at += 32) query[at] = to_bf16(number(at));
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, HEAD <= 64 ? 4 : HEAD <= 128 ? 3 : 1)
    decoder_attend_prompt(const unsigned short* qkv, int stride, unsigned short* out, int out_stride, const Places places, const Layer layer) {
    extern __shared__ __align__(128) unsigned short memory[];
    let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, head = blockIdx.x;
    // The longest begin first. A warp has its first row, how many it has, the position of the first, and where the sequence's pages begin.
    const int* place = places.rows + 4 * WARPS * (gridDim.y - 1 - blockIdx.y);
    const int begin = place[2], all = place[1] + place[5] + place[9] + place[13];
    if (all <= 0) return;
    const int* pages = places.pages + place[3];
    const int row = place[4 * warp], count = place[4 * warp + 1], position = place[4 * warp + 2];
    const int kv_head = head / (layer.heads / layer.kv_heads);
    const int first_page = first_seen(layer, begin) / PAGE, end_page = (begin + all - 1) / PAGE + 1;
    unsigned short* queries = memory + STAGES * 2 * PAGE_NUMBERS + warp * QUERIES * QUERY_STRIDE;
    wait_for_previous();
    for (int i = lane; i < QUERIES * HEAD / 8; i += 32) {
        const int query = i / (HEAD / 8), piece = i % (HEAD / 8);
        const bool is_there = query < count;
        begin_copy(shared_address(queries + query * QUERY_STRIDE + 8 * piece), qkv + size_t(row + (is_there ? query : 0)) * stride + head * HEAD + 8 * piece, is_there);
    }
    close_copies();
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        const int page = first_page + i;
        if (page < end_page) {
            const int number = pages[page];
            SharedPage::begin_load(memory + i * 2 * PAGE_NUMBERS, keys_of(layer, number, kv_head), values_of(layer, number, kv_head));
        }
        close_copies();
    }
    wait_for_copies<STAGES - 1>();
    __syncwarp();
#pragma unroll 4
    for (int i = 0; i < QUERIES; ++i) turn_query(layer, Turn(layer, position + i), queries + i * QUERY_STRIDE);
    __syncwarp();
    Attending attending;
    int first[2], last[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < HEAD / 32; ++i) attending.queries[i][half] = load_piece(queries + (g + 8 * half) * QUERY_STRIDE + 32 * i + 8 * t);
        last[half] = position + g + 8 * half;
        first[half] = first_seen(layer, last[half]);
    }
    const int own_first = first_seen(layer, position) / PAGE, own_end = count > 0 ? (position + count - 1) / PAGE + 1 : 0;
    int stage = 0;
    // Read a turn before it is needed.
    int number = pages[min(first_page + STAGES - 1, end_page - 1)];
    for (int page = first_page; page < end_page; ++page) {
        wait_for_copies<STAGES - 2>();
        // All have this page, and none reads the one before it any more.
        __syncthreads();
        const int next = page + STAGES - 1, next_stage = stage == 0 ? STAGES - 1 : stage - 1;
        if (next < end_page) {
            SharedPage::begin_load(memory + next_stage * 2 * PAGE_NUMBERS, keys_of(layer, number, kv_head), values_of(layer, number, kv_head));
            number = pages[min(next + 1, end_page - 1)];
        }
        close_copies();
        if (page >= own_first && page < own_end) attending.attend(layer, SharedPage(memory + stage * 2 * PAGE_NUMBERS), page * PAGE, first, last);
        if (++stage == STAGES) stage = 0;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float inverse = 1.0f / attending.whole(half);
        if (g + 8 * half >= count) continue;
        unsigned short* to = out + size_t(row + g + 8 * half) * out_stride + head * HEAD + 2 * t;
#pragma unroll
        for (int i = 0; i < HEAD / 8; ++i)
            *reinterpret_cast<unsigned*>(to + 8 * i) = pack<bf16>(attending.sums[i][2 * half] * inverse, attending.sums[i][2 * half + 1] * inverse);
    }
}
