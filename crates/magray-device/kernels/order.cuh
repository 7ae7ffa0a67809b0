// The order of kernels in a stream, where the GPU lets one begin before the one ahead of it has ended (Hopper and newer).
// Every kernel includes this and waits before it touches what another kernel writes or reads. What another one writes must
// not be declared `__restrict__`: the compiler may then read it before the wait. Elsewhere both functions do nothing.
#pragma once

// All that the kernels ahead have written is there after this, and they read nothing any more.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may be brought onto the GPU once all blocks of this one have come here.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
