// Tiles of a scan and how the state gets through them: STRETCHES stretches of STEPS steps each, for WIDTH channels of a sequence.
// A thread has PACK channels of one stretch. Without SPLIT a block has all tiles of its channels, one after the other. With it
// it has the earliest tile that nobody has, and then the next. Tiles publish what they do to a state, the last of each `group`
// tiles also what its group does, and a tile folds what lies before it, in the order of time: the groups, then the tiles of its
// own. It does so when the next tile has been published and while the one after that is read, so that hardly anyone waits.
#pragma once
#include "affine.cuh"
#include "packed.cuh"

#define WIDTH (ACROSS * PACK)
#define STRETCHES (32 * WARPS / ACROSS)
#define TILE (STEPS * STRETCHES)

typedef long long offset;

struct Job {
    int tile, group, channel_block, sequence, first_channel;
};

// What a thread's stretch does to the states of its channels.
struct Maps {
    Affine of[PACK];
};

// Where stretches of a block meet.
struct Meeting {
    Affine of[STRETCHES][WIDTH];
    __device__ void set(int stretch, int lane, const Maps& maps) {
        for (int p = 0; p < PACK; ++p) of[stretch][lane + p] = maps.of[p];
    }
    // What all stretches come to; each is replaced by what those before it come to.
    __device__ Maps fold(int lane) {
        Maps found;
#pragma unroll
        for (int p = 0; p < PACK; ++p) {
            found.of[p] = {1, 0};
            for (int i = 0; i < STRETCHES; ++i) {
                const Affine next = of[i][lane + p];
                of[i][lane + p] = found.of[p];
                found.of[p] = then(found.of[p], next);
            }
        }
        return found;
    }
    __device__ void apply_all(int lane, wide& state) const {
#pragma unroll
        for (int i = 0; i < STRETCHES; ++i)
            for (int p = 0; p < PACK; ++p) state.at[p] = apply(of[i][lane + p], state.at[p]);
    }
    __device__ void apply_one(int stretch, int lane, wide& state) const {
        for (int p = 0; p < PACK; ++p) state.at[p] = apply(of[stretch][lane + p], state.at[p]);
    }
};

struct Block {
    int tiles, channel_blocks, across, group, stretch, lane;
    int* ticket;
    word* maps;

    __device__ Block(int* ticket, word* maps, int batch, int hidden, int tiles, int group)
        : tiles(tiles), across((hidden + WIDTH - 1) / WIDTH), group(group), stretch(threadIdx.x / ACROSS),
          lane(threadIdx.x % ACROSS * PACK), ticket(ticket), maps(maps) {
        channel_blocks = across * batch;
    }
    __device__ bool is_over(const Job& job) const { return job.tile >= tiles; }
    __device__ Job job(int tile, int channel_block) const {
        return {tile, tile / group, channel_block, channel_block / across, channel_block % across * WIDTH};
    }
};

// An array [T, B, ..]: how far apart steps and sequences lie.
template <typename element>
struct Rows {
    element* start;
    offset step, sequence;
};

// A thread's channels of one sequence, and the order in which its steps are scanned.
struct Place {
    int sequence, channel, steps, first_step;
    bool is_backwards, is_inside;
    offset length;

    __device__ Place(const offset* lengths, const Block& block, const Job& job, int steps, int hidden, bool is_backwards)
        : steps(steps), is_backwards(is_backwards) {
        sequence = job.sequence;
        channel = job.first_channel + block.lane;
        first_step = job.tile * TILE + block.stretch * STEPS;
        is_inside = channel < hidden && !block.is_over(job);
        length = MASKED && lengths && is_inside ? lengths[sequence] : steps;
    }
    template <typename element>
    __device__ offset stride(const Rows<element>& rows) const { return is_backwards ? -rows.step : rows.step; }
    template <typename element>
    __device__ element* at(const Rows<element>& rows, int step) const {
        return rows.start + sequence * rows.sequence + (is_backwards ? steps - 1 - step : step) * rows.step;
    }
    __device__ offset in_state(int hidden) const { return (offset)sequence * hidden + channel; }
    __device__ bool is_alive(int step) const {
        return step < steps && (!MASKED || (is_backwards ? steps - 1 - step : step) < length);
    }
    // Steps of this thread's stretch that there are.
    __device__ int count() const { return is_inside ? min(STEPS, max(0, steps - first_step)) : 0; }
};

#if SPLIT
// The maps that are published of a block's channels, for one thread.
struct Published {
    word* start;
    int row;  // words from a tile's map to the next

    __device__ Published(const Block& block, const Job& job)
        : start(block.maps + ((offset)job.channel_block * WIDTH + block.lane) * 2), row(2 * WIDTH * block.channel_blocks) {}
    __device__ word* at(int number) const { return start + (offset)number * row; }
    __device__ void set(int number, const Maps& all) const {
        for (int p = 0; p < PACK; ++p) publish(at(number) + 2 * p, all.of[p]);
    }
};

// What a thread's share comes to of what lies before a tile: the groups before its own, then the tiles from `first_tile`.
__device__ inline Maps share(const Block& block, const Job& job, int groups, int first_tile) {
    const Published published(block, job);
    const int count = groups + job.tile - first_tile;
    const int from = count * block.stretch / STRETCHES, to = count * (block.stretch + 1) / STRETCHES;
    Maps all;
    for (int p = 0; p < PACK; ++p)
        all.of[p] = folded(from, to, [&](int i) {
            return published.at(i < groups ? block.tiles + i : first_tile + i - groups) + 2 * p;
        });
    return all;
}

// Publishes what a tile does whose stretches met in `all`, and if its group ends with it what that does.
__device__ inline void publish_tile(const Block& block, const Job& job, Meeting& all, Meeting& scratch) {
    const bool is_publisher = block.stretch == STRETCHES - 1;
    Maps own;
    if (is_publisher) {
        own = all.fold(block.lane);
        Published(block, job).set(job.tile, own);
    }
    if (job.tile + 1 < (job.group + 1) * block.group) return;
    scratch.set(block.stretch, block.lane, share(block, job, 0, job.group * block.group));
    __syncthreads();
    if (is_publisher) {
        Maps whole = scratch.fold(block.lane);
        for (int p = 0; p < PACK; ++p) whole.of[p] = then(whole.of[p], own.of[p]);
        Published(block, job).set(block.tiles + job.group, whole);
    }
    __syncthreads();
}

// Runs through tiles by tickets; `task` says how a tile is read, computed and written.
template <typename Task>
__device__ inline void run(const Task& task, const Block& block) {
    __shared__ Job shown[2];
    __shared__ Meeting all[2], before;
    __shared__ compute held[Task::Steps::HELD][32 * WARPS];
    int ticket = 0;
    if (threadIdx.x == 0) {
        ticket = atomicAdd(block.ticket, 1);
        shown[1] = block.job(ticket / block.channel_blocks, ticket % block.channel_blocks);
        ticket = atomicAdd(block.ticket, 1);
    }
    __syncthreads();
    Job ahead = shown[1], job = {block.tiles};
    typename Task::Given given;
    task.load(given, task.place(ahead));
    for (int turn = 0; !block.is_over(job) || !block.is_over(ahead); ++turn) {
        const int now = turn % 2;
        typename Task::Steps steps = task.steps(given, task.place(ahead));
        all[now].set(block.stretch, block.lane, steps.summary());
        if (threadIdx.x == 0) shown[now] = block.job(ticket / block.channel_blocks, ticket % block.channel_blocks);
        __syncthreads();
        const Job next = shown[now];
        steps.swap(held);
        if (!block.is_over(next)) task.load(given, task.place(next));
        if (threadIdx.x == 0 && !block.is_over(next)) ticket = atomicAdd(block.ticket, 1);
        if (!block.is_over(ahead)) publish_tile(block, ahead, all[now], before);
        if (!block.is_over(job)) {
            before.set(block.stretch, block.lane, share(block, job, job.group, job.group * block.group));
            __syncthreads();
            const Place at = task.place(job);
            wide state = task.start(at);
            before.apply_all(block.lane, state);
            all[1 - now].apply_one(block.stretch, block.lane, state);
            task.emit(steps, at, state);
        }
        __syncthreads();
        job = ahead, ahead = next;
    }
}
#else
// Runs through all tiles of the block's channels; `task` says how a tile is read, computed and written.
template <typename Task>
__device__ inline void run(const Task& task, const Block& block) {
    __shared__ Meeting all[2];
    Job job = block.job(0, blockIdx.x);
    Place at = task.place(job);
    wide carry = task.start(at);
    typename Task::Given given;
    task.load(given, at);
    while (!block.is_over(job)) {
        const typename Task::Steps steps = task.steps(given, at);
        const int now = job.tile % 2;
        const Place here = at;
        ++job.tile;
        at = task.place(job);
        if (!block.is_over(job)) task.load(given, at);
        all[now].set(block.stretch, block.lane, steps.summary());
        __syncthreads();
        wide state = carry;
#pragma unroll
        for (int i = 0; i < STRETCHES; ++i) {
            for (int p = 0; p < PACK; ++p) {
                state.at[p] = i == block.stretch ? carry.at[p] : state.at[p];
                carry.at[p] = apply(all[now].of[i][block.lane + p], carry.at[p]);
            }
        }
        task.emit(steps, here, state);
    }
}
#endif
