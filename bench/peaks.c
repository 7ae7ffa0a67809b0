/* Measures what the cores can do at most: f32 FMA (AVX-512 or AVX2), AMX bf16 and AMX int8. Touches no memory in its loops.
 * Prints one JSON line with TFLOP/s (TOP/s for int8) of THREADS threads together; a unit that is missing is left out.
 * Build: cc -O2 -pthread -o peaks peaks.c; use: peaks THREADS */
#include <immintrin.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 256
#define TRIALS 60

typedef void (*burn_fn)(long);

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Twelve sums that do not wait for each other hide the latency of an FMA. In assembly, so that they stay in registers. */
#define SUM(r, n) "vfmadd231ps %%" r "12, %%" r "13, %%" r #n "\n\t"
#define SUMS(r) \
    SUM(r, 0) SUM(r, 1) SUM(r, 2) SUM(r, 3) SUM(r, 4) SUM(r, 5) SUM(r, 6) SUM(r, 7) SUM(r, 8) SUM(r, 9) SUM(r, 10) SUM(r, 11)
#define TOUCHED "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11"

static void burn_avx512(long rounds) {
    __asm__ volatile("vzeroall" : : : TOUCHED, "xmm12", "xmm13");
    for (long r = 0; r < rounds; r++) __asm__ volatile(SUMS("zmm") : : : TOUCHED);
}

static void burn_avx2(long rounds) {
    __asm__ volatile("vzeroall" : : : TOUCHED, "xmm12", "xmm13");
    for (long r = 0; r < rounds; r++) __asm__ volatile(SUMS("ymm") : : : TOUCHED);
}

/* Tiles 0-3 take the sums of the products of tiles 4-5 and 6-7, as a matrix kernel uses them. */
__attribute__((target("amx-tile"))) static void configure_tiles(void) {
    struct __attribute__((packed, aligned(64))) {
        unsigned char palette, start_row, reserved[14];
        unsigned short bytes[16];
        unsigned char rows[16];
    } config;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int i = 0; i < 8; i++) {
        config.bytes[i] = 64;
        config.rows[i] = 16;
    }
    /* Some compilers believe that the instruction reads one byte, and drop the stores to the others. */
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
}

__attribute__((target("amx-tile,amx-bf16"))) static void burn_amx_bf16(long rounds) {
    configure_tiles();
    for (long r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
}

__attribute__((target("amx-tile,amx-int8"))) static void burn_amx_int8(long rounds) {
    configure_tiles();
    for (long r = 0; r < rounds; r++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_release();
}

struct job {
    burn_fn burn;
    long rounds;
};

static void *run_job(void *given) {
    struct job *job = given;
    job->burn(job->rounds);
    return NULL;
}

/* The best of many short trials: the peak is what the cores do when nobody disturbs them. */
static double peak(burn_fn burn, double ops_per_round, int threads) {
    long rounds = 1000;
    for (double took = 0; took < 0.004; rounds *= 2) {
        double start = now();
        burn(rounds);
        took = now() - start;
    }
    double best = 0;
    for (int trial = 0; trial < TRIALS; trial++) {
        pthread_t id[MAX_THREADS];
        struct job job = {burn, rounds};
        double start = now();
        for (int t = 0; t < threads; t++)
            if (pthread_create(&id[t], NULL, run_job, &job)) exit(1);
        for (int t = 0; t < threads; t++) pthread_join(id[t], NULL);
        double rate = ops_per_round * rounds * threads / (now() - start);
        if (rate > best) best = rate;
    }
    return best * 1e-12;
}

/* Whether the kernel's list of the processor's flags has this one. */
static int has_flag(const char *flag) {
    char line[8192], word[64];
    int found = 0;
    FILE *info = fopen("/proc/cpuinfo", "r");
    snprintf(word, sizeof word, " %s ", flag);
    while (info && !found && fgets(line, sizeof line, info)) {
        if (strncmp(line, "flags", 5)) continue;
        line[strcspn(line, "\n")] = ' ';
        found = strstr(line, word) != NULL;
        break;
    }
    if (info) fclose(info);
    return found;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    if (threads < 1 || threads > MAX_THREADS) {
        fprintf(stderr, "peaks: threads must be 1 to %d\n", MAX_THREADS);
        return 2;
    }
    printf("{\"threads\": %d", threads);
    if (has_flag("avx512f"))
        printf(", \"f32\": %.3f", peak(burn_avx512, 12 * 16 * 2, threads));
    else if (has_flag("fma") && has_flag("avx2"))
        printf(", \"f32\": %.3f", peak(burn_avx2, 12 * 8 * 2, threads));
    /* Linux gives the tile registers only to those who ask (ARCH_REQ_XCOMP_PERM, XTILEDATA). */
    if (has_flag("amx_tile") && syscall(SYS_arch_prctl, 0x1023, 18) == 0) {
        if (has_flag("amx_bf16")) printf(", \"bf16\": %.3f", peak(burn_amx_bf16, 4.0 * 16 * 16 * 32 * 2, threads));
        if (has_flag("amx_int8")) printf(", \"int8\": %.3f", peak(burn_amx_int8, 4.0 * 16 * 16 * 64 * 2, threads));
    }
    printf("}\n");
    return 0;
}
