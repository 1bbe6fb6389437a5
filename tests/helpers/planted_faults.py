"""Faults that are planted in the persistent kernels, and runs (tests/helpers/simulated_kernels.py) that show them."""

from __future__ import annotations

Fault = tuple[str, str, str]  # a header's file or a kernel's name, what stands there, and what takes its place
Faults = dict[str, Fault]
FORWARD, BACKWARD, WAVE = "persistent_forward", "persistent_backward", "persistent_wave"
ONCE_BACKWARD = "persistent_once_backward"
SPARSE_FORWARD, SPARSE_BACKWARD = "sparse_persistent_forward", "sparse_persistent_backward"
GATES_OF_CLUSTER, STREAM = "cluster_pointwise_warps.cuh", "resident_weights.cuh"
PRODUCT, COLUMNS = "input_gemm.cuh", "skinny_gemm.cuh"
MAINLOOP, POINTWISE, EXCHANGE = "mainloop.cuh", "forward_pointwise_warps.cuh", "state_exchange.cuh"
SENDS = "if (p * POINTWISE_WARPS + warp < BLOCKS - 1)"
SUMS_EMPTY, SUMS_FULL, WAVE_SUMS_EMPTY = (
    f"named_barrier_sync(NamedBarrier::{place}, BLOCK_THREADS);"
    for place in ("SumsEmpty + buffer", "SumsFull + buffer", "SumsEmpty + sum_buffer")
)
STATES_EMPTY = "if (iteration++ >= BUFFERS) named_barrier_sync(NamedBarrier::StatesEmpty + buffer, BLOCK_THREADS);"
COMPUTE_SYNCED = "BLOCK_THREADS),\n                    named_barrier_sync(NamedBarrier::ComputeSynced, THREADS);"
OUTPUT_WRITTEN = "named_barrier_sync(WaveBarrier::OutputWritten, POINTWISE_THREADS + 32);\n        jitter"
WAITS = "timed_out = !mbarrier_wait_parity(smem_addr(&shared.barriers[t % 2][tile]), (t - 1) / 2 % 2);"
LATER_WAITS = "timed_out = !mbarrier_wait_parity(smem_addr(&shared.barriers[last][tile]), (i - 1) / 2 % 2);"
LAST_WAITS = "timed_out = !mbarrier_wait_parity(smem_addr(&shared.barriers[(steps - 1) % 2][tile]), (steps - 1) / 2 % 2);"
STORES = "        __syncthreads();\n        pointers.store(results"
STORES_GRADIENTS = "        __syncthreads();\n        if (i < steps) pointers.store"
SUMS = "for (int mask = K_LANES / COUNT / 2; mask > 0; mask /= 2)"
LANE_SENDS = "sent = is_upper ? values[s][j] : values[s][j + LEFT];"
NOT_CHECKED: Fault = ("ll_packet.cuh", "|| Packet::is_valid(packets[i], epoch)", "|| packets[i].w >= 0")
NOT_PUBLISHED: Fault = ("ll_state_packets.cuh", "i < PACKETS; i += THREADS", "i < PACKETS - 1; i += THREADS")
NEXT = " " * 12
SYNCS = "if (__syncthreads_or(timed_out)) return false;"
FINDS = "            __syncwarp();\n            jitter(t, 3);"
VALID = "Packet::is_valid(packets[n][k % PACKETS_IN_REGISTERS], epoch);"
EMPTIED = "named_barrier_sync(NamedBarrier::SumsEmpty + buffer, THREADS + POINTWISE_THREADS);"
SYNCED = "            named_barrier_sync(NamedBarrier::PointwiseSynced, POINTWISE_THREADS);\n"
LEFT = "            const index left"
WAITS_FOR_STAGE = "while (!mbarrier_wait_parity(smem_addr(&stages.full"
PUBLISHES = "if (number == 0 && is_published && !timed_out) publish"
PUBLISHES_IF = "            if (thread.number == 0 && is_published)"
WRITTEN = "named_barrier_sync(NamedBarrier::SumsWritten + warp / 4, THREADS / 2);"
POLLS = "timed_out = !spin_until([&] { return (ready_steps = ld_acquire(input.step_flags + thread.lane)) > t; });"
AWAITS_INPUTS = "named_barrier_sync(WaveBarrier::InputsFull + input_buffer, THREADS + 32);"
AWAITS_EMPTY = "if (!is_first) named_barrier_sync(WaveBarrier::InputsEmpty + thread.warp, THREADS + 32);"
SPACES = 12 * " "
PUBLISHED_AFTER = "named_barrier_sync(NamedBarrier::StatesReady, POINTWISE_THREADS)"
STREAMED: Faults = {
    "they are not waited for": (STREAM, "cp_async_wait_group<(STREAM_STAGES > 0 ? STREAM_STAGES - 1 : 0)>();", ";"),
    "another stage's": (STREAM, "(from * 2 * STAGE_FRAGMENTS + i)", "(i)"),
    "the same stage again": (STREAM, "next = next + 1 < STREAMED_STAGES ? next + 1 : 0;", ""),
    "one stage for all": (STREAM, "stage = stage + 1 < STREAM_STAGES ? stage + 1 : 0;", ""),
    "another rank's": (STREAM, "(long long)rank * STREAMED_FRAGMENTS", "(long long)rank * 0"),
}
INPUT_PRODUCT: Faults = {
    "sums are not waited for": (PRODUCT, "        __syncthreads();\n        for (int i", "        for (int i"),
    "sums are written before they are read": (PRODUCT, "        }\n        __syncthreads();\n", "        }\n"),
    "another gate's row": (PRODUCT, "r % GATES * HIDDEN + unit] = ", "(r + 1) % GATES * HIDDEN + unit] = "),
    "another step": (PRODUCT, "params.x + row / sequences", "params.x + row % sequences"),
    "the first sequences alone": (PRODUCT, "(thread.first_sequence + row % sequences)", "(row % sequences)"),
    "the first rows of weights alone": (PRODUCT, "(tile + team * ROWS) * 16 + r", "team * ROWS * 16 + r"),
    "one warp's sums are left out": (COLUMNS, "warp < WARPS; warp++", "warp < WARPS - 1; warp++"),
    "one warp's partition alone": (COLUMNS, "first = warp * K_TILE", "first = 0"),
}
STREAMED_BACKWARD = "grid_backward k_partitions=1 units=12 grid_rows=8 weights=1:1:3"
# Of each group runs, one of which fails by each fault.
PLANTED: dict[str, tuple[str, Faults]] = {
    "cluster": ("cluster units=16 tiles=3 weights=1:0:0 lstm-T12-B20-I6-H40-bfloat16", {
        "the other parity": (FORWARD, WAITS, WAITS.replace("t - 1", "t + 1")),
        "no wait": (FORWARD, WAITS, ";"),
        "another tile's barrier": (FORWARD, WAITS, WAITS.replace("[tile]", "[0]")),
        "sums are written before they are read": (FORWARD, SUMS_EMPTY, SUMS_EMPTY.replace("_sync", "_arrive")),
        "no barrier of the cluster at the start": (FORWARD, "        cluster_sync();\n", ""),
        "a block is sent nothing": (GATES_OF_CLUSTER, SENDS, SENDS.replace("BLOCKS - 1", "BLOCKS - 2")),
        "one buffer of states": (GATES_OF_CLUSTER, "now = t % 2, next = 1 - now", "now = 0, next = 0"),
        "too few bytes": (GATES_OF_CLUSTER, "(BLOCKS - 1) * STATE_TILE_BYTES", "(BLOCKS - 1) * STATE_TILE_BYTES - 16"),
        "sums are read before they are there": (GATES_OF_CLUSTER, SUMS_FULL, SUMS_FULL.replace("_sync", "_arrive")),
        "states are sent before they are computed": (
            GATES_OF_CLUSTER, "named_barrier_sync(NamedBarrier::StatesReady, POINTWISE_THREADS);", ";",
        ),
    }),
    "cluster backward": ("cluster units=16 tiles=3 weights=1:0:0 gru-T12-B20-I6-H40-float16-state-training", {
        "sums are not sent": (BACKWARD, "if (!timed_out) mma_and_send(", "if (i < 3) mma_and_send("),
        "the other parity": (BACKWARD, LATER_WAITS, LATER_WAITS.replace("i - 1", "i + 1")),
        "no wait": (BACKWARD, LATER_WAITS, ";"),
        "no wait at the end": (BACKWARD, LAST_WAITS, ";"),
        "one buffer of sums": (BACKWARD, "shared.sums[buffer]", "shared.sums[0]"),
        "one buffer of gates": (BACKWARD, "gate_buffer = 1 - gate_buffer;", ""),
        "no barrier of the block": (BACKWARD, "timed_out = __syncthreads_or(timed_out);\n            if", "if"),
        "too few bytes": (BACKWARD, "BLOCKS * SUM_TILE_BYTES", "BLOCKS * SUM_TILE_BYTES - 16"),
        "another tile's barrier": (BACKWARD, LATER_WAITS, LATER_WAITS.replace("[tile]", "[0]")),
        "no barrier of the cluster at the start": (BACKWARD, "    cluster_sync();\n    GateInputs", "    GateInputs"),
    }),
    "cluster's left over forward": ("cluster units=32 tiles=1 weights=1:0:2 only=forward lstm-T5-B3-I6-H64-float32-training", {
        "they are not waited for": (STREAM, "cp_async_wait_group<(STREAM_STAGES > 0 ? STREAM_STAGES - 1 : 0)>();", ""),
        "another pass's": (STREAM, "(from * 2 * STAGE_FRAGMENTS + i)", "(i)"),
    }),
    "cluster's left over backward": (
        "cluster units=32 tiles=1 weights=1:0:2 only=backward lstm-T5-B3-I6-H64-float32-training", {
        "they are not waited for": (STREAM, "cp_async_wait_group<(STREAM_STAGES > 0 ? STREAM_STAGES - 1 : 0)>();", ""),
        "another pass's": (STREAM, "(from * 2 * STAGE_FRAGMENTS + i)", "(i)"),
    }),
    "block": ("block smem_vectors=1 lstm-T8-B3-I6-H19-float32-state-training", {
        "one buffer of states": (FORWARD, "shared.states[(t + 1) % 2].at", "shared.states[t % 2].at"),
        "no barrier after the states": (FORWARD, STORES, "        pointers.store(results"),
        "no barrier before the first step": (FORWARD, "jitter(-1, 0);\n    __syncthreads();", "jitter(-1, 0);"),
        "states that were not set to 0": (FORWARD, "zero_smem(shared.states, sizeof(shared.states));", ""),
        "the gate of another lane": (FORWARD, "gates[s], (GATES - 1) ^ 1)", "gates[s], (GATES - 1) ^ 2)"),
        "one buffer of gradients": (BACKWARD, "shared.gradients[i % 2].at", "shared.gradients[(i + 1) % 2].at"),
        "no barrier after the gradients": (BACKWARD, STORES_GRADIENTS, "        if (i < steps) pointers.store"),
        "weights that are read too early": (BACKWARD, "__syncthreads();\n    weights.for_each", "weights.for_each"),
        "weights that are overwritten too early": (BACKWARD, "jitter(-1, 0);\n    __syncthreads();", "jitter(-1, 0);"),
        "sums of half the lanes": ("lane_sums.cuh", SUMS, SUMS.replace("mask > 0", "mask > 1")),
        "the other half of the sums": ("lane_sums.cuh", LANE_SENDS, LANE_SENDS.replace("values[s][j + LEFT]", "values[s][j]")),
    }),
    "grid": ("grid tiles=2 lstm-T12-B12-I6-H40-float16-state", {
        "another epoch": (FORWARD, "thread.number, t + 1, store)", "thread.number, t, store)"),
        "one place for all steps": (FORWARD, "tile) * 2 + t % 2) * PACKETS_PER_TILE", "tile) * 2) * PACKETS_PER_TILE"),
        "no barrier before the product": (
            FORWARD, "named_barrier_sync(NamedBarrier::StatesFull + buffer, BLOCK_THREADS);", ";",
        ),
        "no barrier before the gates": (
            FORWARD, "            named_barrier_sync(NamedBarrier::ComputeSynced, THREADS);\n            jitter(t, 3);\n", "",
        ),
        "no barrier before publishing": (FORWARD, "timed_out = __syncthreads_or(timed_out);", ";"),
        "an epoch that is not checked": NOT_CHECKED,
        "a packet is not published": NOT_PUBLISHED,
    }),
    "readers of one buffer": ("readers buffers=1 load_threads=256 tiles=2 lstm-T12-B12-I6-H40-float16-state", {
        "an epoch that is not checked": NOT_CHECKED,
        "a packet is not published": NOT_PUBLISHED,
    }),
    "readers": ("readers tiles=2 lstm-T12-B12-I6-H40-float16-state", {
        "states are not waited for": (FORWARD, "named_barrier_sync(NamedBarrier::StatesFull + buffer, BLOCK_THREADS);", ";"),
        "states are not waited for to be read": (FORWARD, STATES_EMPTY, "iteration++;"),
        "another buffer": (
            FORWARD, "!receive_states(receiver, shared.states[buffer]", "!receive_states(receiver, shared.states[0]",
        ),
        "no barrier before publishing": (FORWARD, COMPUTE_SYNCED, "BLOCK_THREADS);"),
    }),
    "grid_backward": ("grid_backward tiles=2 lstm-T12-B12-I6-H40-float16-state-training", {
        "another step's sums": (
            BACKWARD, "sums.receive(shared, mailboxes, thread, i - 1, ", "sums.receive(shared, mailboxes, thread, i, ",
        ),
        "another step's gradients": (BACKWARD, "thread, i, tile, tiles));", "thread, i + 1, tile, tiles));"),
        "another epoch": (BACKWARD, "thread.number, i + 1, [&]", "thread.number, i, [&]"),
        "one place for all steps": (BACKWARD, "* 2 + i % 2) * each", "* 2) * each"),
        "another block's sums": (BACKWARD, "GRID_COLS + to) * GRID_COLS + thread.across()", "GRID_COLS + to) * GRID_COLS"),
        "a sum is not published": (
            BACKWARD, "p < GRID_COLS * SUM_PACKETS; p += THREADS", "p < GRID_COLS * SUM_PACKETS - 1; p += THREADS",
        ),
        "no barrier before the sums are added": (
            BACKWARD, NEXT + "timed_out = __syncthreads_or(timed_out);\n            if", NEXT + "if",
        ),
        "no barrier before publishing gradients": (BACKWARD, "            __syncthreads();\n            jitter(i, 2);\n", ""),
        "no barrier before the product": (BACKWARD, "__syncthreads_or(!gradients.receive_all(", "(!gradients.receive_all("),
        "no barrier before publishing sums": (BACKWARD, NEXT + "    __syncthreads();\n" + NEXT + "    jitter(i, 4);\n", ""),
        "an epoch that is not checked": NOT_CHECKED,
        "a packet is not published": NOT_PUBLISHED,
    }),
    "ntiled": ("ntiled tiles=2 n_tiles=2 sum_buffers=1 units=4 at_once=3 lstm-T12-B20-I6-H140-float16-state", {
        "another epoch": (FORWARD, "thread, t + 1, stage)", "thread, t, stage)"),
        "one place for all steps": (FORWARD, "* 2 + t % 2) * N_TILES", "* 2) * N_TILES"),
        "no barrier before the gates": (FORWARD, SYNCS, "if (timed_out) return false;"),
        "no barrier before sums are written again": (FORWARD, "if (SUM_BUFFERS == 1) __syncthreads();", ";"),
        "published before all lanes have computed": (FORWARD, FINDS, "            jitter(t, 3);"),
        "an epoch that is not checked": ("ll_b_fragments.cuh", VALID, "true;"),
        "what is late is not polled": ("ll_b_fragments.cuh", "i < prefetched; i++", "i < k + 1; i++"),
        "a packet is not published": (
            "ll_b_fragments.cuh", "i < PACKETS_PER_WARP; i += 32", "i < PACKETS_PER_WARP - 1; i += 32",
        ),
    }),
    "wgmma": ("wgmma units=8 lstm-T8-B44-I6-H30-float32-tf32-state", {
        "one block is not waited for": (FORWARD, "1u : 0u)) * BLOCKS;", "1u : 0u)) * BLOCKS - 1;"),
        "one place for all steps": ("forward_storage.cuh", "((index)(t % 2) * all_passes()", "((index)0 * all_passes()"),
        "sums are sent before others are read": (FORWARD, EMPTIED, ";"),
        "credits are not waited for": (FORWARD, "while (!mbarrier_wait_parity(credits, parity)) {}", ";"),
        "peers' sums are not waited for": (POINTWISE, "while (CLUSTER > 1 && !mbarrier", "while (false && !mbarrier"),
        "a stage is not waited for": (MAINLOOP, WAITS_FOR_STAGE, WAITS_FOR_STAGE.replace("(!", "(false && !")),
        "a stage is loaded before it is empty": (MAINLOOP, "if (is_reused) named_barrier", "if (false) named_barrier"),
        "load warps do not wait for the first": (MAINLOOP, "if (LOAD_WARPS > 1) named", "if (false) named"),
        "published before all warps have stored": (POINTWISE, SYNCED + LEFT, LEFT),
        "what is not published": (POINTWISE, PUBLISHES, PUBLISHES.replace("number == 0", "number == 0 && group.rank == 0")),
    }),
    "wgmma_backward": ("wgmma_backward units=8 lstm-T8-B44-I6-H30-float32-tf32-state-training", {
        "one block's gradients are not waited for": (BACKWARD, "(i + 1u) * GRID_ROWS);", "(i + 1u) * GRID_ROWS - 1);"),
        "one warpgroup's sums are not waited for": (BACKWARD, "* GRID_COLS * 2);", "* GRID_COLS * 2 - 1);"),
        "one place for the gradients of all steps": (BACKWARD, "(tile * GRID_COLS", "((index)pass * GRID_COLS"),
        "one place for the sums of all steps": (BACKWARD, "place * BLOCKS", "(index)pass * BLOCKS"),
        "sums are not waited for": (BACKWARD, "while (i > 0 && !mbarrier", "while (false && !mbarrier"),
        "published before all warps have stored": (BACKWARD, SYNCED + PUBLISHES_IF, PUBLISHES_IF),
        "sums are published before all warps have written": (BACKWARD, WRITTEN, ";"),
    }),
    "wgmma_backward of one buffer": ("wgmma_backward units=8 sum_buffers=1 lstm-T8-B44-I6-H30-float32-tf32-state-training", {
        "sums are loaded before others are read": (BACKWARD, "if (is_reused) named_barrier", "if (false) named_barrier"),
    }),
    "tiles multiplied as one": (
        f"{STREAMED_BACKWARD} tiles=2 n_tiles=2 gru-T4-B14-I6-H96-float16-state-training", {
        "another tile's columns": (BACKWARD, "receive(shared.columns[N_TILES - 1],", "receive(shared.columns[0],"),
        "another tile's sums": (BACKWARD, "sums.store(shared, thread, n);", "sums.store(shared, thread, 0);"),
        "no barrier before the next sums": (BACKWARD, "if (n > 0) __syncthreads();", ""),
        "another tile's states": ("b_tile.cuh", "b_ptr[pass * 32 + n * tile_stride]", "b_ptr[pass * 32]"),
    }),
    "wave": ("wave units=16 tiles=3 k_partitions=1 gru-T12-B28-I6-H40-L2-bfloat16", {
        "an input is not waited for": (WAVE, POLLS, ";"),
        "one step too early": (WAVE, POLLS, POLLS.replace("> t", ">= t")),
        "one block below is not polled": (WAVE, "thread.lane < BLOCKS", "thread.lane < BLOCKS - 1"),
        "another tile set is polled": (
            WAVE, "step_flags + ((index)l * sets + set) * BLOCKS", "step_flags + (index)l * sets * BLOCKS",
        ),
        "a step is signalled before it is written": (WAVE, OUTPUT_WRITTEN, "jitter"),
        "inputs are used before they are there": (WAVE, AWAITS_INPUTS, AWAITS_INPUTS.replace("_sync", "_arrive")),
        "inputs are overwritten before they are used": (
            WAVE, AWAITS_EMPTY, AWAITS_EMPTY.replace("_sync", "_arrive"),
        ),
        "a step too many is signalled": (WAVE, "st_release(step_flag, t + 1)", "st_release(step_flag, t + 2)"),
        "states are not waited for": (WAVE, WAITS, ";"),
        "sums are written before they are read": (WAVE, WAVE_SUMS_EMPTY, WAVE_SUMS_EMPTY.replace("_sync", "_arrive")),
        "no barrier of the cluster at the start": (WAVE, "        cluster_sync();\n", ""),
    }),
    "once": ("once gru-T1-B12-I2100-H20-float16-state", {
        "another row's gate": ("persistent_once", "(r % GATES) * HIDDEN + unit", "(r % GATES) + unit"),
        "the first K tile of each warp alone": (COLUMNS, "first += BATCH_K_TILES * WARPS * K_TILE", "first += SIZE"),
        "sums are not waited for": ("persistent_once", "__syncthreads();", ";"),
        "the other bias": ("persistent_once", "bias_at(params.bias_hh, GRU_N, unit)", "bias_at(params.bias_ih, GRU_N, unit)"),
        "states of the first eight sequences": ("persistent_once", "block / BLOCKS * 8", "0"),
    }),
    "once in training": ("once gru-T1-B70-I6-H20-float16-state-training", {
        "saved gates of the first sequence": ("persistent_once", "((index)b * 4 + gate)", "((index)0 * 4 + gate)"),
        "one sequence of each thread alone": (ONCE_BACKWARD, "b += blockDim.x / UNITS", "b += 1000"),
        "half a warp's sums are left out": (ONCE_BACKWARD, " + __shfl_xor_sync(0xffffffff, sums[i], UNITS)", ""),
        "sums are not waited for": (ONCE_BACKWARD, "__syncthreads();", ";"),
        "the other bias": (ONCE_BACKWARD, "sums[SUMS - 1] += recurrent", "sums[SUMS - 1] += gradient"),
        "nothing passes by z": (ONCE_BACKWARD, "narrow(d_h * local.h)", "narrow(0)"),
        "the other product": (ONCE_BACKWARD, "[row] = narrow(recurrent)", "[row] = narrow(gradient)"),
    }),
    "once without states": ("once lstm-T1-B3-I6-H9-float16-training", {
        "the last zeros are left out": (ONCE_BACKWARD, "i = VECTORS * ELEMENTS_PER_VECTOR + first", "i = ELEMENTS"),
    }),
    "sparse": ("sparse register_words=6 lstm-T10-B{14,4}-I6-H70-float32-state-density0.1-training", {
        "another number": (SPARSE_FORWARD, "first_tile + tile, t + 1, t +", "first_tile + tile, t, t +"),
        "no barrier before the product": (
            "sparse_persistent_forward", f"__syncthreads();\n{SPACES}const bool timed_out", "const bool timed_out",
        ),
        "no barrier before the sums": (
            "sparse_persistent_forward", f"__syncthreads();\n{SPACES}if (timed_out) return", "if (timed_out) return",
        ),
        "no barrier before publishing": (SPARSE_FORWARD, f"{PUBLISHED_AFTER};\n            jitter(t, 4);", ""),
        "another tile's": (
            "sparse_persistent_forward", "(shared.outgoing[tile], mailbox, first", "(shared.outgoing[0], mailbox, first",
        ),
        "one buffer for all steps": (EXCHANGE, "tile * 2u + epoch % 2)", "tile * 2u)"),
        "a packet is not published": (
            EXCHANGE, "i < PACKETS; i += POINTWISE_THREADS", "i < PACKETS - 1; i += POINTWISE_THREADS",
        ),
        "another unit's": (EXCHANGE, "block * WORDS + first_word + i]", "block * WORDS + (first_word + i + 1) % WORDS]"),
        "another row's sums": (
            "partial_sums.cuh", "partial_sums.sum(unit, gate,", "partial_sums.sum((unit + 1) % UNITS, gate,",
        ),
        "a partial sum is left out": ("partial_sums.cuh", "tree_sum<PARTS_A_ROW / LANES>", "tree_sum<PARTS_A_ROW / LANES - 2>"),
        "a non-zero is left out": ("spmm_rows.cuh", "pair < REG_PAIRS; pair++) {", "pair + 1 < REG_PAIRS; pair++) {"),
    }),
    "sparse backward": ("sparse register_words=6 lstm-T10-B{14,4}-I6-H70-float32-state-density0.1-training", {
        "another number": (SPARSE_BACKWARD, "/ SEQUENCES + tile, i, i,", "/ SEQUENCES + tile, i - 1, i,"),
        "no barrier before the product": (
            "sparse_persistent_backward", f"__syncthreads();\n{SPACES}    timed_out =", "timed_out =",
        ),
        "no barrier before the sums": (
            "sparse_persistent_backward", f"__syncthreads();\n{SPACES}if (timed_out) return", "if (timed_out) return",
        ),
        "no barrier before publishing": (SPARSE_BACKWARD, f"{PUBLISHED_AFTER};\n    jitter(i, 4);", ""),
    }),
    "sparse by barriers": (
        "sparse without=timestamps register_words=6 lstm-T10-B{14,4}-I6-H70-float32-state-density0.1-training", {
        "nobody is waited for": (EXCHANGE, "ld_acquire(counter) >= times * BLOCKS", "true"),
        "too few are": (EXCHANGE, "times * BLOCKS", "times * BLOCKS - 1"),
        "who arrives has not published all": (
            EXCHANGE, "named_barrier_sync(NamedBarrier::AllPublished, POINTWISE_THREADS);", "",
        ),
    }),
    "sparse clusters": ("sparse cluster=2 lstm-T10-B3-I6-H70-float32-state-density0.2-training", {
        "partial sums are not waited for": (
            "cluster_reduce.cuh", "return spin_until_warp([", "return true || spin_until_warp([",
        ),
        "one buffer": ("cluster_reduce.cuh", "iteration % BUFFERS * (smem_addr_t)sizeof(to.slots[0])", "0"),
        "another buffer's partial sums": ("partial_sums.cuh", "iteration % BUFFERS][slot", "(iteration + 1) % BUFFERS][slot"),
        "the other phase": ("cluster_reduce.cuh", "iteration / BUFFERS % 2)", "(iteration / BUFFERS + 1) % 2)"),
        "another block's": ("cluster_reduce.cuh", "rank = slot / to.SLOTS", "rank = 0"),
        "more than is sent": ("cluster_reduce.cuh", "partials * SEQUENCES * 4)", "partials * SEQUENCES * 4 + 4)"),
    }),
    "streamed grid": ("grid units=36 weights=1:1:3 lstm-T5-B9-I6-H210-float16-state", STREAMED),
    "streamed ntiled": ("ntiled at_once=0 units=36 n_tiles=2 weights=1:1:3 lstm-T5-B9-I6-H330-float16-state", STREAMED),
    "streamed backward": (f"{STREAMED_BACKWARD} lstm-T5-B9-I6-H96-float16-state-training", STREAMED),
    "input product, grid": ("grid units=36 fused_rows=1000 lstm-T2-B16-I300-H100-float16-ragged-state", INPUT_PRODUCT),
    "input product, readers": ("readers units=36 fused_rows=1000 lstm-T2-B16-I300-H100-float16-ragged-state", INPUT_PRODUCT),
}  # fmt: skip
