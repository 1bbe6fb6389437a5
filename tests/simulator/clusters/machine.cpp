// How machine.hpp's fibers take turns. A fiber that waits is not run until it may go on; the condition
// of one that polls is evaluated without running it. Stacks stay from one launch to the next.
#include "machine.hpp"

#include "fibers.hpp"

#include <memory>
#include <random>
#include <setjmp.h>
#include <ucontext.h>
#include <utility>
#include <vector>

Current current;

struct Copy {
    void* to;
    const void* from;
};

struct Poll {
    bool (*condition)(void*) = nullptr;
    void* data;
    unsigned long long until;  // this sweep
    bool is_true;
    unsigned long long change = 0;  // the last one before it was polled
    unsigned failures = 0;          // since then
};

struct Fiber {
    static constexpr size_t STACK_BYTES = 96 * 1024;
    jmp_buf place;  // where it goes on
    ucontext_t start;
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
    Stack own_stack{stack.get(), STACK_BYTES};
    bool is_begun = false, is_idle = true;
    Current own;
    Fiber* next_waiting;  // at the same barrier
    Poll poll;
    std::vector<Copy> copies;
    std::vector<size_t> groups;  // where each begins, the last not yet ended

    Warp& warp() const { return own.block->warps[own.thread.x / 32]; }
};

// A value on its way to memory, counted by an mbarrier of a block, or by none.
struct Store {
    void* place;
    unsigned char value[16];
    unsigned bytes;
    MBarrier* mbarrier;
    Block* to;
};

enum Outcome { ENDED, HANGS, STORED_TOO_LATE, EXPECTED_TWICE };

struct Cluster {
    std::vector<Block> blocks;
    std::vector<std::vector<unsigned char>> memories;
    std::vector<std::vector<Warp>> warps;
    std::vector<Fiber*> ready;  // for the next sweep, those that poll among them
    std::vector<Fiber*> turns;  // of this sweep
    size_t turn = 0;
    std::vector<Store> stores;
    std::vector<Barrier> cluster_barriers;
    std::mt19937 random;
    unsigned long long sweeps = 0;
    size_t ended = 0;
    unsigned long long change = 0;  // the number of the last: a fiber has run, or a store is complete
    Outcome outcome = ENDED;
};

static std::vector<std::unique_ptr<Fiber>> fibers;
static Cluster* cluster;
static Fiber* running;
static jmp_buf scheduler;
static Stack scheduler_stack;  // the caller's
static void (*kernel)(const void*);
static const void* params;

static void pause() {
    if (_setjmp(running->place)) return arrive_on(running->own_stack);
    leave_for(running->own_stack, scheduler_stack);
    _longjmp(scheduler, 1);
}

static void run_kernels() {
    arrive_from(scheduler_stack);
    for (;;) {
        kernel(params);
        running->is_idle = true;
        current.block->ended++, cluster->ended++;
        pause();  // until the next launch
    }
}

static void resume(Fiber& fiber) {
    running = &fiber, current = fiber.own, cluster->change++;
    if (_setjmp(scheduler)) return arrive_on(scheduler_stack);
    leave_for(scheduler_stack, fiber.own_stack);
    if (fiber.is_begun) _longjmp(fiber.place, 1);
    fiber.is_begun = true;
    setcontext(&fiber.start);
}

// To the next sweep, or into a place of this one that chance names.
static void wake(Fiber* fiber) {
    auto& turns = cluster->turns;
    if (fiber->warp().late.is_now || cluster->random() % 2) {
        cluster->ready.push_back(fiber);
        return;
    }
    turns.push_back(fiber);
    const size_t first = cluster->turn + 1;
    std::swap(turns.back(), turns[first + cluster->random() % (turns.size() - first)]);
}

void barrier_arrive(Barrier& barrier, bool any) {
    barrier.any |= any;
    if (++barrier.arrived < barrier.members) return;
    barrier.was_any = barrier.any, barrier.any = false, barrier.arrived = 0;
    for (Fiber* fiber = std::exchange(barrier.waiting, nullptr); fiber;) wake(std::exchange(fiber, fiber->next_waiting));
}

bool barrier_sync(Barrier& barrier, bool any) {
    const bool is_last = barrier.arrived + 1 >= barrier.members;
    if (!is_last) running->next_waiting = std::exchange(barrier.waiting, running);
    barrier_arrive(barrier, any);
    if (!is_last) pause();
    return barrier.was_any;
}

bool poll_until(bool (*condition)(void*), void* data, unsigned long long most_sweeps) {
    if (condition(data)) return true;
    running->poll = {condition, data, cluster->sweeps + most_sweeps + 1, false};
    cluster->ready.push_back(running);
    pause();
    return running->poll.is_true;
}

unsigned long long sweeps_so_far() { return cluster->sweeps; }

static void settle(MBarrier& mbarrier) {
    if (mbarrier.has_arrived && mbarrier.bytes == 0) mbarrier.has_arrived = 0, mbarrier.parity ^= 1;
}

void arrive_expect_tx(MBarrier& mbarrier, int bytes) {
    if (mbarrier.has_arrived) cluster->outcome = EXPECTED_TWICE;
    mbarrier.bytes += bytes, mbarrier.has_arrived = 1;
    settle(mbarrier);
}

unsigned char* smem_ptr(unsigned address) { return cluster->memories.at(address >> 24).data() + (address & 0xffffff); }

static void post(void* place, const void* value, unsigned bytes, MBarrier* mbarrier, Block* to) {
    cluster->stores.push_back({place, {}, bytes, mbarrier, to});
    memcpy(cluster->stores.back().value, value, bytes);
}
void store_later(unsigned address, const void* value, unsigned bytes, unsigned mbarrier) {
    post(smem_ptr(address), value, bytes, (MBarrier*)smem_ptr(mbarrier), &cluster->blocks.at(address >> 24));
}
void store_later(uint4* ptr, const uint4& value) { post(ptr, &value, 16, nullptr, nullptr); }
void wait_for_stores() {
    poll_until([](void*) { return cluster->stores.empty(); }, nullptr, ~0u);
}

void queue_copy(void* to, const void* from) { running->copies.push_back({to, from}); }
void commit_copies() { running->groups.push_back(running->copies.size()); }
void wait_for_copies(unsigned pending_groups) {
    auto& copies = running->copies;
    auto& groups = running->groups;
    if (groups.size() <= pending_groups + 1) return;
    const size_t over = groups.size() - 1 - pending_groups, end = groups[over];
    for (size_t i = 0; i < end; i++) memcpy(copies[i].to, copies[i].from, 16);
    copies.erase(copies.begin(), copies.begin() + end), groups.erase(groups.begin(), groups.begin() + over);
    for (size_t& begins : groups) begins -= end;
}

static void complete(const Store& store) {
    cluster->change++;
    if (store.to && store.to->ended) cluster->outcome = STORED_TOO_LATE;
    memcpy(store.place, store.value, store.bytes);
    if (!store.mbarrier) return;
    store.mbarrier->bytes -= (int)store.bytes;
    settle(*store.mbarrier);
}

template <typename T> static void shuffle(std::vector<T>& all) {
    for (size_t i = all.size(); i > 1; i--) std::swap(all[i - 1], all[cluster->random() % i]);
}

static void complete_some() {
    auto& stores = cluster->stores;
    shuffle(stores);
    size_t late = 0;
    for (const Store store : stores) {
        if (cluster->random() % 2) complete(store);
        else stores[late++] = store;
    }
    stores.resize(late);
}

static void draw(Late& late) {
    const auto sweeps = cluster->sweeps;
    if (sweeps >= late.until && cluster->random() % 64 == 0) late.until = sweeps + cluster->random() % 64;
    late.is_now = sweeps < late.until;
}

static void take_turn(Fiber& fiber) {
    Poll& poll = fiber.poll;
    if (poll.condition) {
        current = fiber.own;
        poll.is_true = poll.condition(poll.data);
        if (!poll.is_true && cluster->sweeps < poll.until) {
            poll.failures = poll.change == cluster->change ? poll.failures + 1 : 0;
            poll.change = cluster->change;
            cluster->ready.push_back(&fiber);
            return;
        }
        poll.condition = nullptr;
    }
    resume(fiber);
}

// Where all have polled some times since the last change, and no store is on its way, nothing changes until one of them times out.
static void let_time_pass() {
    if (!cluster->stores.empty()) return;
    unsigned long long until = ~0ull;
    for (const Fiber* fiber : cluster->ready) {
        const Poll& poll = fiber->poll;
        if (!poll.condition || poll.change != cluster->change || poll.failures < 3) return;
        until = std::min(until, poll.until);
    }
    cluster->sweeps = std::max(cluster->sweeps, until);
}

static void sweep() {
    auto &ready = cluster->ready, &turns = cluster->turns;
    for (Block& block : cluster->blocks) {
        draw(block.late);
        for (size_t warp = 0; warp < block.threads.x / 32; warp++) {
            Late& late = block.warps[warp].late;
            draw(late);
            late.is_now |= block.late.is_now;
        }
    }
    turns.clear();
    size_t late = 0;
    for (Fiber* fiber : ready) {
        if (fiber->warp().late.is_now) ready[late++] = fiber;
        else turns.push_back(fiber);
    }
    ready.resize(late);
    shuffle(turns);
    for (cluster->turn = 0; cluster->turn < turns.size(); cluster->turn++) take_turn(*turns[cluster->turn]);
    complete_some();
    cluster->sweeps++;
    let_time_pass();
}

static void begin(Fiber& fiber, Block& block, unsigned thread) {
    if (!fiber.is_idle || !fiber.is_begun) {  // not where it waits for the next launch
        getcontext(&fiber.start);
        fiber.start.uc_stack.ss_sp = fiber.stack.get(), fiber.start.uc_stack.ss_size = Fiber::STACK_BYTES;
        fiber.start.uc_link = nullptr;
        makecontext(&fiber.start, run_kernels, 0);
        fiber.is_begun = false;
    }
    fiber.is_idle = false;
    fiber.own = {{thread}, &block}, fiber.poll = {}, fiber.copies.clear(), fiber.groups = {0};
    cluster->ready.push_back(&fiber);
}

static void begin(Block& block, unsigned number, unsigned place, unsigned in_cluster, unsigned threads) {
    Barrier& of_cluster = cluster->cluster_barriers[place / in_cluster];
    of_cluster.members = in_cluster * threads;
    block = {{number}, {threads}, place, place % in_cluster, 0, cluster->memories[place].data(), {threads}, {}, &of_cluster,
             cluster->warps[place].data(), {}};
    block.late.until = cluster->random() % 2 ? 0 : cluster->random() % 600;
    for (unsigned t = 0; t < threads; t++) begin(*fibers[(size_t)place * threads + t], block, t);
}

// Blocks from `first` on, in clusters of so many: one, or all that run at once; of a grid all blocks are one.
extern "C" Outcome run_clusters(void (*to_run)(const void*), unsigned first, unsigned blocks, unsigned in_cluster,
                                unsigned threads, unsigned shared_bytes, unsigned seed, unsigned long long most_sweeps,
                                const void* given) {
    Cluster now;
    cluster = &now, kernel = to_run, params = given;
    now.blocks.resize(blocks), now.cluster_barriers.resize(blocks / in_cluster), now.random.seed(seed);
    now.memories.assign(blocks, std::vector<unsigned char>(shared_bytes, 0xff));
    now.warps.assign(blocks, std::vector<Warp>(threads / 32));
    while (fibers.size() < (size_t)blocks * threads) fibers.emplace_back(new Fiber);
    for (unsigned b = 0; b < blocks; b++) begin(now.blocks[b], first + b, b, in_cluster, threads);
    while (now.ended < (size_t)blocks * threads) {
        if (now.sweeps >= most_sweeps || (now.ready.empty() && now.stores.empty())) return HANGS;
        sweep();
    }
    return now.outcome;
}
