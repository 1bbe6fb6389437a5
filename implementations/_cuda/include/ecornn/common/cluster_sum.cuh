// Sums over a cluster's blocks. Compute capability 9.0.
#pragma once
#include "ecornn/ptx/cluster.cuh"

// Adds what the first COUNT blocks of the cluster have at one address of their shared memory, from block 0 on. It follows a
// cluster_sync; before the next one none of the blocks may end.
template <int COUNT> __device__ inline float cluster_sum(const float* place) {
    float sum = 0;
#pragma unroll
    for (int block = 0; block < COUNT; block++) sum += ld_shared_cluster(map_shared_rank(smem_addr(place), block));
    return sum;
}
