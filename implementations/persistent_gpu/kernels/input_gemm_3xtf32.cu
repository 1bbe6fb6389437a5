// Maths: gates = x W_ih^T, the input product of all steps at once, in float32 by 3xTF32 (warp_mma.cuh).
// Layout: of Params (below), by field:
//   x [N, K], weight_ih [M, K] float32, read; N is T*B, M is G*H
//   gates [N, M] float32, written; may alias neither. None has gaps. Alignment: of x and weight_ih 16 bytes.
// Launch: blocks of 4 warps, two by two; a warp computes WARP_M_TILES times 16 gates of WARP_N_TILES times 8 rows of x. Blocks of
//   adjacent gates are adjacent. Shared bytes: GemmTile.shared_bytes (input_gemm/gemm_3xtf32.py).
// Cost: 3 N M K multiply-adds of the tensor cores; reads x once for each BLOCK_M gates, weight_ih once for each BLOCK_N rows of x.
// Limits: compute capability 8.0; K a multiple of 4; N, M, K below 2^30; offsets 64-bit. An infinite x gives infinite gates, an
//   infinite weight, or one above 3.4019e38, NaN: it has no small part.
// Order: 1. A stage is copied into one of STAGES buffers. Each thread waits for its own copies; the barrier after it makes all of
//      them visible. The same barrier shows that all threads have read the stage before, whose buffer is copied into next.
//   2. A thread adds K tiles in ascending order: bit-equal repeats.
#include "ecornn/common/ceil_div.cuh"
#include "ecornn/ptx/cp_async.cuh"
#include "ecornn/ptx/smem.cuh"
#include "warp_mma.cuh"

constexpr int GEMM_THREADS = 128, WARPS_PER_SIDE = 2, STAGES = 3, STAGE_K_TILES = 2;
constexpr int WARP_M = WARP_M_TILES * 16, WARP_N = WARP_N_TILES * 8;
constexpr int BLOCK_M = WARPS_PER_SIDE * WARP_M, BLOCK_N = WARPS_PER_SIDE * WARP_N;
constexpr int VECTORS = K_TILE / ELEMENTS_PER_VECTOR;  // 16-byte vectors of a row of a K tile
constexpr int ROWS_PER_COPY = GEMM_THREADS / VECTORS;  // that all threads copy at once
static_assert(BLOCK_M % ROWS_PER_COPY == 0 && BLOCK_N % ROWS_PER_COPY == 0, "GemmTile");

typedef long long index;

// A K tile of both matrices. A warp's reads of 16 bytes of 8 adjacent rows have no bank conflicts.
struct KTile {
    uint4 weight_ih[BLOCK_M][VECTORS], x[BLOCK_N][VECTORS];
};
struct SharedStorage {
    KTile stages[STAGES][STAGE_K_TILES];
};
static_assert(sizeof(SharedStorage) == SHARED_BYTES, "GemmTile.shared_bytes");

struct Params {
    const float *x, *weight_ih;
    float* gates;
    int rows, inputs, columns;  // N, K, M
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

// The block's first gate and row of x, the warp's first ones within the block, and the lane's (g, t) of mma.sync.
struct ThreadCoords {
    int first_gate, first_row, warp_gate, warp_row, g, t;
    __device__ explicit ThreadCoords(const Params& params) {
        const int gate_blocks = ceil_div(params.columns, BLOCK_M), block = blockIdx.x;
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        first_gate = block % gate_blocks * BLOCK_M, first_row = block / gate_blocks * BLOCK_N;
        warp_gate = warp % WARPS_PER_SIDE * WARP_M, warp_row = warp / WARPS_PER_SIDE * WARP_N;
        g = lane / 4, t = lane % 4;
    }
};

// Begins the thread's copies of a K tile's rows of a matrix [row_count, inputs], from its first-th row and k-th column on.
// Elements beyond the matrix are zeros.
template <int ROWS>
__device__ inline void copy_rows(uint4 (&to)[ROWS][VECTORS], const float* matrix, int inputs, int row_count, int first, int k) {
    const int local = threadIdx.x / VECTORS, vector = threadIdx.x % VECTORS;
    k += vector * ELEMENTS_PER_VECTOR;
    const float* from = matrix + (index)(first + local) * inputs + k;
#pragma unroll
    for (int i = 0; i < ROWS; i += ROWS_PER_COPY) {
        if (k < inputs && first + local + i < row_count) cp_async_16B(&to[local + i][vector], from + (index)i * inputs);
        else to[local + i][vector] = {};
    }
}

__device__ inline void copy_stage(KTile (&stage)[STAGE_K_TILES], const Params& params, const ThreadCoords& thread,
                                  int stage_index) {
#pragma unroll
    for (int i = 0; i < STAGE_K_TILES; i++) {
        const int k = (stage_index * STAGE_K_TILES + i) * K_TILE;
        copy_rows(stage[i].weight_ih, params.weight_ih, params.inputs, params.columns, thread.first_gate, k);
        copy_rows(stage[i].x, params.x, params.inputs, params.rows, thread.first_row, k);
    }
}

// Loads thread t's 16 bytes of a row of a K tile. IS_HALF: its 8 bytes of the row's first half, and zeros.
template <bool IS_HALF> __device__ inline uint4 load_vector(const uint4 (&row)[VECTORS], int t) {
    if (!IS_HALF) return row[t];
    const uint2 half = ((const uint2*)row)[t];
    return {half.x, half.y, 0, 0};
}

// Adds a times part(n), a part of the n-th fragment of x, to products[n]. Successive mma.sync are of different n: none waits for
// the accumulator of the one before.
template <bool IS_HALF, typename Part>
__device__ inline void mma_n_tiles(Accumulator (&products)[WARP_N_TILES], const AFragment& a, Part part) {
#pragma unroll
    for (int n = 0; n < WARP_N_TILES; n++)
        mma_m16n8(products[n].data, a.left.x, a.left.y, a.left.z, a.left.w, part(n).x, part(n).y);
#pragma unroll
    for (int n = 0; n < WARP_N_TILES && !IS_HALF; n++)
        mma_m16n8(products[n].data, a.right.x, a.right.y, a.right.z, a.right.w, part(n).z, part(n).w);
}

// Multiplies the warp's tile by a K tile, or by its first half, small parts first. The products are added to acc outside of the
// tensor cores, which do not round to nearest.
template <bool IS_HALF>
__device__ inline void mma_warp_k_tile(Accumulator (&acc)[WARP_M_TILES][WARP_N_TILES], const KTile& tile,
                                       const ThreadCoords& thread) {
    BFragment b[WARP_N_TILES];
#pragma unroll
    for (int n = 0; n < WARP_N_TILES; n++)
        b[n] = make_b_fragment(load_vector<IS_HALF>(tile.x[thread.warp_row + n * 8 + thread.g], thread.t));
#pragma unroll
    for (int m = 0; m < WARP_M_TILES; m++) {
        const int row = thread.warp_gate + m * 16 + thread.g;
        const uint4 upper = load_vector<IS_HALF>(tile.weight_ih[row], thread.t);
        const SplitAFragment a =
            split_a_fragment(make_a_fragment(upper, load_vector<IS_HALF>(tile.weight_ih[row + 8], thread.t)));
        Accumulator products[WARP_N_TILES] = {};
        mma_n_tiles<IS_HALF>(products, a.small, [&](int n) { return b[n].big; });
        mma_n_tiles<IS_HALF>(products, a.big, [&](int n) { return b[n].small; });
        mma_n_tiles<IS_HALF>(products, a.big, [&](int n) { return b[n].big; });
#pragma unroll
        for (int n = 0; n < WARP_N_TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[m][n].data[i] += products[n].data[i];
    }
}

__device__ inline void store(const Accumulator (&acc)[WARP_M_TILES][WARP_N_TILES], const Params& params,
                             const ThreadCoords& thread) {
    const int first_gate = thread.first_gate + thread.warp_gate + thread.g;
    const int first_row = thread.first_row + thread.warp_row + thread.t * 2;
    float* gates = params.gates + (index)first_row * params.columns + first_gate;
#pragma unroll
    for (int n = 0; n < WARP_N_TILES; n++)
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int m = 0; m < WARP_M_TILES * 2; m++)
                if (first_row + n * 8 + j < params.rows && first_gate + m * 8 < params.columns)
                    gates[(index)(n * 8 + j) * params.columns + m * 8] = acc[m / 2][n].data[m % 2 * 2 + j];
}

extern "C" __global__ void __launch_bounds__(GEMM_THREADS) input_gemm_3xtf32(const __grid_constant__ Params params) {
    SharedStorage& shared = *(SharedStorage*)dynamic_smem();
    const ThreadCoords thread(params);
    const int half_k_tiles = ceil_div(params.inputs, K_TILE / 2), stages = ceil_div(half_k_tiles, 2 * STAGE_K_TILES);
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < stages) copy_stage(shared.stages[i], params, thread, i);
        cp_async_commit_group();
    }
    Accumulator acc[WARP_M_TILES][WARP_N_TILES] = {};
#pragma unroll 1
    for (int stage = 0; stage < stages; stage++) {
        cp_async_wait_group<STAGES - 2>();
        __syncthreads();
        const int next = stage + STAGES - 1;
        if (next < stages) copy_stage(shared.stages[next % STAGES], params, thread, next);
        cp_async_commit_group();
        const KTile(&tiles)[STAGE_K_TILES] = shared.stages[stage % STAGES];
        const int left = half_k_tiles - stage * 2 * STAGE_K_TILES;
        if (left >= 2 * STAGE_K_TILES) {
#pragma unroll
            for (int i = 0; i < STAGE_K_TILES; i++) mma_warp_k_tile<false>(acc, tiles[i], thread);
        } else {
#pragma unroll 1
            for (int i = 0; i < left / 2; i++) mma_warp_k_tile<false>(acc, tiles[i], thread);
            if (left % 2) mma_warp_k_tile<true>(acc, tiles[left / 2], thread);
        }
    }
    store(acc, params, thread);
}
