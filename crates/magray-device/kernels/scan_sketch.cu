// One bit a dimension of vectors: the signs of their differences from a centre, turned at random, and what they are worth.
// Refuses nothing at run time: its caller sees to the shapes.
//
// NUMBER  of the vectors
#include "numbers.cuh"
#include "order.cuh"
#include "signs.cuh"

constexpr int THREADS = 128;

__device__ __forceinline__ float sum_of(float x, float* shared) {
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < THREADS / 32; ++i) sum += shared[i];
    __syncthreads();
    return sum;
}

// A block a vector. Each round flips signs and mixes as many dimensions as a power of two has: the first, then the last.
extern "C" __global__ void __launch_bounds__(THREADS)
    scan_sketch(const NUMBER* __restrict__ rows, int stride, int dims, unsigned begin, unsigned end,
                const float* __restrict__ centre, const float* __restrict__ flips, float centre_square, unsigned* words,
                Worth* worth) {
    extern __shared__ float turned[];
    __shared__ float sums[THREADS / 32];
    wait_for_previous();
    let_next_begin();
    int mixed = 1;
    while (2 * mixed <= dims) mixed *= 2;
    const float scale = rsqrtf(static_cast<float>(mixed));
    const int padded = (dims + 31) / 32 * 32;
    for (unsigned row = begin + blockIdx.x; row < end; row += gridDim.x) {
        float product = 0.0f;
        for (int i = threadIdx.x; i < dims; i += THREADS) {
            const float x = widen(rows[static_cast<unsigned long long>(row) * stride + i]);
            turned[i] = x - centre[i];
            product = fmaf(x, centre[i], product);
        }
        const float known = sum_of(product, sums) - centre_square;
        for (int round = 0; round < ROUNDS; ++round) {
            for (int i = threadIdx.x; i < dims; i += THREADS) turned[i] *= flips[round * dims + i];
            __syncthreads();
            float* part = turned + (round % 2 ? dims - mixed : 0);
            for (int width = 1; width < mixed; width *= 2) {
                for (int i = threadIdx.x; i < mixed / 2; i += THREADS) {
                    const int low = 2 * width * (i / width) + i % width;
                    const float a = part[low], b = part[low + width];
                    part[low] = a + b;
                    part[low + width] = a - b;
                }
                __syncthreads();
            }
            for (int i = threadIdx.x; i < mixed; i += THREADS) part[i] *= scale;
            __syncthreads();
        }
        float square = 0.0f, sum = 0.0f;
        for (int i = threadIdx.x; i < padded; i += THREADS) {
            const float x = i < dims ? turned[i] : -1.0f;
            const unsigned bits = __ballot_sync(0xffffffffu, x >= 0.0f);
            if (threadIdx.x % 32 == 0) words[word_at(row, i / 32, padded / 32)] = bits;
            if (i < dims) square = fmaf(x, x, square), sum += fabsf(x);
        }
        square = sum_of(square, sums);
        sum = sum_of(sum, sums);
        if (threadIdx.x == 0) {
            // The square of the cosine of the vector with its signs: about 0.64.
            const float likeness = square > 0.0f ? sum * sum / (dims * square) : 1.0f;
            const float error = sqrtf(square * fmaxf(1.0f / likeness - 1.0f, 0.0f) / (dims - 1));
            worth[row] = {sum > 0.0f ? square / sum : 0.0f, error, known, 0.0f};
        }
        __syncthreads();
    }
}
