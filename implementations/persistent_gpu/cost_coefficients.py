"""Coefficients of persistent_gpu's cost model, measured on one NVIDIA H200.

`python -m pytest_ecornn.suites.forms_gpu` measures steps by several forms and writes them beside what the model says of each.
The numbers were fitted to such runs by hand; no script repeats the fit, and the runs are not kept. What is known of the chip
and of the best forms stands in the tables of docs/notes/persistent_gpu.md.

Names end in their units: _us is microseconds, _clocks clocks of a multiprocessor. A factor or loss multiplies a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class BlockCoefficients:
    """A step of blocks with all weights, in one direction. Clocks are those of a sub-partition, for each of its warps.

    Fitted on an H100, to the forms and sizes of docs/notes/persistent_gpu.md, "Small layers".

    step_us: a step that nothing is issued in. sequence_us: a block's sequence beyond the first. fma_clocks: a multiply-add.
    read_clocks: a value of the operand, and a read of several. shuffle_clocks: a shuffle. smem_weight_clocks: a weight from
    shared memory. smem_weight_us: each step of a form with such weights, for each of a thread: its launch starts 0.1 us later,
    counted over 40 steps. pointwise_clocks: what is not the product, of a sequence and cell with gates.
    """

    step_us: float
    sequence_us: float
    fma_clocks: float
    read_clocks: float
    shuffle_clocks: float
    smem_weight_clocks: float
    smem_weight_us: float
    pointwise_clocks: float


FORWARD = BlockCoefficients(
    step_us=0.14,
    sequence_us=0.11,
    fma_clocks=1.16,
    read_clocks=0.2,
    shuffle_clocks=0.0,
    smem_weight_clocks=2.5,
    smem_weight_us=0.0025,
    pointwise_clocks=64,
)
BACKWARD = BlockCoefficients(
    step_us=0.125,
    sequence_us=0.07,
    fma_clocks=0.52,
    read_clocks=2.05,
    shuffle_clocks=7.5,
    smem_weight_clocks=2.4,
    smem_weight_us=0.0025,
    pointwise_clocks=69,
)


@dataclass(frozen=True, kw_only=True)
class ChipRates:
    """Rates of a multiprocessor, of which mma and splitting count for one of its four sub-partitions.

    Source of the two of mma: docs/notes/persistent_gpu.md, "What the chip gives". The others are fitted.

    us_per_clock: the time of a clock. mma_clocks: an mma, of 16 rows, 8 columns and 32 bytes of K. dependent_mma_clocks: from
    an mma to the next one of its chain. split_fragment_clocks, split_k_tile_clocks: splitting float32 for 3xTF32, of a warp's
    fragment of weights, and of the columns that a K tile multiplies. smem_bytes_per_clock, l2_bytes_per_clock: what shared
    memory and the L2 cache give a multiprocessor.
    """

    us_per_clock: float
    mma_clocks: float
    dependent_mma_clocks: float
    split_fragment_clocks: float
    split_k_tile_clocks: float
    smem_bytes_per_clock: float
    l2_bytes_per_clock: float


@dataclass(frozen=True, kw_only=True)
class ProductCoefficients:
    """Costs of a tile's product beyond `ChipRates`.

    issue_loss: the factor that warps lose beside mma and reads of shared memory. one_tile_grid_read_loss: the same of reads, of
    one tile's product forward in a grid. unspilled_m_tiles: M tiles of split float32 whose sums have registers forward.
    spilled_m_tile_clocks: each further M tile.
    """

    issue_loss: float
    one_tile_grid_read_loss: float
    unspilled_m_tiles: int
    spilled_m_tile_clocks: float


@dataclass(frozen=True, kw_only=True)
class ClusterCoefficients:
    """A step in a cluster, beside its product.

    state_us: a thread's state. k_partition_us: each K partition's sums. exchange_us: until published states arrive.
    block_us: each block that publishes. line_us: each 128 bytes that a block publishes.
    multi_tile_slowdown: the factor by which tiles that take turns delay each other forward. split_multi_tile_us: each tile
    then in addition, of split float32 in cells with gates, up to split_multi_tile_hidden, as far as an H100 was measured.
    Backward with several tiles: backward_tile_us: each tile. backward_product_factor: a tile's product, unless float32 is
    split.
    """

    state_us: float
    k_partition_us: float
    exchange_us: float
    block_us: float
    line_us: float
    multi_tile_slowdown: float
    split_multi_tile_us: float
    split_multi_tile_hidden: int
    backward_tile_us: float
    backward_product_factor: float


@dataclass(frozen=True, kw_only=True)
class GridCoefficients:
    """A tile's step forward in a grid without load warps.

    tile_us: a tile. product_factor: its product. state_us: a thread's state. packet_us: each packet that a thread reads.
    straddling_packet_us: in addition where a packet has values of two sequences. round_us: each round beyond a thread's first
    packets in flight. m_tile_sums_us: a warp's sums of an M tile, beyond the first `free_m_tiles`.
    """

    tile_us: float
    product_factor: float
    state_us: float
    packet_us: float
    straddling_packet_us: float
    round_us: float
    m_tile_sums_us: float
    free_m_tiles: int


@dataclass(frozen=True, kw_only=True)
class LoadWarpCoefficients:
    """A tile's step forward in a grid with load warps, of so many load threads.

    tile_us: a tile. product_factor: its product. packet_us: each packet that a load thread reads. straddling_packet_us: in
    addition where a packet has values of two sequences. m_tile_sums_us: a warp's sums of an M tile.
    """

    tile_us: float
    product_factor: float
    packet_us: float
    straddling_packet_us: float
    m_tile_sums_us: float


@dataclass(frozen=True, kw_only=True)
class LoadWarpGridCoefficients:
    """Steps forward in a grid with load warps.

    one_tile: of one tile, by the number of load threads and the bytes of an element. several_tiles: of several. state_us: a
    thread's state beyond the first. round_us: each round beyond a load thread's first packets in flight.
    """

    one_tile: Mapping[tuple[int, int], LoadWarpCoefficients]
    several_tiles: LoadWarpCoefficients
    state_us: float
    round_us: float


@dataclass(frozen=True, kw_only=True)
class GridBackwardCoefficients:
    """A step backward in a grid.

    step_us: a step. tile_us: a tile. product_factor: a tile's product. gradient_packet_us, sum_packet_us: each packet of
    gradients and of sums that a thread reads. straddling_us: in addition, of a tile, where packed packets have values of two
    sequences.
    """

    step_us: float
    tile_us: float
    product_factor: float
    gradient_packet_us: float
    sum_packet_us: float
    straddling_us: float


@dataclass(frozen=True, kw_only=True)
class NTiledCoefficients:
    """A step forward in a grid of several N tiles as one; split_: of split float32.

    step_us, split_step_us: a step beside its product. state_us, split_state_us: a thread's state beyond the first, of an N
    tile. l2_read_factor, split_l2_read_factor: packets that a block reads. m_tile_sums_us: the sums of an M tile by an N tile.
    barrier_us: one more barrier, where sums have one buffer. product_factor, smem_factor: the mma and the weights from shared
    memory, whose times add up. split_product_factor, splitting_factor: the mma and the splitting of split float32, likewise.
    presplit_product_factor, presplit_k_tile_clocks: the mma where some fragments are split once for all steps, and each K tile
    beside them.
    """

    step_us: float
    split_step_us: float
    state_us: float
    split_state_us: float
    l2_read_factor: float
    split_l2_read_factor: float
    m_tile_sums_us: float
    barrier_us: float
    product_factor: float
    smem_factor: float
    split_product_factor: float
    splitting_factor: float
    presplit_product_factor: float
    presplit_k_tile_clocks: float


@dataclass(frozen=True, kw_only=True)
class WavefrontCoefficients:
    """Layers in a wavefront, and one on its own.

    launch_us: a launch, until its first step and after its last. input_gemm_us: a layer's input product, at least.
    layer_lag_us: from a layer's step to the same step of the layer above. step_slowdown: the factor of a step beside load
    warps and a warp that signals.
    """

    launch_us: float
    input_gemm_us: float
    layer_lag_us: float
    step_slowdown: float


@dataclass(frozen=True, kw_only=True)
class CostCoefficients:
    """All coefficients of a chip."""

    chip: ChipRates
    product: ProductCoefficients
    cluster: ClusterCoefficients
    block: BlockCoefficients
    block_backward: BlockCoefficients
    grid: GridCoefficients
    load_warp_grid: LoadWarpGridCoefficients
    grid_backward: GridBackwardCoefficients
    n_tiled: NTiledCoefficients
    wavefront: WavefrontCoefficients


H200 = CostCoefficients(
    chip=ChipRates(
        us_per_clock=1 / 1700,
        mma_clocks=6.1,
        dependent_mma_clocks=24,
        split_fragment_clocks=75,
        split_k_tile_clocks=28,
        smem_bytes_per_clock=128,
        l2_bytes_per_clock=36,
    ),
    product=ProductCoefficients(issue_loss=1.5, one_tile_grid_read_loss=1.1, unspilled_m_tiles=4, spilled_m_tile_clocks=200),
    cluster=ClusterCoefficients(
        state_us=0.22,
        k_partition_us=0.045,
        exchange_us=0.1,
        block_us=0.006,
        line_us=0.0055,
        multi_tile_slowdown=1.2,
        split_multi_tile_us=0.2,
        split_multi_tile_hidden=128,
        backward_tile_us=0.6,
        backward_product_factor=1.4,
    ),
    block=FORWARD,
    block_backward=BACKWARD,
    grid=GridCoefficients(
        tile_us=0.35,
        product_factor=0.89,
        state_us=0.71,
        packet_us=0.075,
        straddling_packet_us=0.087,
        round_us=1.2,
        m_tile_sums_us=0.055,
        free_m_tiles=3,
    ),
    load_warp_grid=LoadWarpGridCoefficients(
        one_tile={
            (128, 2): LoadWarpCoefficients(
                tile_us=0.82, product_factor=0.85, packet_us=0.022, straddling_packet_us=0.014, m_tile_sums_us=0.1
            ),
            (256, 2): LoadWarpCoefficients(
                tile_us=0.8, product_factor=0.76, packet_us=0.07, straddling_packet_us=0.037, m_tile_sums_us=0.045
            ),
            (256, 4): LoadWarpCoefficients(
                tile_us=1.13, product_factor=0.6, packet_us=0.146, straddling_packet_us=0.054, m_tile_sums_us=0.023
            ),
        },
        several_tiles=LoadWarpCoefficients(
            tile_us=0.74, product_factor=1.16, packet_us=0.035, straddling_packet_us=0.0, m_tile_sums_us=0.0
        ),
        state_us=0.4,
        round_us=4.5,
    ),
    grid_backward=GridBackwardCoefficients(
        step_us=0.61, tile_us=1.08, product_factor=0.73, gradient_packet_us=0.18, sum_packet_us=0.25, straddling_us=0.25
    ),
    n_tiled=NTiledCoefficients(
        step_us=1.2,
        split_step_us=1.15,
        state_us=0.1,
        split_state_us=0.3,
        l2_read_factor=0.8,
        split_l2_read_factor=0.5,
        m_tile_sums_us=0.046,
        barrier_us=0.05,
        product_factor=1.35,
        smem_factor=0.45,
        split_product_factor=0.8,
        splitting_factor=0.63,
        presplit_product_factor=1.1,
        presplit_k_tile_clocks=160,
    ),
    wavefront=WavefrontCoefficients(launch_us=6.0, input_gemm_us=5.0, layer_lag_us=3.0, step_slowdown=1.25),
)


@dataclass(frozen=True, kw_only=True)
class WgmmaCoefficients:
    """The time of each role in a pass by wgmma, of which the longest counts, and of what all passes take.

    They are fitted to 75 steps forward and 24 training steps by such forms on an H100. Those of 16 bits backward and the
    factors of the model are fitted to 29 passes beside other forms. Source: docs/notes/persistent_gpu.md.

    wgmma_clocks: a multiprocessor's, of 64 rows, 8 columns and 32 bytes of K. least_wgmma_clocks: of any number of columns.
    chunk_us: to load a chunk of each partition, over the stages. read_us: in addition each KiB that a block loads. pass_us:
    each pass. exchange_us: from a pass to its next step, beside the pass. tile_us: of the pointwise warps, a tile. state_us:
    each state of a thread in it. gate_us: backward each gate of a state. source_us: each source of its sums. block_chunk_us:
    each chunk that a block loads in a step, though other roles take longer.
    """

    wgmma_clocks: float = 7.4
    least_wgmma_clocks: float = 23
    chunk_us: float = 0.656
    read_us: float = 0.009
    pass_us: float
    exchange_us: float
    tile_us: float
    state_us: float = 0
    gate_us: float = 0
    source_us: float = 0
    block_chunk_us: float = 0


WGMMA_FORWARD = WgmmaCoefficients(pass_us=0.95, exchange_us=3.4, tile_us=0.286, state_us=0.109)
WGMMA_BACKWARD = WgmmaCoefficients(pass_us=0.63, exchange_us=3.4, tile_us=0.644, gate_us=0.287, source_us=0.0057)
WGMMA_BACKWARD_16_BITS = replace(WGMMA_BACKWARD, source_us=0.012, block_chunk_us=0.03)
