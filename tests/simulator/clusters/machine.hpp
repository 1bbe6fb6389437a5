// A GPU's clusters on one thread of a CPU: every thread of a kernel is a fiber, which runs until it waits for others.
// Fibers take turns in an order drawn from a seed, and stores of one block for another are visible late, out of order, as may be.
// Not as on a GPU: a thread is not interrupted between two waits, memory is what was written last, an mbarrier counts without
// limits, and nobody looks whether an address is of the array that was meant.
// This is what a kernel sees, without the standard library's headers, which take longer to compile than it; machine.cpp runs it.
#pragma once
#include <string.h>

#define __device__
#define __global__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define index offset_of_kernel  // a function of C has the name

extern "C" {
float exp2f(float) noexcept;
float fabsf(float) noexcept;
float fmaf(float, float, float) noexcept;
float copysignf(float, float) noexcept;
}
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct Index {
    unsigned x;
};

// A barrier of threads: `waiting`, the last to arrive first, and whether any of them said `any`.
struct Fiber;
struct Barrier {
    unsigned members = 0, arrived = 0;
    bool any = false, was_any = false;
    Fiber* waiting = nullptr;
};

// What may be late: until a sweep over all fibers that chance names, it does not run.
struct Late {
    unsigned long long until = 0;
    bool is_now = false;
};

struct Warp {
    Barrier barrier{32};
    unsigned operands[32][6];  // to the tensor cores
    float sums[32][4];      // by them
    Late late;
};

struct Block {
    Index number, threads;
    unsigned place, rank, ended;  // among all blocks that run at once, and in its cluster; threads
    unsigned char* memory;
    Barrier barrier, named[16];
    Barrier* of_cluster;
    Warp* warps;
    Late late;
};

// What the thread that runs has for the kernel to see.
struct Current {
    Index thread;
    Block* block;
};
extern Current current;

#define threadIdx (current.thread)
#define blockIdx (current.block->number)
#define blockDim (current.block->threads)

void barrier_arrive(Barrier& barrier, bool any = false);
bool barrier_sync(Barrier& barrier, bool any = false);  // whether `any` holds for any of them

// Polls condition(data) until it holds, once in a sweep at most: true; false when it does not within so many sweeps.
bool poll_until(bool (*condition)(void* data), void* data, unsigned long long most_sweeps);
unsigned long long sweeps_so_far();

// An mbarrier of one arrival: pending bytes, whether the expected bytes are known, and the parity of the phase.
struct MBarrier {
    int bytes;
    short has_arrived, parity;
};
void arrive_expect_tx(MBarrier& mbarrier, int bytes);

// The upper eight bits of a shared-memory address are the block's place, the others the offset in its memory.
unsigned char* smem_ptr(unsigned address);
// Stores up to 16 bytes into a block's shared memory, where an mbarrier counts them.
void store_later(unsigned address, const void* value, unsigned bytes, unsigned mbarrier);
void store_later(uint4* ptr, const uint4& value);
void wait_for_stores();  // all that was stored until now is visible

// A thread's own copies, in groups, which are done when they are waited for.
void queue_copy(void* to, const void* from);
void commit_copies();
void wait_for_copies(unsigned left_groups);

inline void __syncthreads() { barrier_sync(current.block->barrier); }
inline bool __syncthreads_or(bool any) { return barrier_sync(current.block->barrier, any); }
inline Warp& warp_of_current() { return current.block->warps[threadIdx.x / 32]; }
inline void __threadfence() {}
inline void __syncwarp() { barrier_sync(warp_of_current().barrier); }
inline bool __all_sync(unsigned, bool all) { return !barrier_sync(warp_of_current().barrier, !all); }
inline float __shfl_xor_sync(unsigned, float value, unsigned other) {
    Warp& warp = warp_of_current();
    warp.sums[threadIdx.x % 32][0] = value;
    barrier_sync(warp.barrier);
    const float result = warp.sums[threadIdx.x % 32 ^ other][0];
    barrier_sync(warp.barrier);
    return result;
}

inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}

inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// Calls a kernel with its Params.
template <typename Params> void call(void (*kernel)(Params), const void* params) { kernel(*(const Params*)params); }
