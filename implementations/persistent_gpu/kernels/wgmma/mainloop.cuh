// The product of a block's weights with a tile of 8 * N_TILES sequences by wgmma, and the stages that bring the tile's values,
// independent of what they are: wgmma_forward.cu and wgmma_backward.cu. Values lie in memory in chunks, of some
// columns of the weights each. LOAD_WARPS load warps copy chunk after chunk into STATE_STAGES stages of each K partition.
// The MMA warps are two warpgroups: K_PARTITIONS partitions of the block's columns by groups of M_TILES_PER_PASS times 64 rows.
#pragma once
#include "ecornn/common/ceil_div.cuh"
#include "ecornn/ptx/bulk_copy.cuh"
#include "ecornn/ptx/mbarrier.cuh"
#include "ecornn/ptx/named_barrier.cuh"
#include "ecornn/ptx/wgmma.cuh"
#include "ll_state_packets.cuh"
#include "resident_weights.cuh"

constexpr int STAGE_THREADS = THREADS / K_PARTITIONS;  // that multiply a stage
constexpr int TILE_BATCH = 8 * N_TILES;                // sequences of a pass
constexpr int TILES_PER_PASS = TILE_BATCH / POINTWISE_BATCH, PASSES = ceil_div(TILES, TILES_PER_PASS);
constexpr int FRAGMENT_WORDS = 16, CHUNK_WORDS = CHUNK_FRAGMENTS * FRAGMENT_WORDS;
constexpr int CHUNK_ELEMENTS = CHUNK_WORDS * 4 / (int)sizeof(scalar_t);
constexpr int BLOCK_CHUNKS = K_PARTITIONS * K_CHUNKS;  // of a block's columns
constexpr int PLANES = USE_3XTF32 ? 2 : 1;             // parts of float32
constexpr int FRAGMENTS = K_CHUNKS * CHUNK_FRAGMENTS * M_TILES_PER_PASS;  // of a warp
static_assert(REG_FRAGMENTS + SMEM_FRAGMENTS == FRAGMENTS, "all weights stay");
typedef float TileSums[M_TILES_PER_PASS][4 * N_TILES];  // of a thread

// A stage's barrier: + partition * STATE_STAGES + stage. Its MMA warps arrive when their products are over; its load
// warp waits.
constexpr int STAGE_EMPTY = 6;
constexpr int LOADERS_SYNCED = 15;  // among the load warps
static_assert(STAGE_EMPTY + K_PARTITIONS * STATE_STAGES <= LOADERS_SYNCED, "named barriers");
// Load warps of a block that has room for `most`, each with stages of its own: what one issues for a chunk takes 0.16 us.
constexpr int load_warps(int most) { return STATE_STAGES % most ? load_warps(most - 1) : most; }
constexpr int LOAD_WARPS = load_warps(MAX_LOAD_WARPS);

// Values of a tile for some adjacent columns, operand B of wgmma: big parts, then small ones of split float32.
struct Chunk {
    unsigned words[PLANES][CHUNK_WORDS / 4][TILE_BATCH][4];
};
// Where the k-th column's value of the first sequence is in a tile's chunks, in bytes; those of others are 16 apart.
__device__ inline int column_offset(int k) {
    const int byte = k % CHUNK_ELEMENTS * (int)sizeof(scalar_t);
    return k / CHUNK_ELEMENTS * (int)sizeof(Chunk) + byte / 16 * (TILE_BATCH * 16) + byte % 16;
}
// Stores a value in a chunk, rounded or in two parts as products need it. place: column_offset, plus 16 a sequence.
__device__ inline void store_operand(Chunk* chunks, int place, scalar_t value) {
    char* const at = (char*)chunks + place;
#if USE_3XTF32
    const unsigned bits = raw_bits(value), big = zero_if_infinite(tf32_big(bits));
    *(unsigned*)at = big;
    *(unsigned*)(at + sizeof(Chunk) / 2) = tf32_small(bits, big);
#elif STORAGE_FLOAT32
    *(unsigned*)at = PackedTf32Packet::round_to_tf32(raw_bits(value));
#else
    *(scalar_t*)at = value;
#endif
}

// A thread's sums of 8 sequences, two adjacent ones, of its upper row or the lower one.
__device__ inline uint2 sums_of_row(const float (&acc)[4 * N_TILES], int n, int lower) {
    return {__float_as_uint(acc[n * 4 + lower * 2]), __float_as_uint(acc[n * 4 + lower * 2 + 1])};
}

struct Stages {
    Chunk chunks[K_PARTITIONS][STATE_STAGES];
    unsigned long long full[K_PARTITIONS][STATE_STAGES];
    __device__ void init() {
        for (int i = 0; i < K_PARTITIONS * STATE_STAGES; i++) mbarrier_init(smem_addr(&full[0][i]));
    }
};

// Copies tiles into the stages of a load warp.
struct StageLoader {
    Stages& stages;
    int load_warp, stage;
    bool is_reused;

    // What one of the load warps has waited for is visible to bulk copies of all.
    __device__ void sync() const {
        if (LOAD_WARPS > 1) named_barrier_sync(LOADERS_SYNCED, LOAD_WARPS * 32);
        else __syncwarp();
    }
    // chunks: BLOCK_CHUNKS of a tile, partition by partition, which are valid.
    __device__ void load(const Chunk* chunks) {
        const bool is_elected = threadIdx.x % 32 == 0;
#pragma unroll 1
        for (int chunk = 0; chunk < K_CHUNKS; chunk++) {
#pragma unroll
            for (int part = 0; part < K_PARTITIONS && stage % LOAD_WARPS == load_warp; part++) {
                if (is_reused) named_barrier_sync(STAGE_EMPTY + part * STATE_STAGES + stage, STAGE_THREADS + 32);
                if (!is_elected) continue;
                const smem_addr_t full = smem_addr(&stages.full[part][stage]);
                mbarrier_arrive_expect_tx(full, sizeof(Chunk));
                bulk_copy(smem_addr(&stages.chunks[part][stage]), chunks + part * K_CHUNKS + chunk, sizeof(Chunk), full);
            }
            is_reused |= stage + 1 == STATE_STAGES;
            stage = (stage + 1) % STATE_STAGES;
        }
    }
};

// Waits until a counter has come so far: false on a timeout. What is visible then is so for bulk copies too. By one thread.
__device__ inline bool wait_for_counter(const unsigned* counter, unsigned expected) {
    const bool has_come = spin_until([&] { return (int)(ld_acquire(counter) - expected) >= 0; });
    fence_proxy_async();
    return has_come;
}

__device__ inline int partition_of_warp(int warp) { return K_PARTITIONS > 1 ? warp / 4 : 0; }
// A lane's upper row of an M tile, among all of the block's; the lower one is 8 further.
__device__ inline int lane_row(int warp, int lane, int m) {
    const int first_tile = K_PARTITIONS > 1 ? 0 : warp / 4 * M_TILES_PER_PASS;
    return (first_tile + m) * 64 + warp % 4 * 16 + lane / 4;
}
// A lane's first word of the s-th fragment of its partition, among the block's columns; the others are 4, 8 and 12 further.
__device__ inline int word_of(int warp, int lane, int s) {
    return (partition_of_warp(warp) * K_CHUNKS * CHUNK_FRAGMENTS + s) * FRAGMENT_WORDS + lane % 4;
}
// A lane's part of a fragment. word_at(row, word): of the weights, of the s-th fragment of the i-th M tile.
template <typename WordAt> __device__ inline AFragment make_wgmma_fragment(int warp, int lane, int s, int i, WordAt word_at) {
    unsigned words[2][4];
#pragma unroll
    for (int lower = 0; lower < 2; lower++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            words[lower][j] = word_at(lane_row(warp, lane, i) + lower * 8, word_of(warp, lane, s) + 4 * j);
    return {{words[0][0], words[1][0], words[0][1], words[1][1]}, {words[0][2], words[1][2], words[0][3], words[1][3]}};
}

// A warp's weights, of which the first REG_FRAGMENTS fragments are in registers. Each of these has a load of its own: where a
// loop moves them up (resident_weights.cuh), ptxas 13.0 keeps fragments that come from shared memory in the same registers as
// others.
struct Weights {
    static constexpr int LOADS_IN_FLIGHT = 4;  // fragments
    AFragment reg_fragments[REG_FRAGMENTS];
    WeightStorage& smem;

    // load_fragment(s, i): the thread's elements of the s-th fragment of the i-th M tile.
    template <typename LoadFragment> __device__ Weights(WeightStorage& smem, LoadFragment load_fragment) : smem(smem) {
#pragma unroll
        for (int i = 0; i < REG_FRAGMENTS; i++) {
            reg_fragments[i] = load_fragment(i / M_TILES_PER_PASS, i % M_TILES_PER_PASS);
            if (i % LOADS_IN_FLIGHT == LOADS_IN_FLIGHT - 1) __syncwarp();  // or all addresses would be in registers
        }
#pragma unroll 1
        for (unsigned i = REG_FRAGMENTS; i < FRAGMENTS; i++) {
            const AFragment fragment = load_fragment(i / M_TILES_PER_PASS, i % M_TILES_PER_PASS);
            uint4* const place = smem.fragments[i - REG_FRAGMENTS][0];
            place[threadIdx.x] = fragment.left, place[THREADS + threadIdx.x] = fragment.right;
        }
    }
    __device__ AFragment at(int i) const {
        if (i < REG_FRAGMENTS) return reg_fragments[i < REG_FRAGMENTS ? i : 0];
        const uint4* const place = smem.fragments[i - REG_FRAGMENTS][0];
        return {place[threadIdx.x], place[THREADS + threadIdx.x]};
    }
};

// Products of a warpgroup's rows with the chunks of its partition, tile after tile.
struct Multiplier {
    Stages& stages;
    const Weights& weights;
    const int partition;
    unsigned stage, parity;

    // All copies end, also after a timeout: so does this wait.
    __device__ void wait_for_stage() const {
        while (!mbarrier_wait_parity(smem_addr(&stages.full[partition][stage]), parity)) {}
    }
    __device__ void release_stage(unsigned released) const {
        named_barrier_arrive(STAGE_EMPTY + partition * STATE_STAGES + released, STAGE_THREADS + 32);
    }
    __device__ void advance() {
        if (++stage == STATE_STAGES) stage = 0, parity ^= 1;
        opaque(stage);  // were it known, addresses of all stages would be in registers
    }
    // Of 32 bytes of a row of weights, the half-th of a chunk.
    __device__ wgmma_descriptor_t descriptor(int plane, int half) const {
        return wgmma_descriptor(smem_addr(stages.chunks[partition][stage].words[plane][2 * half]), TILE_BATCH * 16);
    }

#if USE_3XTF32
    // Adds the next tile's product to acc. Each fragment's three products are added outside of the tensor cores.
    __device__ void multiply(TileSums& acc) {
#pragma unroll
        for (int chunk = 0; chunk < K_CHUNKS; chunk++) {
            wait_for_stage();
#pragma unroll
            for (int f = 0; f < CHUNK_FRAGMENTS; f++)
#pragma unroll
                for (int m = 0; m < M_TILES_PER_PASS; m++)
                    multiply_fragment(acc[m], weights.at((chunk * CHUNK_FRAGMENTS + f) * M_TILES_PER_PASS + m), f);
            release_stage(stage);
            advance();
        }
    }
    __device__ void multiply_fragment(float (&acc)[4 * N_TILES], const AFragment& fragment, int f) const {
        const SplitAFragment a = split_a_fragment(fragment);
        float product[4 * N_TILES] = {};
        wgmma_fence_operands(product);
        wgmma_fence();
        wgmma_m64(product, a.small.left, descriptor(0, 2 * f));
        wgmma_m64(product, a.small.right, descriptor(0, 2 * f + 1));
        wgmma_m64(product, a.big.left, descriptor(1, 2 * f));
        wgmma_m64(product, a.big.right, descriptor(1, 2 * f + 1));
        wgmma_m64(product, a.big.left, descriptor(0, 2 * f));
        wgmma_m64(product, a.big.right, descriptor(0, 2 * f + 1));
        wgmma_commit_group();
        wgmma_wait_group<0>();
        wgmma_fence_operands(product);
#pragma unroll
        for (int i = 0; i < 4 * N_TILES; i++) acc[i] += product[i];
    }
#else
    // Adds the next tile's product to acc. A chunk's products are under way while the next ones are issued.
    __device__ void multiply(TileSums& acc) {
        unsigned last = 0;
#pragma unroll
        for (int chunk = 0; chunk < K_CHUNKS; chunk++) {
            AFragment a[CHUNK_FRAGMENTS][M_TILES_PER_PASS];
#pragma unroll
            for (int i = 0; i < CHUNK_FRAGMENTS * M_TILES_PER_PASS; i++)
                a[i / M_TILES_PER_PASS][i % M_TILES_PER_PASS] = weights.at(chunk * CHUNK_FRAGMENTS * M_TILES_PER_PASS + i);
            wait_for_stage();
            fence_sums(acc);
            wgmma_fence();
#pragma unroll
            for (int f = 0; f < CHUNK_FRAGMENTS; f++)
#pragma unroll
                for (int m = 0; m < M_TILES_PER_PASS; m++) {
                    wgmma_m64(acc[m], a[f][m].left, descriptor(0, 2 * f));
                    wgmma_m64(acc[m], a[f][m].right, descriptor(0, 2 * f + 1));
                }
            wgmma_commit_group();
            if (chunk > 0) {
                wgmma_wait_group<1>();
                release_stage(last);
            }
            last = stage;
            advance();
        }
        wgmma_wait_group<0>();
        fence_sums(acc);
        release_stage(last);
    }
    __device__ static void fence_sums(TileSums& acc) {
#pragma unroll
        for (int m = 0; m < M_TILES_PER_PASS; m++) wgmma_fence_operands(acc[m]);
    }
#endif
};
