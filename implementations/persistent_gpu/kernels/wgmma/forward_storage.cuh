// Sizes, shared memory and the exchange of states of wgmma_forward.cu: what its roles have in common.
#pragma once
#include "ecornn/common/jitter.cuh"
#include "ecornn/common/zero_smem.cuh"
#include "ecornn/ptx/cluster.cuh"
#include "ecornn/rnn/pointwise_forward.cuh"
#include "mainloop.cuh"
#include "input_gemm.cuh"

#if INPUTS
#error "the input product is an argument"
#endif
constexpr int BLOCK_THREADS = THREADS + POINTWISE_THREADS + 128;
constexpr int CHUNKS = CLUSTER * BLOCK_CHUNKS;  // of all columns
static_assert(CHUNKS * CHUNK_ELEMENTS >= HIDDEN, "chunks have all columns");

enum NamedBarrier {
    SumsFull = 1,         // + buffer. The MMA warps arrive when they have sent their sums; the pointwise warps wait
    SumsEmpty = 3,        // + buffer. The pointwise warps arrive when they have read the sums; the MMA warps wait
    PointwiseSynced = 5   // among the pointwise warps; those of stages follow (mainloop.cuh)
};
static_assert(SUM_BUFFERS <= 2, "named barriers");

// Adjacent pointwise threads have adjacent units of a sequence.
struct Config {
    static constexpr int TILE_BATCH = POINTWISE_BATCH, NUM_POINTWISE_THREADS = POINTWISE_THREADS;
    static constexpr int STATES_PER_THREAD = ceil_div(UNITS * POINTWISE_BATCH, POINTWISE_THREADS);
    static constexpr bool HAS_FUSED_INPUTS = false;
    __device__ static int unit_of_state(int thread, int state) { return (thread + state * POINTWISE_THREADS) % UNITS; }
    __device__ static int sequence_of_state(int thread, int state) { return (thread + state * POINTWISE_THREADS) / UNITS; }
};
typedef ThreadCoords<Config> Thread;

struct Params : DenseParams {
    uint4 *mailboxes, *weight_stream;  // nothing is streamed
    __device__ int all_passes() const { return ceil_div(batch, PASSES * TILE_BATCH) * PASSES; }
    // pass: among those of all groups, as in `states`.
    __device__ unsigned* counter(int pass) const { return (unsigned*)(mailboxes + pass * 8); }
    __device__ Chunk* states(int t, int pass) const {
        return (Chunk*)(mailboxes + all_passes() * 8) + ((index)(t % 2) * all_passes() + pass) * CHUNKS;
    }
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

// What a block owns.
struct Group {
    int rank, first_unit, first_sequence, first_pass, batch;
    __device__ Group(int batch) : batch(batch) {
        const int block = blockIdx.x % BLOCKS, group = blockIdx.x / BLOCKS;
        rank = block % CLUSTER, first_unit = block * UNITS, first_pass = group * PASSES;
        first_sequence = first_pass * TILE_BATCH;
    }
    __device__ int passes() const { return min(PASSES, ceil_div(batch - first_sequence, TILE_BATCH)); }
};

// Sums of a block's own units from all MMA warpgroups of its cluster that have parts of them. Units are in different banks.
struct ReceivedSums {
    static constexpr int UNIT_STRIDE = GATES * ::TILE_BATCH + 4;
    float data[CLUSTER * K_PARTITIONS][UNITS * UNIT_STRIDE];
};
constexpr int RECEIVED_BYTES = (CLUSTER - 1) * K_PARTITIONS * UNITS * GATES * TILE_BATCH * 4;

struct OwnStates {
    scalar_t data[POINTWISE_BATCH][UNITS];
    __device__ scalar_t& at(int unit, int sequence) { return data[sequence][unit % UNITS]; }
};

struct SharedStorage {
    Stages stages;
    unsigned long long sums_full[SUM_BUFFERS], credits[SUM_BUFFERS];
    unsigned credit_words[CLUSTER];
    int timed_out;  // a load warp's wait has timed out: nothing more is published
    alignas(16) ReceivedSums sums[SUM_BUFFERS];
    PointwiseStorage<Config> pointwise;
    alignas(16) OwnStates own[TILES];
    alignas(16) WeightStorage weight_storage;
};
static_assert(sizeof(SharedStorage) <= SHARED_BYTES, "WgmmaConfig.shared_bytes");

// By all threads of a block; a barrier of the cluster is to follow.
__device__ inline void init_shared(SharedStorage& shared) {
    if (threadIdx.x == 0) {
        shared.stages.init();
        for (int i = 0; i < SUM_BUFFERS; i++)
            mbarrier_init(smem_addr(&shared.sums_full[i])), mbarrier_init(smem_addr(&shared.credits[i]));
        fence_mbarrier_init();
        shared.timed_out = 0;
    }
    zero_smem(shared.own, sizeof(shared.own));
    jitter(-1, 5);
}

// The word of a row of weights that is multiplied by a word of states, 0 beyond its end. word: among all columns.
__device__ inline unsigned load_weight_word(const MatrixRow& row, int word) {
    constexpr int EACH = 4 / sizeof(scalar_t);
    const int k = word * EACH, elements = row.is_inside ? HIDDEN - k : 0;
    if (elements <= 0) return 0;
    if (EACH == 1 || LOAD_BYTES >= 4) return *(const unsigned*)(row.start + k);
    return raw_bits(row.start[k]) | (elements > 1 ? raw_bits(row.start[k + 1]) << 16 : 0);
}

// A lane's elements of the s-th fragment of its partition's columns, of its i-th M tile.
__device__ inline AFragment load_a_fragment(const scalar_t* weight, const Group& group, int warp, int lane, int s, int i) {
    return make_wgmma_fragment(warp, lane, s, i, [&](int row, int word) {
        const int unit = group.first_unit - group.rank * UNITS + row / GATES;
        const MatrixRow of_unit = {weight + ((index)(row % GATES) * HIDDEN + unit) * HIDDEN,
                                   row < CLUSTER * UNITS * GATES && unit < HIDDEN};
        return load_weight_word(of_unit, group.rank * BLOCK_CHUNKS * CHUNK_WORDS + word);
    });
}
