"""Diagrams of the kernels: of persistent ones a step of one tile, in a block and in another of its cluster or group."""

from __future__ import annotations

from pytest_ecornn.suites.figures.sequence_diagram import Arrow, Diagram, Lifeline, Signal, storage, wait, work

_FULL, _EMPTY, _DATA, _FLAG = Signal.FULL, Signal.EMPTY, Signal.DATA, Signal.FLAG


def cluster_forward() -> Diagram:
    mma, pointwise, other_pointwise, other_mma = range(4)
    roles = [
        Lifeline("MMA warps", "block r", "consume h, produce sums"),
        Lifeline("pointwise warps", "block r", "consume sums, produce h"),
        Lifeline("pointwise warps", "block r' of the cluster", "consume sums, produce h"),
        Lifeline("MMA warps", "block r' of the cluster", "consume h, produce sums"),
    ]
    mmas, pointwises = (mma, other_mma), (pointwise, other_pointwise)
    sides = ((mma, pointwise), (other_mma, other_pointwise))
    return Diagram(
        "cluster_forward.cu: step t of a tile; b is the buffer of the sums",
        roles,
        [
            wait(mmas, "named_barrier_sync SumsEmpty[b]", "from the third pass on")
            + work(pointwises, "GateOperands of step t"),
            [Arrow(other_pointwise, mma, "st.async h_t, bytes counted in barriers[t % 2]", _DATA)],
            [Arrow(pointwise, other_mma, "st.async h_t, bytes counted in barriers[t % 2]", _DATA)],
            wait(mmas, "mbarrier_wait_parity", "barriers[t % 2][tile]")
            + work(pointwises, "load_next_inputs", "next pass, L2 of 3 steps on"),
            work(mmas, "mma_recurrent: W_hh h_t", "SumStorage::store to sums[b]")
            + wait(pointwises, "named_barrier_sync", "SumsFull[b]"),
            [Arrow(left, right, "SumsFull[b]", _FULL) for left, right in sides],
            work(pointwises, "StepResult: SumStorage::reduce,", "cell_forward; carry;", "own h to states[(t + 1) % 2]")
            + work(mmas, "next tile, or the wait", "for SumsEmpty[1 - b]"),
            [Arrow(right, left, "SumsEmpty[b]", _EMPTY) for left, right in sides],
            wait(pointwises, "named_barrier_sync StatesReady", "pointwise warps of the block"),
            work(pointwises, "thread 0 alone:", "mbarrier_arrive_expect_tx;", "all: ClusterBroadcast::broadcast"),
            [Arrow(right, left, "arrive: own h is written", _FULL) for left, right in sides],
            [Arrow(pointwise, other_mma, "st.async h_(t+1), barriers[(t + 1) % 2]", _DATA)],
            [Arrow(other_pointwise, mma, "st.async h_(t+1), barriers[(t + 1) % 2]", _DATA)],
            work(pointwises, "StepResult::write: output,", "saved gates")
            + wait(mmas, "mbarrier_wait_parity", "barriers[(t + 1) % 2][tile]"),
        ],
        spacing=248,
    )


def grid_forward() -> Diagram:
    compute, load, mailbox, other_load, other_compute = range(5)
    roles = [
        Lifeline("compute warps", "block r", "MMA and pointwise"),
        Lifeline("load warps", "block r", "produce states"),
        Lifeline("mailboxes", "global memory", "two a tile, t % 2; in L2"),
        Lifeline("load warps", "block r' of the group", "produce states"),
        Lifeline("compute warps", "block r' of the group", "MMA and pointwise"),
    ]
    computing, loading = (compute, other_compute), (load, other_load)
    return Diagram(
        "grid_forward.cu with load warps: step t of a tile; b is the buffer of the states",
        roles,
        [
            [Arrow(role, mailbox, "st.relaxed h_t, epoch t + 1", _DATA) for role in computing],
            storage(mailbox, "mailbox t % 2", "a flag in each packet")
            + wait(loading, "sync StatesEmpty[b]", "once b was used"),
            work(loading, "spin_clocks, one tile;", "PacketReader polls"),
            [Arrow(mailbox, role, "ld.relaxed", _DATA) for role in loading],
            work(loading, "unpack_into states[b]"),
            wait(loading, "sync LoadSynced"),
            [Arrow(load, compute, "StatesFull[b]", _FULL), Arrow(other_load, other_compute, "StatesFull[b]", _FULL)],
            work(computing, "mma_recurrent: W_hh h_t", "to sums; GateOperands") + work(loading, "prefetch_first, next"),
            wait(computing, "sync ComputeSynced"),
            work(computing, "StepResult: sums, cell,", "carry; h to `own`"),
            [Arrow(compute, load, "StatesEmpty[b]", _EMPTY), Arrow(other_compute, other_load, "StatesEmpty[b]", _EMPTY)],
            wait(computing, "sync ComputeSynced"),
            work(computing, "publish_states") + storage(mailbox, "mailbox (t + 1) % 2", "h_(t-1) is overwritten"),
            [Arrow(role, mailbox, "st.relaxed h_(t+1), epoch t + 2", _DATA) for role in computing],
            work(computing, "write: output, saved", "load_next_inputs") + wait(loading, "polls for epoch t + 2"),
        ],
        spacing=190,
    )


def cluster_backward() -> Diagram:
    warps, barriers, other = range(3)
    roles = [
        Lifeline("all 8 warps", "block r", "pointwise, then MMA"),
        Lifeline("sums and their mbarriers", "shared memory of both", "buffer i % 2"),
        Lifeline("all 8 warps", "block r' of the cluster", "pointwise, then MMA"),
    ]
    both = (warps, other)
    return Diagram(
        "cluster_backward.cu: the i-th step backward of a tile; g is the buffer of the gates",
        roles,
        [
            work(
                both, "local_gradients; load the next inputs", "thread 0: mbarrier_arrive_expect_tx,", "barriers[i % 2][tile]"
            ),
            [Arrow(barriers, role, "bytes of step i - 1", _DATA) for role in both],
            wait(both, "mbarrier_wait_parity", "barriers[(i - 1) % 2][tile]"),
            work(both, "add_partial_sums, in the order of blocks", "pointwise_backward: d_gates; gates[g]"),
            wait(both, "__syncthreads_or(timed_out)") + storage(barriers, "sums[(i - 1) % 2] were read"),
            work(both, "mma_and_send: own gates times", "W_hh^T, M tile after M tile"),
            [Arrow(role, barriers, "st.async sums of step i", _DATA) for role in both],
            storage(barriers, "sums[i % 2]: each unit's", "in the block that owns it"),
        ],
        spacing=320,
    )


def grid_backward() -> Diagram:
    warps, mailbox, column, row = range(4)
    roles = [
        Lifeline("all 8 warps", "block r", "pointwise, then MMA"),
        Lifeline("mailboxes", "global memory", "gradients, sums; i % 2"),
        Lifeline("all 8 warps", "a block of its column", "consumes the gradients"),
        Lifeline("all 8 warps", "a block of its row", "consumes the sums"),
    ]
    return Diagram(
        "grid_backward.cu: the i-th step backward; each half goes through all tiles",
        roles,
        [
            work(row, "publish_partial_sums"),
            [Arrow(row, mailbox, "sums of step i - 1, epoch i", _DATA)],
            [Arrow(mailbox, warps, "ld.relaxed sums", _DATA)],
            wait(warps, "SumReceiver::receive,", "__syncthreads_or"),
            work(warps, "add_partial_sums;", "pointwise_backward", "d_gates; gradients to `own`"),
            wait(warps, "__syncthreads"),
            [Arrow(warps, mailbox, "gradients, epoch i + 1", _DATA), Arrow(mailbox, column, "gradients of i", _DATA)],
            [Arrow(column, mailbox, "gradients, epoch i + 1", _DATA)],
            [Arrow(mailbox, warps, "ld.relaxed gradients", _DATA)],
            wait(warps, "GradientReceiver::receive,", "__syncthreads_or") + wait(column, "the same"),
            work(warps, "mma_recurrent: a part of", "W_hh^T d_gates to sums") + work(column, "the same for its row"),
            wait(warps, "__syncthreads"),
            work(warps, "publish_partial_sums"),
            [Arrow(warps, mailbox, "sums of step i, epoch i + 1", _DATA)],
            [Arrow(mailbox, row, "sums of its own units", _DATA)],
            wait(row, "SumReceiver::receive", "in its step i + 1"),
        ],
        spacing=220,
    )


def wavefront_forward() -> Diagram:
    load, mma, pointwise, signal, above = range(5)
    roles = [
        Lifeline("3 load warps", "block r of layer l", "a buffer each"),
        Lifeline("MMA warps", "block r of layer l", "consume x and h"),
        Lifeline("pointwise warps", "block r of layer l", "as in a cluster"),
        Lifeline("signal warp", "block r of layer l", "sets the step flag"),
        Lifeline("load warps", "layer l + 1", "poll BLOCKS flags"),
    ]
    return Diagram(
        "wavefront_forward.cu: step t of a tile; n is the load warp, b the buffer of the sums",
        roles,
        [
            wait(load, "ld_acquire step flags", "of layer l - 1 > t"),
            wait(load, "sync InputsEmpty[n]", "from its second on") + work(pointwise, "GateOperands"),
            work(load, "load_inputs: x_t, or", "the output below"),
            [Arrow(load, mma, "InputsFull[n]", _FULL)],
            work(mma, "mma_mainloop: W_ih x_t"),
            [Arrow(mma, load, "InputsEmpty[n]", _EMPTY)],
            wait(mma, "SumsEmpty[b]; mbarrier", "of h_t, as in a cluster"),
            work(mma, "mma_recurrent: W_hh h_t"),
            [Arrow(mma, pointwise, "SumsFull[b]", _FULL)],
            work(pointwise, "StepResult; broadcast h", "write output of step t") + work(mma, "next tile"),
            [Arrow(pointwise, signal, "OutputWritten", _FULL)],
            work(signal, "st_release", "flag = t + 1"),
            [Arrow(signal, above, "step flag t + 1", _FLAG)],
            work(above, "ld_acquire; load_inputs", "of step t"),
        ],
        spacing=190,
    )


def sparse_forward() -> Diagram:
    pointwise, receiver, mailbox, other_receiver, other_pointwise = range(5)
    roles = [
        Lifeline("pointwise threads", "block r", "multiply; gates"),
        Lifeline("receiver threads", "block r", "multiply; receive"),
        Lifeline("mailboxes", "global memory", "two a tile, by epoch"),
        Lifeline("receiver threads", "block r' of the group", "multiply; receive"),
        Lifeline("pointwise threads", "block r' of the group", "multiply; gates"),
    ]
    pointwises, receivers = (pointwise, other_pointwise), (receiver, other_receiver)
    pairs = ((receiver, pointwise), (other_receiver, other_pointwise))
    return Diagram(
        "sparse forward.cu: step t of the only tile of a group, without clusters",
        roles,
        [
            [Arrow(role, mailbox, "st.relaxed h_t, epoch t + 1", _DATA) for role in pointwises],
            wait(receivers, "receive_states polls", "for epoch t + 1") + storage(mailbox, "a flag in each packet"),
            [Arrow(mailbox, role, "ld.relaxed", _DATA) for role in receivers],
            work(receivers, "unpack_into states"),
            [Arrow(*pair, "__syncthreads", _FULL) for pair in pairs],
            work((*receivers, *pointwises), "NonZeros::multiply", "PartialSums::store"),
            [Arrow(*pair, "__syncthreads", _FULL) for pair in pairs],
            work(pointwises, "RowSums, StepResult", "h to `outgoing`") + wait(receivers, "sync Published", "no poll before it"),
            wait(pointwises, "sync StatesReady"),
            work(pointwises, "publish_states") + storage(mailbox, "h_(t-1) is overwritten"),
            [Arrow(role, mailbox, "st.relaxed h_(t+1), epoch t + 2", _DATA) for role in pointwises],
            [Arrow(after, before, "Published", Signal.PACE) for before, after in pairs],
            work(pointwises, "write; prefetch", "next inputs") + wait(receivers, "polls for epoch t + 2"),
        ],
        spacing=196,
    )


def scan_split() -> Diagram:
    threads, publisher, words, next_publisher, next_threads = range(5)
    roles = [
        Lifeline("all threads", "block of tile k", "a segment of steps each"),
        Lifeline("last segment's threads", "block of tile k", "publish the tile's map"),
        Lifeline("status words", "global memory", "of tiles and of groups"),
        Lifeline("last segment's threads", "block of tile k + 1", "publish the tile's map"),
        Lifeline("all threads", "block of tile k + 1", "a segment of steps each"),
    ]
    everyone = (threads, next_threads)
    return Diagram(
        "scan.cu with SPLIT: two tiles of the same channels, in blocks that run at once",
        roles,
        [
            wait(everyone, "cp_async_wait_group"),
            work(everyone, "task.steps: gates, maps;", "task.load of a later tile"),
            [Arrow(threads, publisher, "__syncthreads", _FULL), Arrow(next_threads, next_publisher, "__syncthreads", _FULL)],
            work((publisher, next_publisher), "publish_tile: fold the", "segments' maps"),
            [Arrow(publisher, words, "map of tile k", _DATA), Arrow(next_publisher, words, "map of tile k + 1", _DATA)],
            work(threads, "look_back: a share of", "what lies before tile k")
            + storage(words, "never 0 once valid")
            + wait(next_threads, "look_back: a share of", "what lies before k + 1"),
            [Arrow(words, next_threads, "groups, then tiles, k the last", _DATA)],
            wait(everyone, "__syncthreads"),
            work(everyone, "apply the maps before", "it; store_outputs"),
            work(everyone, "the gridDim.x-th job", "after this one"),
        ],
        spacing=200,
    )


def transposed() -> Diagram:
    host, below, above = range(3)
    roles = [
        Lifeline("StepLauncher.forward", "host", "captured in a CUDA graph"),
        Lifeline("layer 0", "the current stream", "cuBLAS and step_forward"),
        Lifeline("layer 1", "its own stream", "cuBLAS and step_forward"),
    ]
    return Diagram(
        "transposed_gpu: two layers in a wavefront, chunks of steps",
        roles,
        [
            work(host, "Streams.fork_join"),
            [Arrow(host, above, "wait_stream: what came before", _FLAG)],
            work(below, "chunk 0: for each step W_hh h by cuBLAS,", "then step_forward: gates, c, h"),
            [Arrow(below, above, "event: chunk 0 of layer 0 is done", _FLAG)],
            work(below, "chunk 1: the same") + work(above, "input_gemm: W_ih x of chunk 0,", "then its steps"),
            [Arrow(below, above, "event: chunk 1 of layer 0 is done", _FLAG)],
            work(below, "chunk 2: the same") + work(above, "input_gemm: W_ih x of chunk 1,", "then its steps"),
            [Arrow(above, host, "wait_stream: all streams are joined", _FLAG)],
            work(host, "output and final states"),
        ],
        spacing=310,
    )


def scan_cpu() -> Diagram:
    caller, thread, counter, other = range(4)
    roles = [
        Lifeline("caller", "Python", "Scan._run"),
        Lifeline("thread 0", "OpenMP pool of torch", "chunk_reduce, forward"),
        Lifeline("integers, states", "memory", "NEXT counts tasks"),
        Lifeline("thread 1", "OpenMP pool of torch", "chunk_reduce, forward"),
    ]
    threads = (thread, other)
    return Diagram(
        "scan_cpu: a scan cut in chunks of time; without chunks the second launch alone",
        roles,
        [
            work(caller, "launch forward_summary"),
            [Arrow(caller, counter, "GOMP_parallel with the integers' address", _FLAG)],
            [Arrow(counter, role, "fetch_add: a task", _DATA) for role in threads],
            work(threads, "a chunk, tile and sequence:", "its map of the initial state"),
            [Arrow(role, counter, "state, decay", _DATA) for role in threads],
            [Arrow(counter, caller, "GOMP_parallel has returned", _FLAG)],
            work(caller, "chunk after chunk: initial", "state = decay * before + state"),
            [Arrow(caller, counter, "launch forward", _FLAG)],
            [Arrow(counter, role, "fetch_add: a task", _DATA) for role in threads],
            work(threads, "prefetch, gates, recurrence,", "write; a fence at the end"),
            [Arrow(counter, caller, "GOMP_parallel has returned", _FLAG)],
        ],
        spacing=230,
    )


FIGURES = {
    "persistent_cluster_forward": cluster_forward,
    "persistent_grid_forward": grid_forward,
    "persistent_cluster_backward": cluster_backward,
    "persistent_grid_backward": grid_backward,
    "persistent_wavefront": wavefront_forward,
    "sparse_forward": sparse_forward,
    "scan_split": scan_split,
    "transposed": transposed,
    "scan_cpu": scan_cpu,
}
