// Initialisation of shared memory.
#pragma once

// Sets so many bytes to 0, by all the block's threads.
__device__ inline void zero_smem(void* shared, int bytes) {
#pragma unroll 1
    for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) ((unsigned*)shared)[i] = 0;
}
