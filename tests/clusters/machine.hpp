// A GPU's clusters on one thread of a CPU: every thread of a kernel is a fiber, which runs until it waits for others.
// Fibers take turns in an order drawn from a seed, and what blocks send to each other arrives late, out of order, as it may.
// Not as on a GPU: a thread is not interrupted between two waits, memory is what was written last, an mbarrier counts without
// limits, and nobody looks whether an address is of the array that was meant.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
using std::exp;
using std::max;
using std::min;
#define index offset_of_kernel  // a function of C has the name

struct uint4 {
    unsigned x, y, z, w;
};
struct uint2 {
    unsigned x, y;
};
struct Index {
    unsigned x;
};

// Threads that wait for each other, and what they show each other.
struct Meeting {
    unsigned members = 0, arrived = 0, generation = 0, any = 0, was_any = 0;
};

struct Block;
struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    Block* block;
    Index thread;
    bool is_done = false;
    std::vector<std::vector<std::function<void()>>> copies{1};  // in groups, the last not yet ended
};

// What may be late: until a sweep over all fibers that chance names, it does not run.
struct Late {
    unsigned long long until = 0;
    bool is_now(unsigned long long sweeps, std::mt19937& random) {
        if (sweeps >= until && random() % 64 == 0) until = sweeps + random() % 64;
        return sweeps < until;
    }
};

struct Warp {
    Meeting meeting{32};
    unsigned words[32][6];
    Late late;
};

struct Block {
    Index number;
    unsigned rank;
    std::vector<unsigned char> memory;
    Meeting meeting, named[16];
    std::vector<Warp> warps;
    Late late;
    Meeting& meeting_of(int number, unsigned threads) {
        named[number].members = threads;
        return named[number];
    }
};

enum Outcome { ENDED, HANGS, TOLD_TOO_LATE, EXPECTED_TWICE };

struct Cluster {
    std::vector<Block> blocks;
    std::vector<Fiber> fibers;
    std::vector<std::function<void()>> messages;  // what they do when they arrive
    Meeting meeting;
    std::mt19937 random;
    unsigned long long sweeps = 0;
    Outcome outcome = ENDED;
    ucontext_t scheduler;
};

static Cluster* cluster;
static Fiber* current;

#define threadIdx (current->thread)
#define blockIdx (current->block->number)
#define blockDim (Index{current->block->meeting.members})

static void pause() { swapcontext(&current->context, &cluster->scheduler); }

static void come(Meeting& meeting, bool any = false) {
    meeting.any |= any;
    if (++meeting.arrived == meeting.members) {
        meeting.was_any = meeting.any;
        meeting.any = meeting.arrived = 0, meeting.generation++;
    }
}

static bool meet(Meeting& meeting, bool any = false) {
    const unsigned generation = meeting.generation;
    come(meeting, any);
    while (meeting.generation == generation) pause();
    return meeting.was_any;
}

static void __syncthreads() { meet(current->block->meeting); }
static bool __syncthreads_or(bool any) { return meet(current->block->meeting, any); }

static Warp& warp_of_current() { return current->block->warps[threadIdx.x / 32]; }
static void __syncwarp() { meet(warp_of_current().meeting); }

static unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

static float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static float __shfl_xor_sync(unsigned, float value, unsigned lanes) {
    Warp& warp = warp_of_current();
    const unsigned lane = threadIdx.x % 32;
    std::memcpy(warp.words[lane], &value, 4);
    meet(warp.meeting);
    std::memcpy(&value, warp.words[lane ^ lanes], 4);
    meet(warp.meeting);
    return value;
}

// Of a word of shared memory the upper eight bits are the block's rank, the others where in its memory.
static unsigned char* memory_at(unsigned address) { return cluster->blocks.at(address >> 24).memory.data() + (address & 0xffffff); }

// An mbarrier of one arrival: bytes still to come, whether they have been told, and the parity of the phase.
struct Barrier {
    int bytes;
    short is_told, parity;
};
static void settle(Barrier& barrier) {
    if (barrier.is_told && barrier.bytes == 0) barrier.is_told = 0, barrier.parity ^= 1;
}

// Into a block's shared memory, where a barrier counts it.
static void deliver(unsigned place, unsigned barrier, const uint4& value) {
    const Block* to = &cluster->blocks.at(place >> 24);
    for (const Fiber& fiber : cluster->fibers)
        if (fiber.block == to && fiber.is_done) cluster->outcome = TOLD_TOO_LATE;
    std::memcpy(memory_at(place), &value, 16);
    Barrier& counted = *(Barrier*)memory_at(barrier);
    counted.bytes -= 16;
    settle(counted);
}

static void deliver_some() {
    std::vector<std::function<void()>> late;
    std::shuffle(cluster->messages.begin(), cluster->messages.end(), cluster->random);
    for (const auto& message : cluster->messages) {
        if (cluster->random() % 2) message();
        else late.push_back(message);
    }
    cluster->messages = late;
}

template <typename... A, size_t... I> static void call(void (*kernel)(A...), const long long* given, std::index_sequence<I...>) {
    kernel((A)given[I]...);
}
template <typename... A> static void call(void (*kernel)(A...), const long long* given) {
    call(kernel, given, std::index_sequence_for<A...>());
}

static const long long* arguments;
static void run_kernel();  // as the source to be run has it
static void run_fiber() {
    run_kernel();
    current->is_done = true;
    pause();
}

static void sweep() {
    std::vector<Fiber*> order;
    std::vector<const Warp*> late;
    for (Block& block : cluster->blocks) {
        const bool is_late = block.late.is_now(cluster->sweeps, cluster->random);
        for (Warp& warp : block.warps)
            if (warp.late.is_now(cluster->sweeps, cluster->random) || is_late) late.push_back(&warp);
    }
    for (Fiber& fiber : cluster->fibers) {
        const bool is_late = std::find(late.begin(), late.end(), &fiber.block->warps[fiber.thread.x / 32]) != late.end();
        if (!fiber.is_done && !is_late) order.push_back(&fiber);
    }
    std::shuffle(order.begin(), order.end(), cluster->random);
    for (Fiber* fiber : order) {
        current = fiber;
        swapcontext(&cluster->scheduler, &fiber->context);
    }
    deliver_some();
    cluster->sweeps++;
}

// Blocks from `first` on, as many as a cluster has, or all of a grid that run at once.
extern "C" Outcome run_cluster(unsigned first, unsigned blocks, unsigned threads, unsigned shared_bytes, unsigned seed,
                            unsigned long long most_sweeps, const long long* given) {
    Cluster now;
    now.blocks.resize(blocks), now.fibers.resize((size_t)blocks * threads);
    now.meeting.members = blocks * threads, now.random.seed(seed);
    cluster = &now, arguments = given;
    for (unsigned b = 0; b < blocks; b++) {
        now.blocks[b] = {{first + b}, b, std::vector<unsigned char>(shared_bytes, 0xff), {threads}, {}, std::vector<Warp>(threads / 32)};
        now.blocks[b].late.until = now.random() % 2 ? 0 : now.random() % 600;
        for (unsigned t = 0; t < threads; t++) {
            Fiber& fiber = now.fibers[(size_t)b * threads + t];
            fiber.stack.resize(96 * 1024), fiber.block = &now.blocks[b], fiber.thread = {t};
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.data(), fiber.context.uc_stack.ss_size = fiber.stack.size();
            fiber.context.uc_link = nullptr;
            makecontext(&fiber.context, run_fiber, 0);
        }
    }
    const auto is_over = [&] {
        for (const Fiber& fiber : now.fibers)
            if (!fiber.is_done) return false;
        return true;
    };
    while (!is_over()) {
        if (now.sweeps >= most_sweeps) return HANGS;
        sweep();
    }
    return now.outcome;
}
