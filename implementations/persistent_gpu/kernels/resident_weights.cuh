// A warp's persistent weights (Diamos et al., 2016), FRAGMENTS fragments of 16 rows by a K tile. They are used in every step in
// passes of M_TILES_PER_PASS of them, all of the same K tile. Forward, and in grids, a pass has all of a warp's tiles of rows;
// backward in clusters it has at most 4.
// The first REG_FRAGMENTS are in registers, the next SMEM_FRAGMENTS in shared memory. The others
// are streamed: written to memory once, as threads use them, and loaded from there, in effect from L2 where all blocks' fit it,
// in every step, STREAM_STAGES stages of STAGE_FRAGMENTS fragments ahead: the first ones are on their way while states are
// exchanged. Whole passes are streamed: REG_FRAGMENTS + SMEM_FRAGMENTS is a multiple of M_TILES_PER_PASS then, and that one of
// STAGE_FRAGMENTS. Every thread loads what it wrote itself, or what another cluster's or group's thread wrote with the same
// values. Of a stream that does not fit the L2 cache the first L2_FRAGMENTS stay there; if all were alike, none would be there
// when its turn comes again.
// From W_hh LOADS_IN_FLIGHT fragments are loaded at once, in one loop, as code is slow the first time that it runs. Where that
// is REG_FRAGMENTS, those in registers are loaded at once, and the others before, one by one.
#pragma once
#include "ecornn/common/ceil_div.cuh"
#include "ecornn/ptx/cp_async.cuh"
#include "warp_mma.cuh"

// A block's fragments that stay in shared memory, then the stages of those that are streamed.
struct WeightStorage {
    static constexpr int SMEM_SLOTS = SMEM_FRAGMENTS + STREAM_STAGES * STAGE_FRAGMENTS;
    uint4 fragments[SMEM_SLOTS > 0 ? SMEM_SLOTS : 1][2][THREADS];
};

template <int FRAGMENTS, int LOADS_IN_FLIGHT> struct ResidentWeights {
    static constexpr int PASSES = FRAGMENTS / M_TILES_PER_PASS;
    static constexpr int REG_PASSES = ceil_div(REG_FRAGMENTS, M_TILES_PER_PASS);  // with at least one fragment in registers
    static constexpr int STREAMED_FRAGMENTS = FRAGMENTS - REG_FRAGMENTS - SMEM_FRAGMENTS;
    static constexpr int STREAMED_PASSES = STREAMED_FRAGMENTS / M_TILES_PER_PASS;
    static constexpr int STREAMED_STAGES = STREAMED_FRAGMENTS / STAGE_FRAGMENTS;
    // Loads of one fragment, before the others, and of LOADS_IN_FLIGHT fragments.
    static constexpr int SERIAL_LOADS = LOADS_IN_FLIGHT == REG_FRAGMENTS ? FRAGMENTS - REG_FRAGMENTS : 0;
    static constexpr int BATCHED_LOADS = ceil_div(FRAGMENTS - SERIAL_LOADS, LOADS_IN_FLIGHT);
    AFragment reg_fragments[REG_FRAGMENTS];
    WeightStorage& smem;
    uint4* stream;  // [STREAMED_FRAGMENTS][2][THREADS], this block's
    int stage, next;  // of the ring the one to use, and what is loaded into it then

    // load_fragment(pass, i): the thread's elements of the pass's i-th fragment.
    template <typename LoadFragment>
    __device__ ResidentWeights(WeightStorage& smem, uint4* streams, int rank, LoadFragment load_fragment)
        : reg_fragments(), smem(smem), stage(0), next(STREAM_STAGES < STREAMED_STAGES ? STREAM_STAGES : 0) {
        stream = streams + (long long)rank * STREAMED_FRAGMENTS * 2 * THREADS;
#pragma unroll 1
        for (int i = 0; i < SERIAL_LOADS; i++) load_batch<1>(i, load_fragment);
#pragma unroll 1
        for (int i = FRAGMENTS - BATCHED_LOADS * LOADS_IN_FLIGHT; i < FRAGMENTS; i += LOADS_IN_FLIGHT)
            load_batch<LOADS_IN_FLIGHT>(i, load_fragment);
        if (!STREAMED_PASSES) return;
        __threadfence();
        for (int i = 0; i < STREAM_STAGES; i++) load_stage(i, i);
    }

    // Loads COUNT fragments, from the first-th on in an order where those in registers are last; negative ones do not exist.
    // Registers have no index: fragments are appended at the end, and those before them move up, and out.
    template <int COUNT, typename LoadFragment> __device__ void load_batch(int first, LoadFragment load_fragment) {
        AFragment batch[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            unsigned fragment = (max(first + i, 0) + REG_FRAGMENTS) % FRAGMENTS;
            opaque(fragment);  // NVRTC 13.0 and 13.5 take a number that is known to be odd for its half
            batch[i] = load_fragment(fragment / M_TILES_PER_PASS, fragment % M_TILES_PER_PASS);
        }
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (first + i >= 0 && first + i < FRAGMENTS - REG_FRAGMENTS)
                set(fragment_ptr(first + i + REG_FRAGMENTS), batch[i]);
#pragma unroll
        for (int fragment = 0; fragment + COUNT < REG_FRAGMENTS; fragment++)
            reg_fragments[fragment] = reg_fragments[fragment + COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) reg_fragments[REG_FRAGMENTS - COUNT + i] = batch[i];
    }

    // Address of a fragment that is not in registers.
    __device__ uint4* fragment_ptr(int fragment) const {
        const bool is_in_smem = STREAMED_FRAGMENTS == 0 || fragment < REG_FRAGMENTS + SMEM_FRAGMENTS;
        return is_in_smem ? smem.fragments[fragment - REG_FRAGMENTS][0]
                          : stream + (fragment - REG_FRAGMENTS - SMEM_FRAGMENTS) * 2 * THREADS;
    }

    __device__ static void set(uint4* ptr, const AFragment& fragment) {
        ptr[threadIdx.x] = fragment.left, ptr[THREADS + threadIdx.x] = fragment.right;
    }
    __device__ static AFragment get(const uint4* ptr) { return {ptr[threadIdx.x], ptr[THREADS + threadIdx.x]}; }

    __device__ void load_stage(int from, int into) {
        for (int i = 0; i < 2 * STAGE_FRAGMENTS; i++) {
            uint4* place = smem.fragments[SMEM_FRAGMENTS + into * STAGE_FRAGMENTS][0] + i * THREADS + threadIdx.x;
            const uint4* data = stream + (from * 2 * STAGE_FRAGMENTS + i) * THREADS + threadIdx.x;
            if (L2_FRAGMENTS < STREAMED_FRAGMENTS) cp_async_16B_evict(place, data, from * STAGE_FRAGMENTS < L2_FRAGMENTS);
            else cp_async_16B(place, data);
        }
        cp_async_commit_group();
    }

    __device__ AFragment load_smem_fragment(int fragment) const { return get(smem.fragments[fragment - REG_FRAGMENTS][0]); }
    __device__ AFragment at(int fragment) const {
        return fragment < REG_FRAGMENTS ? reg_fragments[fragment < REG_FRAGMENTS ? fragment : 0] : load_smem_fragment(fragment);
    }

    // Calls fn(pass, fragment) for all passes in order: fragment(i) is the pass's i-th.
    template <typename Fn> __device__ void for_each_pass(Fn fn) {
#pragma unroll
        for (int pass = 0; pass < REG_PASSES; pass++) fn(pass, [&](int i) { return at(pass * M_TILES_PER_PASS + i); });
#pragma unroll 2
        for (int pass = REG_PASSES; pass < PASSES - STREAMED_PASSES; pass++)
            fn(pass, [&](int i) { return load_smem_fragment(pass * M_TILES_PER_PASS + i); });
        for_each_streamed_pass(0, STREAMED_PASSES, fn);
    }

    // Calls fn likewise for passes FROM to before TO, in an order fixed at compile time: those from shared memory between those
    // from registers. After each the next one's first fragment is loaded. Those that are streamed are spread among them, the
    // first one at the start: its data arrived while states were exchanged, and the next ones' arrive during the others.
    template <int FROM = 0, int TO = PASSES, typename Fn> __device__ void for_each_pass_interleaved(Fn fn) {
        constexpr int REG_END = REG_PASSES < FROM ? FROM : REG_PASSES < TO ? REG_PASSES : TO;
        constexpr int SMEM_END = PASSES - STREAMED_PASSES < TO ? PASSES - STREAMED_PASSES : TO;
        constexpr int REG_COUNT = REG_END - FROM, SMEM_COUNT = SMEM_END > REG_END ? SMEM_END - REG_END : 0;
        constexpr int ROUNDS = REG_COUNT > 0 ? REG_COUNT : 1;
        AFragment first = SMEM_COUNT > 0 ? load_smem_fragment(REG_END * M_TILES_PER_PASS) : AFragment();
#pragma unroll
        for (int round = 0; round < ROUNDS; round++) {
            for_each_streamed_pass(ceil_div(round * STREAMED_PASSES, ROUNDS), ceil_div((round + 1) * STREAMED_PASSES, ROUNDS),
                                   fn);
            if (round < REG_COUNT) fn(FROM + round, [&](int i) { return at((FROM + round) * M_TILES_PER_PASS + i); });
#pragma unroll
            for (int n = round * SMEM_COUNT / ROUNDS; n < (round + 1) * SMEM_COUNT / ROUNDS; n++) {
                const int pass = REG_END + n;
                fn(pass, [&](int i) { return i == 0 ? first : load_smem_fragment(pass * M_TILES_PER_PASS + i); });
                if (n + 1 < SMEM_COUNT) first = load_smem_fragment((pass + 1) * M_TILES_PER_PASS);
            }
        }
    }

    // Calls fn likewise for the passes that are streamed, of these from the first-th to before the end-th.
    template <typename Fn> __device__ void for_each_streamed_pass(int first, int end, Fn fn) {
        if (!STREAMED_PASSES) return;
#pragma unroll 1
        for (int s = first; s < end; s++) {
            fn(PASSES - STREAMED_PASSES + s, [&](int i) { return streamed_fragment(i); });
            load_next_stage();
        }
    }

    // The i-th fragment of the pass that is streamed next, in order; after the last one load_next_stage() is called.
    __device__ AFragment streamed_fragment(int i) {
        if (i > 0 && i % STAGE_FRAGMENTS == 0) load_next_stage();
        if (i % STAGE_FRAGMENTS == 0) cp_async_wait_group<(STREAM_STAGES > 0 ? STREAM_STAGES - 1 : 0)>();
        return get(smem.fragments[SMEM_FRAGMENTS + stage * STAGE_FRAGMENTS + i % STAGE_FRAGMENTS][0]);
    }
    // In place of the stage that was used, those of the stream in turn.
    __device__ void load_next_stage() {
        load_stage(next, stage);
        stage = stage + 1 < STREAM_STAGES ? stage + 1 : 0;
        next = next + 1 < STREAMED_STAGES ? next + 1 : 0;
    }

    // Waits for all copies.
    __device__ void drain() const { cp_async_wait_group<0>(); }
};
