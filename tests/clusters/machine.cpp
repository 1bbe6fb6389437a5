// How machine.hpp's fibers take turns. A fiber that waits is not run until it may go on; one that asks again and again is asked
// without being run. Stacks stay from one launch to the next.
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

struct Question {
    bool (*asks)(void*) = nullptr;
    void* about;
    unsigned long long until;  // this sweep
    bool is_answered;
    unsigned long long change = 0;  // the last one before it was asked
    unsigned in_vain = 0;           // so many times since
};

struct Fiber {
    static constexpr size_t STACK_BYTES = 96 * 1024;
    jmp_buf place;  // where it goes on
    ucontext_t start;
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
    Stack own_stack{stack.get(), STACK_BYTES};
    bool is_begun = false, is_idle = true;
    Current own;
    Fiber* waits_after;  // at the same meeting
    Question question;
    std::vector<Copy> copies;
    std::vector<size_t> groups;  // where each begins, the last not yet ended

    Warp& warp() const { return own.block->warps[own.thread.x / 32]; }
};

// A value on its way, to a place that a barrier of a block counts, or that nobody counts.
struct Message {
    void* place;
    unsigned char value[16];
    unsigned bytes;
    Barrier* barrier;
    Block* to;
};

enum Outcome { ENDED, HANGS, TOLD_TOO_LATE, EXPECTED_TWICE };

struct Cluster {
    std::vector<Block> blocks;
    std::vector<std::vector<unsigned char>> memories;
    std::vector<std::vector<Warp>> warps;
    std::vector<Fiber*> ready;  // for the next sweep, those that ask among them
    std::vector<Fiber*> turns;  // of this sweep
    size_t turn = 0;
    std::vector<Message> messages;
    std::vector<Meeting> meetings;
    std::mt19937 random;
    unsigned long long sweeps = 0;
    size_t ended = 0;
    unsigned long long change = 0;  // the number of the last: somebody has run, something has come
    Outcome outcome = ENDED;
};

static std::vector<std::unique_ptr<Fiber>> fibers;
static Cluster* cluster;
static Fiber* running;
static jmp_buf scheduler;
static Stack scheduler_stack;  // the caller's
static void (*kernel)(const long long*);
static const long long* arguments;

static void pause() {
    if (_setjmp(running->place)) return arrive_on(running->own_stack);
    leave_for(running->own_stack, scheduler_stack);
    _longjmp(scheduler, 1);
}

static void run_kernels() {
    arrive_from(scheduler_stack);
    for (;;) {
        kernel(arguments);
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

void come(Meeting& meeting, bool any) {
    meeting.any |= any;
    if (++meeting.arrived < meeting.members) return;
    meeting.was_any = meeting.any, meeting.any = false, meeting.arrived = 0;
    for (Fiber* fiber = std::exchange(meeting.waiting, nullptr); fiber;) wake(std::exchange(fiber, fiber->waits_after));
}

bool meet(Meeting& meeting, bool any) {
    const bool is_last = meeting.arrived + 1 >= meeting.members;
    if (!is_last) running->waits_after = std::exchange(meeting.waiting, running);
    come(meeting, any);
    if (!is_last) pause();
    return meeting.was_any;
}

bool wait_until(bool (*asks)(void*), void* about, unsigned long long most_sweeps) {
    if (asks(about)) return true;
    running->question = {asks, about, cluster->sweeps + most_sweeps + 1, false};
    cluster->ready.push_back(running);
    pause();
    return running->question.is_answered;
}

unsigned long long sweeps_so_far() { return cluster->sweeps; }

static void settle(Barrier& barrier) {
    if (barrier.is_told && barrier.bytes == 0) barrier.is_told = 0, barrier.parity ^= 1;
}

void tell(Barrier& barrier, int bytes) {
    if (barrier.is_told) cluster->outcome = EXPECTED_TWICE;
    barrier.bytes += bytes, barrier.is_told = 1;
    settle(barrier);
}

unsigned char* memory_at(unsigned address) { return cluster->memories.at(address >> 24).data() + (address & 0xffffff); }

static void put_off(void* place, const void* value, unsigned bytes, Barrier* barrier, Block* to) {
    cluster->messages.push_back({place, {}, bytes, barrier, to});
    memcpy(cluster->messages.back().value, value, bytes);
}
void send_later(unsigned place, const void* value, unsigned bytes, unsigned barrier) {
    put_off(memory_at(place), value, bytes, (Barrier*)memory_at(barrier), &cluster->blocks.at(place >> 24));
}
void publish_later(uint4* place, const uint4& value) { put_off(place, &value, 16, nullptr, nullptr); }
void await_published() {
    wait_until([](void*) { return cluster->messages.empty(); }, nullptr, ~0u);
}

void copy_when_awaited(void* to, const void* from) { running->copies.push_back({to, from}); }
void end_group_of_copies() { running->groups.push_back(running->copies.size()); }
void await_copies(unsigned left_groups) {
    auto& copies = running->copies;
    auto& groups = running->groups;
    if (groups.size() <= left_groups + 1) return;
    const size_t over = groups.size() - 1 - left_groups, end = groups[over];
    for (size_t i = 0; i < end; i++) memcpy(copies[i].to, copies[i].from, 16);
    copies.erase(copies.begin(), copies.begin() + end), groups.erase(groups.begin(), groups.begin() + over);
    for (size_t& begins : groups) begins -= end;
}

static void deliver(const Message& message) {
    cluster->change++;
    if (message.to && message.to->ended) cluster->outcome = TOLD_TOO_LATE;
    memcpy(message.place, message.value, message.bytes);
    if (!message.barrier) return;
    message.barrier->bytes -= (int)message.bytes;
    settle(*message.barrier);
}

template <typename T> static void shuffle(std::vector<T>& all) {
    for (size_t i = all.size(); i > 1; i--) std::swap(all[i - 1], all[cluster->random() % i]);
}

static void deliver_some() {
    auto& messages = cluster->messages;
    shuffle(messages);
    size_t late = 0;
    for (const Message message : messages) {
        if (cluster->random() % 2) deliver(message);
        else messages[late++] = message;
    }
    messages.resize(late);
}

static void draw(Late& late) {
    const auto sweeps = cluster->sweeps;
    if (sweeps >= late.until && cluster->random() % 64 == 0) late.until = sweeps + cluster->random() % 64;
    late.is_now = sweeps < late.until;
}

static void take_turn(Fiber& fiber) {
    Question& question = fiber.question;
    if (question.asks) {
        current = fiber.own;
        question.is_answered = question.asks(question.about);
        if (!question.is_answered && cluster->sweeps < question.until) {
            question.in_vain = question.change == cluster->change ? question.in_vain + 1 : 0;
            question.change = cluster->change;
            cluster->ready.push_back(&fiber);
            return;
        }
        question.asks = nullptr;
    }
    resume(fiber);
}

// Where all have asked some times since the last change, and nothing is on its way, nothing changes until one of them gives up.
static void let_time_pass() {
    if (!cluster->messages.empty()) return;
    unsigned long long until = ~0ull;
    for (const Fiber* fiber : cluster->ready) {
        const Question& question = fiber->question;
        if (!question.asks || question.change != cluster->change || question.in_vain < 3) return;
        until = std::min(until, question.until);
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
    deliver_some();
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
    fiber.own = {{thread}, &block}, fiber.question = {}, fiber.copies.clear(), fiber.groups = {0};
    cluster->ready.push_back(&fiber);
}

static void begin(Block& block, unsigned number, unsigned place, unsigned in_cluster, unsigned threads) {
    Meeting& of_cluster = cluster->meetings[place / in_cluster];
    of_cluster.members = in_cluster * threads;
    block = {{number}, {threads}, place, place % in_cluster, 0, cluster->memories[place].data(), {threads}, {}, &of_cluster,
             cluster->warps[place].data(), {}};
    block.late.until = cluster->random() % 2 ? 0 : cluster->random() % 600;
    for (unsigned t = 0; t < threads; t++) begin(*fibers[(size_t)place * threads + t], block, t);
}

// Blocks from `first` on, in clusters of so many: one, or all that run at once; of a grid all blocks are one.
extern "C" Outcome run_clusters(void (*to_run)(const long long*), unsigned first, unsigned blocks, unsigned in_cluster,
                                unsigned threads, unsigned shared_bytes, unsigned seed, unsigned long long most_sweeps,
                                const long long* given) {
    Cluster now;
    cluster = &now, kernel = to_run, arguments = given;
    now.blocks.resize(blocks), now.meetings.resize(blocks / in_cluster), now.random.seed(seed);
    now.memories.assign(blocks, std::vector<unsigned char>(shared_bytes, 0xff));
    now.warps.assign(blocks, std::vector<Warp>(threads / 32));
    while (fibers.size() < (size_t)blocks * threads) fibers.emplace_back(new Fiber);
    for (unsigned b = 0; b < blocks; b++) begin(now.blocks[b], first + b, b, in_cluster, threads);
    while (now.ended < (size_t)blocks * threads) {
        if (now.sweeps >= most_sweeps || (now.ready.empty() && now.messages.empty())) return HANGS;
        sweep();
    }
    return now.outcome;
}
