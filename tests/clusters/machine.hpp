// A GPU's clusters on one thread of a CPU: every thread of a kernel is a fiber, which runs until it waits for others.
// Fibers take turns in an order drawn from a seed, and what blocks send to each other arrives late, out of order, as it may.
// Not as on a GPU: a thread is not interrupted between two waits, memory is what was written last, an mbarrier counts without
// limits, and nobody looks whether an address is of the array that was meant.
// This is what a kernel sees, without the standard library's headers, which take longer to compile than it; machine.cpp runs it.
#pragma once
#include <string.h>

#define __device__
#define __global__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
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

// Threads that wait for each other: `waiting`, the last to come first, and what they show each other.
struct Fiber;
struct Meeting {
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
    Meeting meeting{32};
    unsigned given[32][6];  // to the tensor cores
    float sums[32][4];      // by them
    Late late;
};

struct Block {
    Index number, threads;
    unsigned place, rank, ended;  // among all blocks that run at once, and in its cluster; threads
    unsigned char* memory;
    Meeting meeting, named[16];
    Meeting* of_cluster;
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

void come(Meeting& meeting, bool any = false);
bool meet(Meeting& meeting, bool any = false);  // whether any of them said so

// Until asks(about) says so, once in a sweep at most: true; false when it does not within so many sweeps.
bool wait_until(bool (*asks)(void* about), void* about, unsigned long long most_sweeps);
unsigned long long sweeps_so_far();

// An mbarrier of one arrival: bytes still to come, whether they have been told, and the parity of the phase.
struct Barrier {
    int bytes;
    short is_told, parity;
};
void tell(Barrier& barrier, int bytes);

// Of a word of shared memory the upper eight bits are the block's place, the others where in its memory.
unsigned char* memory_at(unsigned address);
// Up to 16 bytes, into a block's shared memory, where a barrier counts them.
void send_later(unsigned place, const void* value, unsigned bytes, unsigned barrier);
void publish_later(uint4* place, const uint4& value);
void await_published();  // all that was published until now is there

// A thread's own copies, which are done when they are waited for, in groups.
void copy_when_awaited(void* to, const void* from);
void end_group_of_copies();
void await_copies(unsigned left_groups);

inline void __syncthreads() { meet(current.block->meeting); }
inline bool __syncthreads_or(bool any) { return meet(current.block->meeting, any); }
inline Warp& warp_of_current() { return current.block->warps[threadIdx.x / 32]; }
inline void __syncwarp() { meet(warp_of_current().meeting); }
inline bool __all_sync(unsigned, bool all) { return !meet(warp_of_current().meeting, !all); }
inline float __shfl_xor_sync(unsigned, float value, unsigned other) {
    Warp& warp = warp_of_current();
    warp.sums[threadIdx.x % 32][0] = value;
    meet(warp.meeting);
    const float found = warp.sums[threadIdx.x % 32 ^ other][0];
    meet(warp.meeting);
    return found;
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

// A kernel with arguments that were given as long long each.
template <unsigned... I> struct Numbers {};
template <unsigned N, unsigned... I> struct UpTo : UpTo<N - 1, N - 1, I...> {};
template <unsigned... I> struct UpTo<0, I...> {
    typedef Numbers<I...> type;
};
template <typename... A, unsigned... I> void call(void (*kernel)(A...), const long long* given, Numbers<I...>) {
    kernel((A)given[I]...);
}
template <typename... A> void call(void (*kernel)(A...), const long long* given) {
    call(kernel, given, typename UpTo<sizeof...(A)>::type());
}
