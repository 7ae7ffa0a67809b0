// Addresses in shared memory, and copies into it that run by themselves.
// Needs no header of the CUDA toolkit. Hides what sm_75 lacks behind slower ways to the same result.
#pragma once

__device__ __forceinline__ unsigned shared_address(const void* shared) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

// Begins to copy 16 bytes into shared memory, or zeros where `inside` is false; then nothing is read.
__device__ __forceinline__ void begin_copy(unsigned shared, const void* global, bool inside) {
#if __CUDA_ARCH__ >= 800
    const int bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
#else
    uint4 x = make_uint4(0, 0, 0, 0);
    if (inside) {
        x = *static_cast<const uint4*>(global);
    }
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
#endif
}

// The same for 4 bytes.
__device__ __forceinline__ void begin_small_copy(unsigned shared, const void* global) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
#else
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared), "r"(*static_cast<const unsigned*>(global)) : "memory");
#endif
}

// Closes a group: the copies this thread began since the last one.
__device__ __forceinline__ void close_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until this thread's groups are done but for the last OPEN ones.
template <int OPEN>
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(OPEN) : "memory");
#endif
}
