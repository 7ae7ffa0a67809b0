// Runs the cases of `magray-bench alloc` with PyTorch's caching allocator, called from C++: no interpreter is in the times.
// Loaded into a Python that has imported torch and opened the GPU; see compare/alloc_torch.py.

#include <c10/cuda/CUDACachingAllocator.h>

#include "alloc_cases.h"

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

struct Caching {
    void start() {
        caching::emptyCache();
        caching::resetPeakStats(0);
    }
    void* take(uint64_t bytes) {
        try {
            return caching::raw_alloc(bytes);
        } catch (const std::exception& error) {
            std::fprintf(stderr, "%s\n", error.what());
            return nullptr;
        }
    }
    void give_back(void* block) { caching::raw_delete(block); }
    // The first of each kind of figure is the sum over small and large blocks.
    uint64_t peak_reserved() { return caching::getDeviceStats(0).reserved_bytes[0].peak; }
};

}  // namespace

extern "C" int alloc_cases_torch(int count, const char** words) {
    Caching allocator;
    return alloc_cases::run(allocator, count, words);
}
