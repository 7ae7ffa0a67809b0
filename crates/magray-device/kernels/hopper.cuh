// What Hopper adds for matrix products: barriers in shared memory that count bytes, the bulk copy engine, warpgroup products.
// Thin names over the instructions; knows no matrix. Compiled for sm_90a alone.
#pragma once

#include "shared_memory.cuh"

// Every matrix is seen by the copy engine as boxes of 64 rows by 64 numbers of 16 bits, swizzled over 128 bytes.
constexpr int BOX = 64;
constexpr int BOX_BYTES = BOX * BOX * 2;

// As the driver encodes it.
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_arrive_expecting(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrives when the copies that this thread began by itself are done.
__device__ __forceinline__ void barrier_arrive_with_copies(unsigned barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// A box of a matrix into shared memory; the barrier counts its bytes. What lies outside the matrix arrives as zeros.
__device__ __forceinline__ void box_load(unsigned to, const TensorMap* map, int column, int row, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}

// What is read once makes room first: the second level keeps activations, pages and code instead.
__device__ __forceinline__ unsigned long long read_once() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// A box of weights, which are read once.
__device__ __forceinline__ void box_load_once(unsigned to, const TensorMap* map, int column, int row, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(read_once())
                 : "memory");
}

// Blocks of some eights of rows of weights; the barrier counts their bytes.
__device__ __forceinline__ void block_load(unsigned to, const TensorMap* map, int unit, int eight, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(0), "r"(unit), "r"(eight), "r"(barrier), "l"(read_once())
                 : "memory");
}

// A box of shared memory into a matrix; what lies outside the matrix is left out.
__device__ __forceinline__ void box_store(const TensorMap* map, int column, int row, unsigned from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(column), "r"(row),
                 "r"(from)
                 : "memory");
}

__device__ __forceinline__ void stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until shared memory has been read by the stores of this thread, but for the last OPEN of its groups.
template <int OPEN>
__device__ __forceinline__ void stores_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(OPEN) : "memory");
}

// Ordinary writes to shared memory before this are seen by the copy engine after it.
__device__ __forceinline__ void fence_for_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void group_barrier(int id) { asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory"); }

template <int N>
__device__ __forceinline__ void registers_give_back() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N>
__device__ __forceinline__ void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// The address of another block's shared memory, in the same cluster.
__device__ __forceinline__ unsigned peer_address(unsigned address, int rank) {
    unsigned peer;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(address), "r"(rank));
    return peer;
}

// Two floats into a peer's shared memory; its barrier counts their bytes.
__device__ __forceinline__ void peer_store(unsigned to, float first, float second, unsigned barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to), "f"(first),
                 "f"(second), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Where a matrix of boxes begins, for the tensor cores: rows of 128 bytes, groups of 8 rows 1024 bytes apart, swizzled.
__device__ __forceinline__ unsigned long long matrix_at(unsigned address) {
    return (1ull << 62) | (64ull << 32) | (1ull << 16) | ((address & 0x3ffff) >> 4);
}

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)
#define SUMS4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS16(i) SUMS4(i), SUMS4(i + 4), SUMS4(i + 8), SUMS4(i + 12)
#define SUMS32(i) SUMS16(i), SUMS16(i + 16)
#define NAMES_0_31                                                                                                        \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_32_63                                                                                                        \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,"  \
    "%61,%62,%63"
#define NAMES_64_95                                                                                                        \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,"  \
    "%93,%94,%95"
#define NAMES_96_127                                                                                                        \
    ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,"  \
    "%120,%121,%122,%123,%124,%125,%126,%127"

// sums of 64 rows by N columns += 64 rows by 16 of a, times N rows by 16 of b, transposed. Starts from zero unless `add`.
template <class T, int N>
struct Products;

#define PRODUCTS(TYPE, KIND, N, NAMES, A, B, ADD, ...)                                                                        \
    template <>                                                                                                               \
    struct Products<TYPE, N> {                                                                                                \
        static __device__ __forceinline__ void add(float* d, unsigned long long a, unsigned long long b, int add) {           \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                                     \
                         "wgmma.mma_async.sync.aligned.m64n" TEXT(N) "k16.f32." KIND "." KIND " {" NAMES "}, " A ", " B      \
                         ", p, 1, 1, 0, 0;\n}\n"                                                                              \
                         : __VA_ARGS__                                                                                        \
                         : "l"(a), "l"(b), "r"(add));                                                                         \
        }                                                                                                                     \
    }

#define PRODUCTS_OF(TYPE, KIND)                                                                                                \
    PRODUCTS(TYPE, KIND, 64, NAMES_0_31, "%32", "%33", "%34", SUMS32(0));                                                      \
    PRODUCTS(TYPE, KIND, 128, NAMES_0_31 NAMES_32_63, "%64", "%65", "%66", SUMS32(0), SUMS32(32));                             \
    PRODUCTS(TYPE, KIND, 192, NAMES_0_31 NAMES_32_63 NAMES_64_95, "%96", "%97", "%98", SUMS32(0), SUMS32(32), SUMS32(64));     \
    PRODUCTS(TYPE, KIND, 256, NAMES_0_31 NAMES_32_63 NAMES_64_95 NAMES_96_127, "%128", "%129", "%130", SUMS32(0), SUMS32(32), \
             SUMS32(64), SUMS32(96))

PRODUCTS_OF(bf16, "bf16");
PRODUCTS_OF(f16, "f16");
