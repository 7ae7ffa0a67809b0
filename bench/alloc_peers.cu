// Runs the cases of `magray-bench alloc` with cudaMalloc or with cudaMallocAsync.
// Touches none of the memory and launches nothing. Use: alloc_peers cudaMalloc|cudaMallocAsync [--FLAG VALUE]...

#include <cuda_runtime.h>

#include "alloc_cases.h"

namespace {

bool failed(cudaError_t error) {
    if (error == cudaSuccess) return false;
    std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
    cudaGetLastError();
    return true;
}

// Every call goes to the driver, and nothing is kept.
struct Plain {
    // Whether to ask after each call what is free: for traces, where nothing is timed.
    bool looks;
    size_t free_at_start = 0, least_free = 0;

    size_t free_bytes() {
        size_t free = 0, total = 0;
        failed(cudaMemGetInfo(&free, &total));
        return free;
    }
    void start() {
        cudaDeviceSynchronize();
        free_at_start = least_free = free_bytes();
    }
    void* take(uint64_t bytes) {
        void* block = nullptr;
        if (failed(cudaMalloc(&block, bytes))) return nullptr;
        if (looks) least_free = std::min(least_free, free_bytes());
        return block;
    }
    void give_back(void* block) { cudaFree(block); }
    uint64_t peak_reserved() { return free_at_start - least_free; }
};

// The driver's own pool, told to keep what it has: without that every wait would give memory back.
struct Async {
    cudaStream_t stream = nullptr;
    cudaMemPool_t pool = nullptr;

    bool open() {
        uint64_t keep = UINT64_MAX;
        return !failed(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)) &&
               !failed(cudaDeviceGetDefaultMemPool(&pool, 0)) &&
               !failed(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    }
    void start() {
        uint64_t zero = 0;
        cudaStreamSynchronize(stream);
        cudaMemPoolTrimTo(pool, 0);
        cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &zero);
    }
    void* take(uint64_t bytes) {
        void* block = nullptr;
        return failed(cudaMallocAsync(&block, bytes, stream)) ? nullptr : block;
    }
    void give_back(void* block) { cudaFreeAsync(block, stream); }
    uint64_t peak_reserved() {
        uint64_t high = 0;
        failed(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &high));
        return high;
    }
};

}  // namespace

int main(int count, char** words) {
    std::string which = count > 1 ? words[1] : "";
    bool traces = std::find(words, words + count, std::string("--trace")) != words + count;
    if (failed(cudaSetDevice(0)) || failed(cudaFree(nullptr))) return 1;
    if (which == "cudaMalloc") {
        Plain allocator{traces};
        return alloc_cases::run(allocator, count - 2, words + 2);
    }
    Async allocator;
    if (which == "cudaMallocAsync" && allocator.open()) return alloc_cases::run(allocator, count - 2, words + 2);
    std::fprintf(stderr, "use: alloc_peers cudaMalloc|cudaMallocAsync [--FLAG VALUE]...\n");
    return 2;
}
