"""Diagrams of sparse_persistent_gpu, scan_gpu, transposed_gpu and scan_cpu."""

from __future__ import annotations

from pytest_ecornn.suites.figures.sequence_diagram import Arrow, Diagram, Lifeline, Signal, storage, wait, work

_FULL, _DATA, _FLAG = Signal.FULL, Signal.DATA, Signal.FLAG


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


FIGURES = {"sparse_forward": sparse_forward, "scan_split": scan_split, "transposed": transposed, "scan_cpu": scan_cpu}
