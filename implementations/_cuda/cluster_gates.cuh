// The warps of a block of a cluster that have the states: how they find the gates of every tile and step, while the first 8 warps
// multiply, tell the other blocks, and write. Of a kernel's struct Shared they know `barriers`, a tile's of either buffer, and the
// room up to the next 128 bytes; `states`, likewise; `steps`; and is_stuck: some thread has given up a wait, no more is told.
#pragma once
#define SUMS 2
#include "cluster.cuh"
#include "jitter.cuh"
#include "persistent_step.cuh"
#include "roles.cuh"

#define TOLD (UNITS * 8 * (int)sizeof(storage))  // bytes, by each block to each other for a tile
#define PIECES (TOLD / 16)
#define A_LANE ((PIECES + 31) / 32)
#define GATE_WARPS (GATE_THREADS / 32)
#define TELLS ((BLOCKS + GATE_WARPS - 2) / GATE_WARPS)  // of the other blocks, by a warp
#define ALL (THREADS + GATE_THREADS)
enum Where { FULL = 1, EMPTY = 3, COMPLETE = 5 };  // meetings: either turn's sums are there, have been read; all states are found

// How a block tells the others, each of its warps some of them. places: of the start of shared memory in other blocks.
template <typename Shared> struct Telling {
    word places[TELLS > 0 ? TELLS : 1];

    __device__ Telling(const Shared& shared, const Thread& me) {
        const int rank = me.first_unit / UNITS;
#pragma unroll
        for (int i = 0; i < TELLS; i++) places[i] = in_block(address_of(&shared), (rank + 1 + me.warp + i * GATE_WARPS) % BLOCKS);
    }

    // What the block has found of a tile. place: of the thread's first piece of it, barrier: both from the block's memory on.
    __device__ void tell(const Shared& shared, word place, word barrier, int warp) const {
#pragma unroll
        for (int piece = 0; piece < A_LANE; piece++) {
            if (piece * 32 + threadIdx.x % 32 >= PIECES) continue;
            const uint4 found = ((const uint4*)((const char*)&shared + place))[piece * 32];
#pragma unroll
            for (int i = 0; i < TELLS; i++)
                if (i * GATE_WARPS + warp < BLOCKS - 1) send(places[i] + place + piece * 512, found, places[i] + barrier);
        }
    }
};

// By all of a block's threads, before anything else. place: of a jitter.
template <typename Shared> __device__ inline void set_up(Shared& shared, int place) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < 16; i++) make_barrier(address_of(&shared.barriers[0][i]));
        show_barriers();
        shared.is_stuck = 0;
    }
    clear(shared.states, sizeof(shared.states));
    jitter(-1, place);
    __syncthreads();
}

// What these warps have ready before the first step; after it the cluster is to meet.
template <typename Shared>
__device__ inline void start(Shared& shared, const Arrays& arrays, const Thread& me, int tiles, const length* lengths) {
    start(shared.steps, arrays, me, lengths);
    for (int tile = 0; tile < tiles; tile++) start(shared.states[0][tile], arrays, me, tile);
}

// Gates of every tile and step, told and written; status says where not all is known. inputs: `Inputs`, or what has its functions.
// written(t): called by all these threads when they have written all of step t.
template <typename Shared, typename In, typename Written>
__device__ inline void find_all(
    Shared& shared, const Arrays& arrays, const Thread& me, int tiles, int* status, In inputs, Written written) {
    const Telling<Shared> telling(shared, me);
    Walk walk(arrays, me, tiles);
    walk.hold();
    inputs.read(arrays, walk, 0, 0);
    const auto place_of = [&](const void* what) { return address_of(what) - address_of(&shared); };
    const auto told_at = [&](int t, int tile) { return place_of(&shared.states[t % 2][tile].piece(me.first_unit, me.lane)); };
    const auto barrier_at = [&](int t, int tile) { return place_of(&shared.barriers[t % 2][tile]); };
    word place = told_at(1, 0), barrier = barrier_at(1, 0);  // found before all states are, which are to be told right after
    int turn = 0;
    bool is_stuck = false;
    for (int t = 0; t < arrays.steps; t++)
#pragma unroll 1
        for (int tile = 0; tile < tiles; tile++) {
            const int now = t % 2, next = 1 - now;
            const bool is_last = tile + 1 == tiles, is_told = t + 1 < arrays.steps;
            const Ready ready(shared.steps, inputs, me, tile, arrays.step(t));
            read_next(inputs, walk, arrays, tiles, tile, t);
            jitter(t, 2);
            meet(FULL + turn, ALL);
            is_stuck = *(volatile int*)&shared.is_stuck;  // before the gates, which need not wait for it
            jitter(t, 3);
            const Found found(shared.steps, turn, ready, me, tile, shared.states[now][tile], shared.states[next][tile]);
            jitter(t, 4);
            come(EMPTY + turn, ALL);
            meet(COMPLETE, GATE_THREADS);
            jitter(t, 5);
            if (is_told && !is_stuck) {
                if (me.number == 0) expect(address_of(&shared) + barrier, (BLOCKS - 1) * TOLD);
                telling.tell(shared, place, barrier, me.warp);
            }
            found.write(walk, ready, tile);
            if (!is_told) found.write_final(arrays, shared.steps, ready, me, tile);
            if (is_last) written(t);
            walk.advance(is_last);
            turn = 1 - turn;
            const int following = is_last ? t + 2 : t + 1, its_tile = is_last ? 0 : tile + 1;
            place = told_at(following, its_tile), barrier = barrier_at(following, its_tile);
        }
    if (!is_stuck) return;
    *(volatile int*)status = 1;
    give_up(arrays, me, tiles);
}
