// Tiles of a scan: SEGMENTS_PER_TILE segments of STEPS steps, for CHANNELS_PER_BLOCK channels of a sequence. A thread has PACK
// channels of one segment.
// Without SPLIT a block scans all tiles of its channels, one after the other. With SPLIT blocks, which all run at once, take
// tiles in the order of time. A tile publishes its map, the last tile of a group also its group's. Each tile looks back: it
// composes the maps of the groups before it, then those of its own group's tiles (Merrill and Garland, 2016).
#pragma once
#include "affine_map.cuh"
#include "cp_async_stages.cuh"

constexpr int CHANNELS_PER_BLOCK = CHANNEL_THREADS * PACK;
constexpr int SEGMENTS_PER_TILE = THREADS / CHANNEL_THREADS, TILE = STEPS * SEGMENTS_PER_TILE;

static_assert(STEPS % THREADS_PER_COPY == 0 && CHANNEL_THREADS % THREADS_PER_COPY == 0, "pieces would reach into others' rows");

typedef long long offset;

// A tile of a sequence; `column`: the index of its block of channels.
struct TileIndex {
    int tile, sequence, column;
};

// The maps of a thread's segment, one a channel.
struct ThreadMaps {
    Affine of[PACK];
};

// The maps of a block's segments, in shared memory.
struct BlockScanStorage {
    Affine of[SEGMENTS_PER_TILE][CHANNELS_PER_BLOCK];
    __device__ void set(int segment, int lane, const ThreadMaps& maps) {
        for (int p = 0; p < PACK; ++p) of[segment][lane + p] = maps.of[p];
    }
    // Returns the map of all segments; each is replaced by the map of those before it.
    __device__ ThreadMaps exclusive_scan(int lane) {
        ThreadMaps found;
#pragma unroll
        for (int p = 0; p < PACK; ++p) {
            found.of[p] = {1, 0};
            for (int i = 0; i < SEGMENTS_PER_TILE; ++i) {
                const Affine next = of[i][lane + p];
                of[i][lane + p] = found.of[p];
                found.of[p] = compose(found.of[p], next);
            }
        }
        return found;
    }
    __device__ void apply_prefix(int lane, vec_acc_t& state) const {
#pragma unroll
        for (int i = 0; i < SEGMENTS_PER_TILE; ++i)
            for (int p = 0; p < PACK; ++p) state.data[p] = apply(of[i][lane + p], state.data[p]);
    }
    __device__ void apply_segment(int segment, int lane, vec_acc_t& state) const {
        for (int p = 0; p < PACK; ++p) state.data[p] = apply(of[segment][lane + p], state.data[p]);
    }
};

// The tiles of a block. Tiles of a step are numbered by channels first, then by sequences.
struct TileScheduler {
    int tiles, batch, across, group_bits, segment, lane;
    status_word* tile_status;

    __device__ TileScheduler(status_word* tile_status, int batch, int hidden, int tiles, int group_bits)
        : tiles(tiles), batch(batch), across((hidden + CHANNELS_PER_BLOCK - 1) / CHANNELS_PER_BLOCK), group_bits(group_bits),
          segment(threadIdx.x / CHANNEL_THREADS), lane(threadIdx.x % CHANNEL_THREADS * PACK), tile_status(tile_status) {}
    __device__ bool is_done(const TileIndex& job) const { return job.tile >= tiles; }
    __device__ int group(const TileIndex& job) const { return job.tile >> group_bits; }
    __device__ TileIndex job(int number) const {
        const int sequences = number / across;
        return {sequences / batch, sequences % batch, number % across};
    }
    // The tile whose number is greater by that of `further`.
    __device__ TileIndex advance(TileIndex job, const TileIndex& further) const {
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

// A tensor [T, B, ..] with the strides of steps and sequences.
template <typename element>
struct StridedTensor {
    element* start;
    offset step, sequence;
};

// A thread's channels of one sequence, and the order in which its steps are scanned.
struct ThreadTile {
    int sequence, channel, steps, first_step, first_channel, first_of_tile, hidden;
    bool is_backwards, is_inside;
    offset length;

    __device__ ThreadTile(const offset* lengths, const TileScheduler& block, const TileIndex& job, int steps, int hidden,
                          bool is_backwards)
        : sequence(job.sequence), steps(steps), first_channel(job.column * CHANNELS_PER_BLOCK),
          first_of_tile(job.tile * TILE), hidden(hidden), is_backwards(is_backwards) {
        channel = first_channel + block.lane;
        first_step = first_of_tile + block.segment * STEPS;
        is_inside = channel < hidden && !block.is_done(job);
        length = MASKED && lengths && is_inside ? lengths[sequence] : steps;
    }
    template <typename element>
    __device__ offset stride(const StridedTensor<element>& rows) const { return is_backwards ? -rows.step : rows.step; }
    template <typename element>
    __device__ element* at(const StridedTensor<element>& rows, int step) const {
        return rows.start + sequence * rows.sequence + (is_backwards ? steps - 1 - step : step) * rows.step;
    }
    __device__ offset state_offset() const { return (offset)sequence * hidden + channel; }
    __device__ bool is_alive(int step) const {
        return step < steps && (!MASKED || (is_backwards ? steps - 1 - step : step) < length);
    }
    // Steps of this thread's segment that there are.
    __device__ int count() const { return is_inside ? min(STEPS, max(0, steps - first_step)) : 0; }
    // Whether all channels of the tile are there, and all steps up to `later` after it; the same for all threads.
    __device__ bool is_full_tile(int later) const {
        return first_of_tile + TILE + later <= steps && first_channel + CHANNELS_PER_BLOCK <= hidden;
    }

    // Copies ahead what lies `column` elements beside the channels, for each step what is there `later` steps after it.
    __device__ void copy(vec_t (*to)[THREADS], const StridedTensor<const scalar_t>& rows, offset column, int later) const {
        if (is_full_tile(later))
            copy_rows<true>(to, rows, column, later);
        else
            copy_rows<false>(to, rows, column, later);
    }
    template <bool IS_WHOLE>
    __device__ void copy_rows(vec_t (*to)[THREADS], const StridedTensor<const scalar_t>& rows, offset column, int later) const {
        const CopyLane copy_lane;
        const int step = first_of_tile + copy_lane.thread / CHANNEL_THREADS * STEPS + copy_lane.row + later;
        const int its_channel = first_channel + copy_lane.thread % CHANNEL_THREADS * PACK;
        const scalar_t* source = at(rows, step) + its_channel + column;
#pragma unroll
        for (int i = 0; i < STEPS; i += THREADS_PER_COPY, source += THREADS_PER_COPY * stride(rows))
            if (IS_WHOLE || (step + i < steps && its_channel < hidden))
                cp_async(&to[i + copy_lane.row][copy_lane.thread], source);
    }
};

#if SPLIT
// The published maps of a block's channels, for one thread.
struct TileStatusRow {
    status_word* start;
    int row;  // words from a tile's map to the next

    __device__ TileStatusRow(const TileScheduler& block, const TileIndex& job)
        : start(block.tile_status + ((offset)(job.sequence * block.across + job.column) * CHANNELS_PER_BLOCK + block.lane) * 2),
          row(2 * CHANNELS_PER_BLOCK * block.batch * block.across) {}
    __device__ status_word* at(int number) const { return start + (offset)number * row; }
    __device__ void set(int number, const ThreadMaps& all) const {
        for (int p = 0; p < PACK; ++p) store_relaxed(at(number) + 2 * p, all.of[p]);
    }
};

// A thread's part of the look-back of a tile: over `groups` groups, then the tiles of its own group.
__device__ inline ThreadMaps look_back_partial(const TileScheduler& block, const TileIndex& job, int groups) {
    const TileStatusRow status_row(block, job);
    const int first = block.group(job) << block.group_bits, count = groups + job.tile - first;
    const int from = count * block.segment / SEGMENTS_PER_TILE, to = count * (block.segment + 1) / SEGMENTS_PER_TILE;
    ThreadMaps all;
    for (int p = 0; p < PACK; ++p)
        all.of[p] = look_back(from, to, [&](int i) {
            return status_row.at(i < groups ? block.tiles + i : first + i - groups) + 2 * p;
        });
    return all;
}

// Publishes the map of a tile, whose segments are in `all`, and its group's map after the last tile of a group.
__device__ inline void publish_tile(const TileScheduler& block, const TileIndex& job, BlockScanStorage& all,
                                    BlockScanStorage& scratch) {
    const bool is_publisher = block.segment == SEGMENTS_PER_TILE - 1;
    ThreadMaps own;
    if (is_publisher) {
        own = all.exclusive_scan(block.lane);
        TileStatusRow(block, job).set(job.tile, own);
    }
    if ((job.tile + 1) >> block.group_bits == block.group(job)) return;
    scratch.set(block.segment, block.lane, look_back_partial(block, job, 0));
    __syncthreads();
    if (is_publisher) {
        ThreadMaps whole = scratch.exclusive_scan(block.lane);
        for (int p = 0; p < PACK; ++p) whole.of[p] = compose(whole.of[p], own.of[p]);
        TileStatusRow(block, job).set(block.tiles + block.group(job), whole);
    }
    __syncthreads();
}

// Runs through every gridDim.x-th tile; `task` says how a tile is read, computed and written.
template <typename Task>
__device__ inline void scan_tiles(const Task& task, const TileScheduler& block) {
    __shared__ BlockScanStorage all[2], before;
    const TileIndex further = block.job(gridDim.x);
    TileIndex job = block.job(blockIdx.x), next = job;
    for (int i = 0; i < STAGES; ++i, next = block.advance(next, further)) {
        if (!block.is_done(next)) task.load(Task::ahead(i), task.place(next));
        cp_async_commit_group();
    }
    for (int turn = 0; !block.is_done(job); ++turn) {
        const ThreadTile at = task.place(job);
        const typename Task::Ahead ahead = Task::ahead(turn % STAGES);
        cp_async_wait_group();
        const typename Task::Steps steps = task.steps(ahead, at);
        __syncwarp();  // before others' copies overwrite what was read
        if (!block.is_done(next)) task.load(ahead, task.place(next));
        cp_async_commit_group();
        BlockScanStorage& met = all[turn % 2];
        met.set(block.segment, block.lane, steps.summary());
        __syncthreads();
        publish_tile(block, job, met, before);
        before.set(block.segment, block.lane, look_back_partial(block, job, block.group(job)));
        __syncthreads();
        vec_acc_t state = task.start(at);
        before.apply_prefix(block.lane, state);
        met.apply_segment(block.segment, block.lane, state);
        task.store_outputs(steps, at, state);
        job = block.advance(job, further), next = block.advance(next, further);
    }
}
#else
// Runs through all tiles of the block's channels; `task` says how a tile is read, computed and written.
template <typename Task>
__device__ inline void scan_tiles(const Task& task, const TileScheduler& block) {
    __shared__ BlockScanStorage all[2];
    const TileIndex first = block.job(blockIdx.x);
    const auto place = [&](int tile) { return task.place({tile, first.sequence, first.column}); };
    vec_acc_t carry = task.start(place(0));
    for (int i = 0; i < STAGES; ++i) {
        if (i < block.tiles) task.load(Task::ahead(i), place(i));
        cp_async_commit_group();
    }
    for (int tile = 0; tile < block.tiles; ++tile) {
        const ThreadTile at = place(tile);
        cp_async_wait_group();
        const typename Task::Steps steps = task.steps(Task::ahead(tile % STAGES), at);
        __syncwarp();  // before others' copies overwrite what was read
        if (tile + STAGES < block.tiles) task.load(Task::ahead(tile % STAGES), place(tile + STAGES));
        cp_async_commit_group();
        const BlockScanStorage& met = all[tile % 2];
        all[tile % 2].set(block.segment, block.lane, steps.summary());
        __syncthreads();
        vec_acc_t state = carry;
#pragma unroll
        for (int i = 0; i < SEGMENTS_PER_TILE; ++i) {
            for (int p = 0; p < PACK; ++p) {
                state.data[p] = i == block.segment ? carry.data[p] : state.data[p];
                carry.data[p] = apply(met.of[i][block.lane + p], carry.data[p]);
            }
        }
        task.store_outputs(steps, at, state);
    }
}
#endif
