// A product of weights [64, K], the rows of a group of 4 warps, and states [N, K] by Hopper's wgmma: 16 bits, sums in float32.
// Thread (g, t) = (lane / 4, lane % 4) of warp w holds, of weights and of sums, rows 16 (w % 4) + g and + 8; of weights columns
// 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of each 16, of sums columns 2 t and 2 t + 1 of each 8. In shared memory columns lie in
// eights: [K / 8][rows][8], so that 8 rows of an eight are the 128 bytes that wgmma reads at once, beside those of further rows.
#pragma once
#include "cluster.cuh"
#include "storage.cuh"

// Of weights: 16 columns of a thread's rows.
struct Slice {
    unsigned at[4];
};

// Of 8 rows of states.
struct Sums {
    float at[4];
};

// Where wgmma finds 16 columns, as its descriptor says it.
struct Place {
    unsigned first, second;
    __device__ unsigned long long after(unsigned bytes) const {
        return (unsigned long long)second << 32 | (first + bytes / 16);
    }
};

// In bytes, how far the second eight of columns is from the first, and the next 8 rows.
__device__ inline Place place_of(const void* shared, unsigned eights, unsigned rows) {
    return {(address_of(shared) & 0x3ffff) / 16 | eights / 16 << 16, rows / 16};  // without the block's rank in its cluster
}

#include "wgmma.cuh"
