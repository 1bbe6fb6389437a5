// Tiles of a scan and how the state gets through them: STRETCHES stretches of STEPS steps each, for CHANNELS_PER_BLOCK channels
// of a sequence. A thread has PACK channels of one stretch. Without SPLIT a block has all tiles of its channels, one after the
// other. With it blocks, which all run at once, take turns at tiles in the order of time: a tile publishes what it does to a
// state, the last of a group of tiles also what its group does, and then folds what lies before it, in the order of time: the
// groups, then the tiles of its own.
#pragma once
#include "affine_map.cuh"
#include "cp_async_stages.cuh"

#define CHANNELS_PER_BLOCK (CHANNEL_THREADS * PACK)
#define STRETCHES (THREADS / CHANNEL_THREADS)
#define TILE (STEPS * STRETCHES)

static_assert(STEPS % PIECE == 0 && CHANNEL_THREADS % PIECE == 0, "pieces would reach into others' rows");

typedef long long offset;

// A tile of a sequence, `column` the number of its channels' block.
struct Job {
    int tile, sequence, column;
};

// What a thread's stretch does to the states of its channels.
struct Maps {
    Affine of[PACK];
};

// Where stretches of a block meet.
struct Meeting {
    Affine of[STRETCHES][CHANNELS_PER_BLOCK];
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
                found.of[p] = compose(found.of[p], next);
            }
        }
        return found;
    }
    __device__ void apply_all(int lane, vec_acc_t& state) const {
#pragma unroll
        for (int i = 0; i < STRETCHES; ++i)
            for (int p = 0; p < PACK; ++p) state.data[p] = apply(of[i][lane + p], state.data[p]);
    }
    __device__ void apply_one(int stretch, int lane, vec_acc_t& state) const {
        for (int p = 0; p < PACK; ++p) state.data[p] = apply(of[stretch][lane + p], state.data[p]);
    }
};

// The block's place among all: which tiles it has. Numbered are those of a step first by channels, then by sequences.
struct Block {
    int tiles, batch, across, group_bits, stretch, lane;
    status_word* tile_status;

    __device__ Block(status_word* tile_status, int batch, int hidden, int tiles, int group_bits)
        : tiles(tiles), batch(batch), across((hidden + CHANNELS_PER_BLOCK - 1) / CHANNELS_PER_BLOCK), group_bits(group_bits),
          stretch(threadIdx.x / CHANNEL_THREADS), lane(threadIdx.x % CHANNEL_THREADS * PACK), tile_status(tile_status) {}
    __device__ bool is_over(const Job& job) const { return job.tile >= tiles; }
    __device__ int group(const Job& job) const { return job.tile >> group_bits; }
    __device__ Job job(int number) const {
        const int sequences = number / across;
        return {sequences / batch, sequences % batch, number % across};
    }
    // The job whose number is greater by that of `further`.
    __device__ Job later(Job job, const Job& further) const {
        job.column += further.column;
        const bool is_next_sequence = job.column >= across;
        job.column -= is_next_sequence ? across : 0;
        job.sequence += further.sequence + is_next_sequence;
        const bool is_next_tile = job.sequence >= batch;
        job.sequence -= is_next_tile ? batch : 0;
        job.tile += further.tile + is_next_tile;
        return job;
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
    int sequence, channel, steps, first_step, first_channel, first_of_tile, hidden;
    bool is_backwards, is_inside;
    offset length;

    __device__ Place(const offset* lengths, const Block& block, const Job& job, int steps, int hidden, bool is_backwards)
        : sequence(job.sequence), steps(steps), first_channel(job.column * CHANNELS_PER_BLOCK),
          first_of_tile(job.tile * TILE), hidden(hidden), is_backwards(is_backwards) {
        channel = first_channel + block.lane;
        first_step = first_of_tile + block.stretch * STEPS;
        is_inside = channel < hidden && !block.is_over(job);
        length = MASKED && lengths && is_inside ? lengths[sequence] : steps;
    }
    template <typename element>
    __device__ offset stride(const Rows<element>& rows) const { return is_backwards ? -rows.step : rows.step; }
    template <typename element>
    __device__ element* at(const Rows<element>& rows, int step) const {
        return rows.start + sequence * rows.sequence + (is_backwards ? steps - 1 - step : step) * rows.step;
    }
    __device__ offset in_state() const { return (offset)sequence * hidden + channel; }
    __device__ bool is_alive(int step) const {
        return step < steps && (!MASKED || (is_backwards ? steps - 1 - step : step) < length);
    }
    // Steps of this thread's stretch that there are.
    __device__ int count() const { return is_inside ? min(STEPS, max(0, steps - first_step)) : 0; }
    // Whether all channels of the tile are there, and all steps up to `later` after it; the same for all threads.
    __device__ bool is_whole(int later) const {
        return first_of_tile + TILE + later <= steps && first_channel + CHANNELS_PER_BLOCK <= hidden;
    }

    // Copies ahead what lies `column` elements beside the channels, for each step what is there `later` steps after it.
    __device__ void copy(vec_t (*to)[THREADS], const Rows<const scalar_t>& rows, offset column, int later) const {
        if (is_whole(later))
            copy_rows<true>(to, rows, column, later);
        else
            copy_rows<false>(to, rows, column, later);
    }
    template <bool IS_WHOLE>
    __device__ void copy_rows(vec_t (*to)[THREADS], const Rows<const scalar_t>& rows, offset column, int later) const {
        const Piece piece;
        const int step = first_of_tile + piece.thread / CHANNEL_THREADS * STEPS + piece.row + later;
        const int its_channel = first_channel + piece.thread % CHANNEL_THREADS * PACK;
        const scalar_t* source = at(rows, step) + its_channel + column;
#pragma unroll
        for (int i = 0; i < STEPS; i += PIECE, source += PIECE * stride(rows))
            if (IS_WHOLE || (step + i < steps && its_channel < hidden)) copy_ahead(&to[i + piece.row][piece.thread], source);
    }
};

#if SPLIT
// The maps that are published of a block's channels, for one thread.
struct Published {
    status_word* start;
    int row;  // words from a tile's map to the next

    __device__ Published(const Block& block, const Job& job)
        : start(block.tile_status + ((offset)(job.sequence * block.across + job.column) * CHANNELS_PER_BLOCK + block.lane) * 2),
          row(2 * CHANNELS_PER_BLOCK * block.batch * block.across) {}
    __device__ status_word* at(int number) const { return start + (offset)number * row; }
    __device__ void set(int number, const Maps& all) const {
        for (int p = 0; p < PACK; ++p) store_relaxed(at(number) + 2 * p, all.of[p]);
    }
};

// What a thread's share comes to of what lies before a tile: `groups` groups, then the tiles of its own group.
__device__ inline Maps share(const Block& block, const Job& job, int groups) {
    const Published published(block, job);
    const int first = block.group(job) << block.group_bits, count = groups + job.tile - first;
    const int from = count * block.stretch / STRETCHES, to = count * (block.stretch + 1) / STRETCHES;
    Maps all;
    for (int p = 0; p < PACK; ++p)
        all.of[p] = look_back(from, to, [&](int i) {
            return published.at(i < groups ? block.tiles + i : first + i - groups) + 2 * p;
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
    if ((job.tile + 1) >> block.group_bits == block.group(job)) return;
    scratch.set(block.stretch, block.lane, share(block, job, 0));
    __syncthreads();
    if (is_publisher) {
        Maps whole = scratch.fold(block.lane);
        for (int p = 0; p < PACK; ++p) whole.of[p] = compose(whole.of[p], own.of[p]);
        Published(block, job).set(block.tiles + block.group(job), whole);
    }
    __syncthreads();
}

// Runs through every gridDim.x-th tile; `task` says how a tile is read, computed and written.
template <typename Task>
__device__ inline void run(const Task& task, const Block& block) {
    __shared__ Meeting all[2], before;
    const Job further = block.job(gridDim.x);
    Job job = block.job(blockIdx.x), next = job;
    for (int i = 0; i < STAGES; ++i, next = block.later(next, further)) {
        if (!block.is_over(next)) task.load(Task::ahead(i), task.place(next));
        end_copies();
    }
    for (int turn = 0; !block.is_over(job); ++turn) {
        const Place at = task.place(job);
        const typename Task::Ahead ahead = Task::ahead(turn % STAGES);
        wait_for_copies();
        const typename Task::Steps steps = task.steps(ahead, at);
        __syncwarp();  // before others' copies overwrite what was read
        if (!block.is_over(next)) task.load(ahead, task.place(next));
        end_copies();
        Meeting& met = all[turn % 2];
        met.set(block.stretch, block.lane, steps.summary());
        __syncthreads();
        publish_tile(block, job, met, before);
        before.set(block.stretch, block.lane, share(block, job, block.group(job)));
        __syncthreads();
        vec_acc_t state = task.start(at);
        before.apply_all(block.lane, state);
        met.apply_one(block.stretch, block.lane, state);
        task.store_outputs(steps, at, state);
        job = block.later(job, further), next = block.later(next, further);
    }
}
#else
// Runs through all tiles of the block's channels; `task` says how a tile is read, computed and written.
template <typename Task>
__device__ inline void run(const Task& task, const Block& block) {
    __shared__ Meeting all[2];
    const Job first = block.job(blockIdx.x);
    const auto place = [&](int tile) { return task.place({tile, first.sequence, first.column}); };
    vec_acc_t carry = task.start(place(0));
    for (int i = 0; i < STAGES; ++i) {
        if (i < block.tiles) task.load(Task::ahead(i), place(i));
        end_copies();
    }
    for (int tile = 0; tile < block.tiles; ++tile) {
        const Place at = place(tile);
        wait_for_copies();
        const typename Task::Steps steps = task.steps(Task::ahead(tile % STAGES), at);
        __syncwarp();  // before others' copies overwrite what was read
        if (tile + STAGES < block.tiles) task.load(Task::ahead(tile % STAGES), place(tile + STAGES));
        end_copies();
        const Meeting& met = all[tile % 2];
        all[tile % 2].set(block.stretch, block.lane, steps.summary());
        __syncthreads();
        vec_acc_t state = carry;
#pragma unroll
        for (int i = 0; i < STRETCHES; ++i) {
            for (int p = 0; p < PACK; ++p) {
                state.data[p] = i == block.stretch ? carry.data[p] : state.data[p];
                carry.data[p] = apply(met.of[i][block.lane + p], carry.data[p]);
            }
        }
        task.store_outputs(steps, at, state);
    }
}
#endif
