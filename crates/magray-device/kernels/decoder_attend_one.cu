// Attention of single tokens to the pages of their sequences, with all that comes before it: queries and the key are normalised and
// turned, key and value are put into their page. A block has a head of keys with all queries that share it, and a part of the pages; the
// last block of a head adds the parts in their order. HEAD is the size of a head, WARPS the warps of a block: 4 or 8.
#if WARPS == 4
// Where there are many blocks, three on a multiprocessor hide more than values in registers do.
#define VALUES_HELD_MOST 32
#endif
#include "decoder_attend.cuh"
#include "order.cuh"

// Pages that a warp has before several blocks share a head.
constexpr int PAGES_ALONE = 2;
// Queries that may share a head of keys.
constexpr int SHARED_MOST = 16;
constexpr int QUERY_STRIDE = HEAD + 8;

struct Room {
    float heads[WARPS][HEAD];
    alignas(16) unsigned short queries[SHARED_MOST][QUERY_STRIDE];
    // Of the new token.
    alignas(16) unsigned short key[HEAD];
    unsigned short value[HEAD];
    float largest[WARPS][SHARED_MOST];
    float total[WARPS][SHARED_MOST];
    int is_last;
};

// Brings a page nearer while another is attended to.
__device__ __forceinline__ void prefetch_page(const unsigned short* keys, const unsigned short* values) {
    for (int i = threadIdx.x % 32 * 64; i < PAGE * HEAD; i += 32 * 64) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(keys + i));
        asm volatile("prefetch.global.L2 [%0];" ::"l"(values + i));
    }
}

// As if there were more threads: it leaves registers for a block of the next kernel.
extern "C" __global__ void __launch_bounds__(WARPS == 8 ? WARPS * 32 * 3 / 2 : WARPS * 32, WARPS == 4 && HEAD <= 64 ? 3 : 1)
    decoder_attend_one(const unsigned short* qkv, int stride, unsigned short* out, int out_stride, const Places places, const Layer layer,
                       float* parts, unsigned* arrived, int ahead) {
    __shared__ Room room;
    // What the warps have summed: by warp, by query.
    extern __shared__ float sums[];
    let_next_begin();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int row = places.rows[blockIdx.z], kv_head = blockIdx.y, splits = gridDim.x, shared = layer.heads / layer.kv_heads;
    if (row < 0) return;
    const int position = places.positions[row], begin = first_seen(layer, position);
    const int* pages = places.pages + places.page_starts[row];
    // The pages are divided evenly; the last one, where the new key goes, is the last block's.
    const int first_page = begin / PAGE, count = position / PAGE + 1 - first_page;
    const int active = min(splits, (count + PAGES_ALONE * WARPS - 1) / (PAGES_ALONE * WARPS)), split = blockIdx.x;
    if (split >= active) return;
    const int from = first_page + count * split / active, to = first_page + count * (split + 1) / active;
    // All that the kernel ahead does not write is read while that one still runs: pages of earlier steps too. It writes those of up to `ahead`
    // tokens before this one.
    const int written = ahead > 0 ? max(position - ahead, 0) / PAGE : to;
    Page held;
    int page = from + warp;
    const bool is_early = page < min(to, written);
    if (is_early) {
        const int number = pages[page];
        held.load(keys_of(layer, number, kv_head), values_of(layer, number, kv_head));
    }
    if (page + WARPS < to) {
        const int number = pages[page + WARPS];
        prefetch_page(keys_of(layer, number, kv_head), values_of(layer, number, kv_head));
    }
    const Turn turn(layer, position);
    for (int i = threadIdx.x; i < (SHARED_MOST - shared) * HEAD; i += WARPS * 32) room.queries[shared + i / HEAD][i % HEAD] = 0;
    wait_for_previous();
    if (page < to && !is_early) {
        const int number = pages[page];
        held.load(keys_of(layer, number, kv_head), values_of(layer, number, kv_head));
    }
    const unsigned short* numbers = qkv + size_t(row) * stride;
    const bool keeps = split == active - 1;
    for (int head = warp; head < shared + (keeps ? 1 : 0); head += WARPS) {
        float* own = room.heads[warp];
        const bool is_key = head == shared;
        const unsigned short* of_head = numbers + (is_key ? layer.heads + kv_head : kv_head * shared + head) * HEAD;
        const unsigned short* value = of_head + layer.kv_heads * HEAD;
        unsigned short of_value[HEAD / 32];
#pragma unroll
        for (int i = 0; i < HEAD / 32; ++i) {
            own[32 * i + lane] = from_bf16(of_head[32 * i + lane]);
            of_value[i] = is_key ? value[32 * i + lane] : 0;
        }
        turn_head(layer, turn, own, is_key ? layer.key_gain : layer.query_gain, is_key ? layer.key_epsilon : layer.query_epsilon);
        unsigned short* to_head = is_key ? room.key : room.queries[head];
#pragma unroll
        for (int i = 0; i < HEAD / 32; ++i) {
            to_head[32 * i + lane] = to_bf16(own[32 * i + lane]);
            if (is_key) room.value[32 * i + lane] = of_value[i];
        }
        if (is_key) {
            __syncwarp();
            keep(layer, pages[position / PAGE], position % PAGE, kv_head, own, room.value);
        }
        __syncwarp();
    }
    __syncthreads();
    Attending attending;
#pragma unroll
    for (int i = 0; i < HEAD / 32; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) attending.queries[i][half] = load_piece(&room.queries[g + 8 * half][32 * i + 8 * t]);
    }
    const int first[2] = {begin, begin}, last[2] = {position, position};
    while (page < to) {
        if (page + 2 * WARPS < to) {
            const int number = pages[page + 2 * WARPS];
            prefetch_page(keys_of(layer, number, kv_head), values_of(layer, number, kv_head));
        }
        // What was read for the new token was not there yet.
        if (page == position / PAGE) held.replace(position % PAGE, room.key, room.value);
        attending.attend(layer, held, page * PAGE, first, last);
        page += WARPS;
        if (page < to) {
            const int number = pages[page];
            held.load(keys_of(layer, number, kv_head), values_of(layer, number, kv_head));
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int query = g + 8 * half;
        const float whole = attending.whole(half);
        if (query >= shared) continue;
        if (t == 0) {
            room.largest[warp][query] = attending.largest[half];
            room.total[warp][query] = whole;
        }
        float* to_sums = sums + (warp * shared + query) * HEAD + 2 * t;
#pragma unroll
        for (int i = 0; i < HEAD / 8; ++i)
            *reinterpret_cast<float2*>(to_sums + 8 * i) = make_float2(attending.sums[i][2 * half], attending.sums[i][2 * half + 1]);
    }
    __syncthreads();
    // Of one part of one head of one row: largest and total of each query, then the sums.
    const size_t part_size = size_t(shared) * (HEAD + 2);
    float* of_head = parts + (size_t(blockIdx.z) * layer.kv_heads + kv_head) * splits * part_size;
    unsigned short* to_row = out + size_t(row) * out_stride + size_t(kv_head) * shared * HEAD;
    for (int i = threadIdx.x; i < shared * HEAD; i += WARPS * 32) {
        const int query = i / HEAD;
        float most = room.largest[0][query];
#pragma unroll
        for (int w = 1; w < WARPS; ++w) most = fmaxf(most, room.largest[w][query]);
        float sum = 0.0f, total = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float share = exp2_fast(room.largest[w][query] - most);
            sum += share * sums[w * shared * HEAD + i];
            total += share * room.total[w][query];
        }
        if (active == 1) {
            to_row[i] = to_bf16(sum / total);
        } else {
            float* part = of_head + split * part_size;
            part[2 * shared + i] = sum;
            if (i % HEAD == 0) part[2 * query] = most, part[2 * query + 1] = total;
        }
    }
    if (active == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned* counter = arrived + blockIdx.z * layer.kv_heads + kv_head;
        room.is_last = atomicAdd(counter, 1u) == active - 1;
        // As the next layer expects it.
        if (room.is_last) *counter = 0;
    }
    __syncthreads();
    if (!room.is_last) return;
    __threadfence();
    for (int i = threadIdx.x; i < shared * HEAD; i += WARPS * 32) {
        const int query = i / HEAD;
        float most = -1e30f, sum = 0.0f, total = 0.0f;
        for (int s = 0; s < active; ++s) most = fmaxf(most, __ldcg(of_head + s * part_size + 2 * query));
        for (int s = 0; s < active; ++s) {
            const float* part = of_head + s * part_size;
            const float share = exp2_fast(__ldcg(part + 2 * query) - most);
            sum += share * __ldcg(part + 2 * shared + i);
            total += share * __ldcg(part + 2 * query + 1);
        }
        to_row[i] = to_bf16(sum / total);
    }
}
