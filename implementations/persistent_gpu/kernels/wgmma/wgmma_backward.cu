// Maths: cluster_backward.cu's, for many sequences: all T steps backward of one layer and direction in one launch, a
//   persistent GEMM a step by wgmma, W_hh in registers and shared memory.
// Layout: as cluster_backward.cu, but for weight_stream, in whose place Params has mailboxes, read and written, all 0 before
//   the launch: of each tile of all groups and each column 128 bytes, a counter of its blocks that have published gradients;
//   of each row another, of its warpgroups that have published sums; [2, tiles, GRID_COLS, BLOCK_CHUNKS] Chunk, gradients of
//   step i in [i % 2]; [2, tiles, BLOCKS, SOURCES, UNITS, 8 * N_TILES] float, sums for each block, likewise.
//   No two may alias. Alignment: of the element; mailboxes: 128 bytes.
// Launch: cooperative: groups of BLOCKS blocks in GRID_ROWS rows and GRID_COLS columns, one for each PASSES tiles of 8 *
//   N_TILES sequences. Block r, in row r / GRID_COLS and column r % GRID_COLS, owns UNITS hidden units from r * UNITS. It
//   multiplies the gradients of its column's units by its part of W_hh, whose rows here are the units of its row. Warps 0 to
//   7 are the MMA warps (mainloop.cuh), then follow POINTWISE_THREADS / 32 pointwise warps, and four of which two or three
//   load gradients, one sums. Shared bytes: the host's shared_bytes (wgmma/config.py).
// Cost: as cluster_backward.cu. Each block reads B GRID_ROWS UNITS G gradients a step, float32's twice, and B UNITS SOURCES
//   sums, and writes as many sums.
// Limits: compute capability 9.0; nothing of W_hh is streamed; T, B, G * H below 2^30; offsets 64-bit.
// Order: 1. What a block publishes is read once a counter says so: release after a barrier of those who wrote, acquire by the
//   loading warp, its fence between plain accesses and bulk copies, and of several load warps a barrier.
//   2. Gradients of i + 2 overwrite those of i: their block has all sums of i + 1, from blocks with gradients of i + 1 of all
//   columns, from all blocks, each with all sums of i, for which all gradients of i had been multiplied.
//   3. Sums of i + 2 overwrite those of i: their block has gradients of i + 2, so by 2 all blocks had published gradients of
//   i + 1, each after it had all sums of i in shared memory.
//   4. A stage is full by its mbarrier, and empty by STAGE_EMPTY; a buffer of sums likewise, by SumsEmpty.
//   5. A wait for a counter that takes WATCHDOG_NS sets timed_out. The block publishes nothing more, so that all others time
//   out. All loops run to their end, so that all other waits end. Then status becomes 1 and results of the block's units NaN.
//   6. Sums are added in one order: bit-equal repeats.
#include "ecornn/common/jitter.cuh"
#include "ecornn/common/zero_smem.cuh"
#include "ecornn/ptx/ld_st_128.cuh"
#include "ecornn/ptx/register_reconfig.cuh"
#include "ecornn/rnn/pointwise_backward.cuh"
#include "mainloop.cuh"

constexpr int SUM_LOAD_WARP = MAX_LOAD_WARPS;  // after those of gradients

constexpr int BLOCK_THREADS = THREADS + POINTWISE_THREADS + 128, BLOCKS = GRID_ROWS * GRID_COLS;
constexpr int OWN_GATES = GATES * UNITS, SOURCES = GRID_COLS * K_PARTITIONS;
static_assert(BLOCK_CHUNKS * CHUNK_ELEMENTS >= GRID_ROWS * OWN_GATES, "chunks have all gates of a column");
enum NamedBarrier {
    SumsEmpty = 1,        // + buffer. The pointwise warps arrive when they have read the sums; a load warp waits
    PointwiseSynced = 3,  // among the pointwise warps
    SumsWritten = 4       // + partition, or 4 + warpgroup: among a warpgroup's MMA warps
};
static_assert(SUM_BUFFERS <= 2, "named barriers");

// Sums for a block's own units, of all sources. Groups of 8 sequences, and pairs in these, are rotated by the unit: adjacent
// threads read adjacent units of one sequence, whose banks then differ.
struct ReceivedSums {
    float data[SOURCES][UNITS][TILE_BATCH];
    __device__ static int place(int unit, int sequence) {
        const int group = sequence / 8 + (N_TILES % 4 ? unit / 2 : unit) % N_TILES, pair = (sequence % 8 / 2 + unit / 4) % 4;
        return (group < N_TILES ? group : group - N_TILES) * 8 + pair * 2 + sequence % 2;
    }
};

struct ThreadCoords {
    static constexpr int TILE_BATCH = POINTWISE_BATCH, NUM_THREADS = POINTWISE_THREADS;
    static constexpr int STATES_PER_THREAD = ceil_div(UNITS * TILE_BATCH, NUM_THREADS);
    int number, rank, first_sequence, batch;
    __device__ int local_unit(int state) const { return (number + state * NUM_THREADS) % UNITS; }
    __device__ int sequence_in_tile(int state) const { return (number + state * NUM_THREADS) / UNITS; }
    __device__ int unit(int state) const { return rank * UNITS + local_unit(state); }
    __device__ int sequence(int tile, int state) const { return first_sequence + tile * TILE_BATCH + sequence_in_tile(state); }
    __device__ bool is_inside(int tile, int state) const {
        return sequence_in_tile(state) < TILE_BATCH && unit(state) < HIDDEN && sequence(tile, state) < batch;
    }
};

struct SharedStorage {
    Stages stages;
    unsigned long long sums_full[SUM_BUFFERS];
    int timed_out;  // a load warp's wait has timed out: nothing more is published
    alignas(16) ReceivedSums sums[SUM_BUFFERS];
    GradientCarry<ThreadCoords> carry;
    alignas(16) WeightStorage weight_storage;
};
static_assert(sizeof(SharedStorage) <= SHARED_BYTES, "WgmmaConfig.shared_bytes");

struct Params : BackwardParams {
    const scalar_t* weight_hh;
    uint4 *mailboxes, *weight_stream;  // nothing is streamed
    __device__ int all_passes() const { return ceil_div(batch, PASSES * TILE_BATCH) * PASSES; }
    // pass: among those of all groups.
    __device__ unsigned* gradient_counter(int pass, int grid_col) const {
        return (unsigned*)(mailboxes + (pass * (GRID_COLS + GRID_ROWS) + grid_col) * 8);
    }
    __device__ unsigned* sum_counter(int pass, int grid_row) const { return gradient_counter(pass, GRID_COLS + grid_row); }
    __device__ Chunk* gradients(int i, int pass, int grid_col) const {
        const index tile = (index)(i % 2) * all_passes() + pass;
        return (Chunk*)gradient_counter(all_passes(), 0) + (tile * GRID_COLS + grid_col) * BLOCK_CHUNKS;
    }
    __device__ ReceivedSums* received_sums(int i, int pass, int block) const {
        const index place = (index)(i % 2) * all_passes() + pass;
        return (ReceivedSums*)gradients(0, 2 * all_passes(), 0) + place * BLOCKS + block;
    }
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

struct Group {
    int rank, first_sequence, first_pass, batch;
    __device__ Group(int batch) : batch(batch) {
        rank = blockIdx.x % BLOCKS, first_pass = blockIdx.x / BLOCKS * PASSES, first_sequence = first_pass * TILE_BATCH;
    }
    __device__ int grid_row() const { return rank / GRID_COLS; }
    __device__ int grid_col() const { return rank % GRID_COLS; }
    __device__ int passes() const { return min(PASSES, ceil_div(batch - first_sequence, TILE_BATCH)); }
};

// Rows are the units of the block's row, columns the gates of those of its column, block by block.
__device__ inline AFragment load_a_fragment(const scalar_t* weight, const Group& group, int warp, int lane, int s, int i) {
    const auto bits_at = [&](int row, unsigned k) -> unsigned {
        opaque(k);  // NVRTC 13.0 takes k % 32 / 8 of a number that is known to be odd for k
        const int to = group.grid_row() * GRID_COLS * UNITS + row, gate = k % OWN_GATES / UNITS;
        const int from = (k / OWN_GATES * GRID_COLS + group.grid_col()) * UNITS + k % UNITS;
        const bool is_inside = row < GRID_COLS * UNITS && to < HIDDEN && k < (unsigned)(GRID_ROWS * OWN_GATES) && from < HIDDEN;
        return is_inside ? raw_bits(weight[((index)gate * HIDDEN + from) * HIDDEN + to]) : 0;
    };
    return make_wgmma_fragment(warp, lane, s, i, [&](int row, int word) {
        return sizeof(scalar_t) == 4 ? bits_at(row, word) : bits_at(row, 2 * word) | bits_at(row, 2 * word + 1) << 16;
    });
}

// Loads the gradients of every tile and step, by LOAD_WARPS warps, of which the first waits for them.
__device__ inline void run_gradient_load_warp(SharedStorage& shared, const Params& params, const Group& group, int passes,
                                              int load_warp) {
    StageLoader loader = {shared.stages, load_warp, 0, false};
    bool timed_out = false;
    for (int i = 0; i < params.steps; i++)
#pragma unroll 1
        for (int pass = 0; pass < passes; pass++) {
            jitter(i, 0);
            if (load_warp == 0 && threadIdx.x % 32 == 0 && !timed_out) {
                const unsigned* counter = params.gradient_counter(group.first_pass + pass, group.grid_col());
                timed_out = !wait_for_counter(counter, (i + 1u) * GRID_ROWS);
                if (timed_out) *(volatile int*)&shared.timed_out = 1;
            }
            loader.sync();
            loader.load(params.gradients(i, group.first_pass + pass, group.grid_col()));
        }
}

// Loads the sums of every tile and step, by one warp.
__device__ inline void run_sum_load_warp(SharedStorage& shared, const Params& params, const Group& group, int passes) {
    bool timed_out = false, is_reused = false;
    int buffer = 0;
    for (int i = 0; i < params.steps; i++)
#pragma unroll 1
        for (int pass = 0; pass < passes; pass++) {
            if (is_reused) named_barrier_sync(NamedBarrier::SumsEmpty + buffer, POINTWISE_THREADS + 32);
            jitter(i, 1);
            if (threadIdx.x % 32 == 0) {
                const unsigned* counter = params.sum_counter(group.first_pass + pass, group.grid_row());
                timed_out = timed_out || !wait_for_counter(counter, (i + 1u) * GRID_COLS * 2);
                if (timed_out) *(volatile int*)&shared.timed_out = 1;
                const smem_addr_t full = smem_addr(&shared.sums_full[buffer]);
                mbarrier_arrive_expect_tx(full, sizeof(ReceivedSums));
                bulk_copy(smem_addr(&shared.sums[buffer]), params.received_sums(i, group.first_pass + pass, group.rank),
                          sizeof(ReceivedSums), full);
            }
            __syncwarp();
            if (++buffer == SUM_BUFFERS) buffer = 0, is_reused = true;
        }
}

// Writes a warpgroup's sums of a pass for the blocks of its row. sums: of the row's first block.
__device__ inline void write_sums(ReceivedSums* sums, const TileSums& acc, int source, int warp, int lane) {
#pragma unroll
    for (int m = 0; m < M_TILES_PER_PASS; m++)
#pragma unroll
        for (int lower = 0; lower < 2; lower++) {
            const int row = lane_row(warp, lane, m) + lower * 8;
            if (row >= GRID_COLS * UNITS) continue;
            const int unit = row % UNITS;
            float* const sequences = sums[row / UNITS].data[source][unit];
            int place = ReceivedSums::place(unit, lane % 4 * 2);
#pragma unroll
            for (int n = 0; n < N_TILES; n++) {
                *(uint2*)(sequences + place) = sums_of_row(acc[m], n, lower);
                place += place + 8 < TILE_BATCH ? 8 : 8 - TILE_BATCH;
            }
        }
}

// Computes and publishes the sums of every tile and step, by the MMA warps.
__device__ inline void run_mma_warps(SharedStorage& shared, const Weights& weights, const Params& params, const Group& group,
                                     int passes) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, partition = partition_of_warp(warp);
    Multiplier multiplier = {shared.stages, weights, partition, 0, 0};
    for (int i = 0; i < params.steps; i++)
#pragma unroll 1
        for (int pass = 0; pass < passes; pass++) {
            TileSums acc = {};
            jitter(i, 2);
            multiplier.multiply(acc);
            const bool timed_out = *(volatile int*)&shared.timed_out;
            ReceivedSums* const sums = params.received_sums(i, group.first_pass + pass, group.grid_row() * GRID_COLS);
            if (!timed_out) write_sums(sums, acc, group.grid_col() * K_PARTITIONS + partition, warp, lane);
            jitter(i, 3);
            named_barrier_sync(NamedBarrier::SumsWritten + warp / 4, THREADS / 2);
            if (threadIdx.x % 128 == 0 && !timed_out)
                red_add_release(params.sum_counter(group.first_pass + pass, group.grid_row()));
        }
}

// Adds what all blocks of the row have published of a state to `sum`. sequence_in_pass: in the tile of the pass.
__device__ inline float add_partial_sums(float sum, const ReceivedSums& sums, int unit, int sequence_in_pass) {
    const float* const of_source = sums.data[0][unit] + ReceivedSums::place(unit, sequence_in_pass);
#pragma unroll
    for (int source = 0; source < SOURCES; source++) sum += of_source[source * UNITS * TILE_BATCH];
    return sum;
}

// The i-th step backward of the block's own units of a tile; after the last step the gradients of the initial states. first: of
// the tile's sequences in the pass's tile. chunks: null where nothing is published.
__device__ inline void pointwise_backward_units(SharedStorage& shared, const BackwardParams& params, const ReceivedSums& sums,
                                                Chunk* chunks, const GateInputs<ThreadCoords>& inputs,
                                                const ThreadCoords& thread, int tile, int first, int i) {
#pragma unroll
    for (int s = 0; s < ThreadCoords::STATES_PER_THREAD; s++) {
        const int unit = thread.local_unit(s), sequence_in_pass = first + thread.sequence_in_tile(s);
        if (thread.sequence_in_tile(s) >= POINTWISE_BATCH) continue;
        const float carry = shared.carry.d_h[tile][s][thread.number];
        const float d_h = i > 0 ? add_partial_sums(carry, sums, unit, sequence_in_pass) : carry;
        if (i == params.steps) {
            store_initial_state_gradients(shared.carry, params, thread, tile, s, d_h);
            continue;
        }
        const int end = shared.carry.ends[tile][thread.sequence_in_tile(s)];
        const bool is_inside = thread.is_inside(tile, s), is_active = is_inside && params.time(i) < end;
        const LocalGradients local_gradients = inputs.local_gradients(params, thread, tile, s, params.time(i + 1), end);
        const float all_d_h = d_h + (is_active ? widen_bits(inputs.d_output[s]) : 0);
        const int first_k = thread.rank / GRID_COLS * OWN_GATES + unit;
        const auto publish = [&](int gate, scalar_t gradient) {
            const int place = column_offset(first_k + gate * UNITS) + sequence_in_pass * 16;
            if (chunks && is_inside) store_operand(chunks, place, gradient);
        };
        pointwise_backward(shared.carry, params, local_gradients, thread, tile, s, i, all_d_h, publish);
    }
}

// Computes and publishes the gradients of every tile and step, by the pointwise warps.
__device__ inline void run_pointwise_warps(SharedStorage& shared, const Params& params, const Group& group, int passes) {
    const ThreadCoords thread = {(int)threadIdx.x - THREADS, group.rank, group.first_sequence, params.batch};
    const int tiles = min(TILES, ceil_div(params.batch - group.first_sequence, POINTWISE_BATCH)), steps = params.steps;
    shared.carry.load(params, thread);
    named_barrier_sync(NamedBarrier::PointwiseSynced, POINTWISE_THREADS);
    GateInputs<ThreadCoords> next = {};
    next.load(params, thread, 0, 0);
    int buffer = 0, parity = 0;
    for (int i = 0; i <= steps; i++)
#pragma unroll 1
        for (int pass = 0; pass < passes; pass++) {
            const int last_tile = min(tiles, (pass + 1) * TILES_PER_PASS);
            jitter(i, 4);
            while (i > 0 && !mbarrier_wait_parity(smem_addr(&shared.sums_full[buffer]), parity)) {}
            const bool is_published = i < steps && !*(volatile int*)&shared.timed_out;
            Chunk* const chunks = is_published ? params.gradients(i, group.first_pass + pass, group.grid_col()) : nullptr;
#pragma unroll 1
            for (int tile = pass * TILES_PER_PASS, first = 0; tile < last_tile; tile++, first += POINTWISE_BATCH) {
                const GateInputs<ThreadCoords> inputs = next;
                const bool is_last = tile + 1 == tiles;
                if (i + is_last < steps) next.load(params, thread, is_last ? 0 : tile + 1, i + is_last);
                pointwise_backward_units(shared, params, shared.sums[buffer], chunks, inputs, thread, tile, first, i);
                if (i + 2 < steps) next.prefetch(params, thread, tile, i + 2);
            }
            jitter(i, 5);
            if (i > 0) named_barrier_arrive(NamedBarrier::SumsEmpty + buffer, POINTWISE_THREADS + 32);
            named_barrier_sync(NamedBarrier::PointwiseSynced, POINTWISE_THREADS);
            if (thread.number == 0 && is_published)
                red_add_release(params.gradient_counter(group.first_pass + pass, group.grid_col()));
            if (i > 0 && ++buffer == SUM_BUFFERS) buffer = 0, parity ^= 1;
        }
    if (!*(volatile int*)&shared.timed_out) return;
    *(volatile int*)params.status = 1;
    for (int tile = 0; tile < tiles; tile++) write_nan(params, thread, tile);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) persistent_backward(const __grid_constant__ Params params) {
    SharedStorage& shared = *(SharedStorage*)dynamic_smem();
    const Group group(params.batch);
    const int passes = group.passes();
    if (threadIdx.x == 0) {
        shared.stages.init();
        for (int i = 0; i < SUM_BUFFERS; i++) mbarrier_init(smem_addr(&shared.sums_full[i]));
        fence_mbarrier_init();
        shared.timed_out = 0;
    }
    __syncthreads();
    const int warp = threadIdx.x / 32, load_warp = warp - (THREADS + POINTWISE_THREADS) / 32;
    if (threadIdx.x < THREADS) {
        warpgroup_reg_alloc<MMA_REGISTERS>();
        const Weights weights(shared.weight_storage, [&](int s, int i) {
            return load_a_fragment(params.weight_hh, group, warp, threadIdx.x % 32, s, i);
        });
        run_mma_warps(shared, weights, params, group, passes);
    } else if (threadIdx.x < THREADS + POINTWISE_THREADS) {
        warpgroup_reg_dealloc<POINTWISE_REGISTERS>();
        run_pointwise_warps(shared, params, group, passes);
    } else {
        warpgroup_reg_dealloc<LOAD_REGISTERS>();
        if (load_warp < LOAD_WARPS) run_gradient_load_warp(shared, params, group, passes, load_warp);
        else if (load_warp == SUM_LOAD_WARP) run_sum_load_warp(shared, params, group, passes);
    }
    __syncthreads();
}
