// The pointwise warps of a block of wgmma_forward.cu: they compute the gates of every tile and step from the sums of the
// MMA warps of all blocks of the cluster, publish the states, and write the output. Their own tiles, which StatePointers and
// others count, have POINTWISE_BATCH sequences, some of which make a pass's tile.
#pragma once
#include "forward_storage.cuh"

// The sums of a thread's state: of all sources in one order. sequence_in_pass: in the tile of the pass.
__device__ inline GateVector reduce_sums(const ReceivedSums& sums, int unit, int sequence_in_pass) {
    GateVector all = {};
#pragma unroll
    for (int source = 0; source < CLUSTER * K_PARTITIONS; source++)
#pragma unroll
        for (int gate = 0; gate < GATES; gate++)
            all.data[gate] += sums.data[source][unit * ReceivedSums::UNIT_STRIDE + gate * TILE_BATCH + sequence_in_pass];
    return all;
}

// Tells all blocks that this block has published its states of a pass, after a barrier of the pointwise warps, by one of
// their threads.
__device__ inline void publish(const Params& params, const Group& group, int pass) {
    red_add_release(params.counter(group.first_pass + pass));
}

// Tells all MMA warps of the cluster that this block's pointwise warps have read the sums of a buffer, likewise.
__device__ inline void send_credits(SharedStorage& shared, int buffer, int rank) {
#pragma unroll 1
    for (int i = 1; i < CLUSTER; i++) {
        const int peer = (rank + i) % CLUSTER;
        st_async(map_shared_rank(smem_addr(&shared.credit_words[rank]), peer), 1u,
                 map_shared_rank(smem_addr(&shared.credits[buffer]), peer));
    }
}

// Publishes the initial states of the block's own units.
__device__ inline void publish_initial_states(SharedStorage& shared, const Params& params, const Group& group,
                                              const Thread& thread, int tiles) {
    for (int tile = 0; tile < tiles; tile++) {
        const int pass = tile / TILES_PER_PASS, first = tile % TILES_PER_PASS * POINTWISE_BATCH;
        Chunk* const chunks = params.states(0, group.first_pass + pass);
        load_own_initial_state(shared.own[tile], params, thread, tile);
        for (int s = 0; s < Config::STATES_PER_THREAD; s++)
            if (tile < thread.tiles_with_state(s))
                store_operand(chunks, column_offset(thread.unit(s)) + (first + thread.sequence_in_tile(s)) * 16,
                              shared.own[tile].at(thread.unit(s), thread.sequence_in_tile(s)));
        if (tile + 1 < tiles && (tile + 1) % TILES_PER_PASS) continue;
        named_barrier_sync(NamedBarrier::PointwiseSynced, POINTWISE_THREADS);
        if (thread.number == 0) publish(params, group, pass);
    }
}

// Computes, publishes and writes the states of every tile and step; status is 1 after a timeout.
__device__ inline void run_pointwise_warps(SharedStorage& shared, const Params& params, const Group& group, int passes) {
    const int number = threadIdx.x - THREADS;
    const Thread thread = {number, number / 32, number % 32, group.first_unit, group.first_sequence, params.batch};
    const int tiles = min(TILES, ceil_div(params.batch - group.first_sequence, POINTWISE_BATCH));
    load_biases_and_carry(shared.pointwise, params, thread);
    named_barrier_sync(NamedBarrier::PointwiseSynced, POINTWISE_THREADS);
    if (params.h0) publish_initial_states(shared, params, group, thread, tiles);
    StatePointers<Config> pointers(params, thread, tiles);
    GateInputs<Config> inputs = {};
    inputs.load(params, pointers, 0, 0);
    int offsets[Config::STATES_PER_THREAD];
#pragma unroll
    for (int s = 0; s < Config::STATES_PER_THREAD; s++)
        offsets[s] = column_offset(thread.unit(s)) + thread.sequence_in_tile(s) * 16;
    int buffer = 0, parity = 0;
    for (int t = 0; t < params.steps; t++)
#pragma unroll 1
        for (int pass = 0; pass < passes; pass++) {
            const bool is_published = t + 1 < params.steps;
            const int last_tile = min(tiles, (pass + 1) * TILES_PER_PASS);
            Chunk* const chunks = params.states(t + 1, group.first_pass + pass);
            const ReceivedSums& sums = shared.sums[buffer];
            if (CLUSTER > 1 && number == 0) mbarrier_arrive_expect_tx(smem_addr(&shared.sums_full[buffer]), RECEIVED_BYTES);
            jitter(t, 3);
            named_barrier_sync(NamedBarrier::SumsFull + buffer, THREADS + POINTWISE_THREADS);
            while (CLUSTER > 1 && !mbarrier_wait_parity(smem_addr(&shared.sums_full[buffer]), parity)) {}
            const bool timed_out = *(volatile int*)&shared.timed_out;
#pragma unroll 1
            for (int tile = pass * TILES_PER_PASS, first = 0; tile < last_tile; tile++, first += POINTWISE_BATCH) {
                const bool is_last = tile + 1 == tiles;
                const GateOperands operands(shared.pointwise, inputs, thread, tile, params.step(t));
                load_next_inputs(inputs, pointers, params, tiles, tile, t);
                const auto sums_of_state = [&](int s) {
                    return reduce_sums(sums, thread.local_unit(s), first + thread.sequence_in_tile(s));
                };
                const StepResult result(shared.pointwise, sums_of_state, operands, thread, tile, shared.own[tile],
                                        shared.own[tile]);
#pragma unroll
                for (int s = 0; s < Config::STATES_PER_THREAD; s++)
                    if (is_published && !timed_out && tile < pointers.tiles_with_state[s])
                        store_operand(chunks, offsets[s] + first * 16, result.h[s]);
                result.write(pointers, operands, tile);
                if (!is_published) result.write_final(params, shared.pointwise, operands, thread, tile);
                pointers.advance(is_last);
            }
            jitter(t, 4);
            named_barrier_arrive(NamedBarrier::SumsEmpty + buffer, THREADS + POINTWISE_THREADS);
            named_barrier_sync(NamedBarrier::PointwiseSynced, POINTWISE_THREADS);
            const index left = (index)(params.steps - 1 - t) * passes + passes - 1 - pass;  // passes
            if (number == 0 && CLUSTER > 1 && left >= SUM_BUFFERS) send_credits(shared, buffer, group.rank);
            if (number == 0 && is_published && !timed_out) publish(params, group, pass);
            if (++buffer == SUM_BUFFERS) buffer = 0, parity ^= 1;
        }
    if (!*(volatile int*)&shared.timed_out) return;
    *(volatile int*)params.status = 1;
    write_nan(params, thread, tiles);
}
