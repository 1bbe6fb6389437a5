// Maths: the gradients of both biases of a layer in D directions, sums over all steps and sequences: of bias_ih of d_gates, of
//   bias_hh the same, but of GRU's last H of d_recurrent.
// Layout: of Params (below), by field:
//   d_gates [D, rows, C] scalar_t, d_recurrent [D, rows, H] scalar_t, read, the latter null but for GRU
//   d_bias_ih, d_bias_hh [D, C] scalar_t, written
//   No two may alias. Alignment: 16 bytes where C and H are multiples of 16 bytes, else of the element.
// Launch: direction by direction BLOCKS blocks, a cluster, for each COLUMNS columns of d_gates and after them of d_recurrent. A
//   block adds every BLOCKS-th group of ROWS rows, a thread VALUES adjacent columns of one row of each. Shared bytes:
//   shared_bytes of bias_gradients.py.
// Cost: reads D * rows * (C + H of GRU) values once, writes 2 D * C; as many additions.
// Limits: compute capability 9.0; rows, C and H below 2^30; offsets 64-bit.
// Order: 1. A thread adds its rows from the first on, then a block its threads' sums, then block 0 those of all blocks, each in
//   one order, in float32: bit-equal repeats.
//   2. Block 0 reads the sums of others after a cluster_sync; before the next one none of them ends.
#include "ecornn/common/ceil_div.cuh"
#include "ecornn/common/cluster_sum.cuh"
#include "ecornn/common/element_vector.cuh"

constexpr int THREADS = 256, LANES = 8;  // threads of a row
constexpr int ROWS = THREADS / LANES, COLUMNS = LANES * VALUES;

typedef long long index;
typedef ElementVector<VALUES> Vector;

struct SharedStorage {
    float thread_sums[ROWS][COLUMNS], block_sums[COLUMNS];
};
static_assert(sizeof(SharedStorage) == SHARED_BYTES, "shared_bytes of bias_gradients.py");

struct Params {
    const scalar_t *d_gates, *d_recurrent;
    scalar_t *d_bias_ih, *d_bias_hh;
    int rows, columns, hidden;
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

// Adds rows of a matrix of `width` columns, of which this thread has VALUES from `column` on.
__device__ inline void add_rows(float (&sums)[VALUES], const scalar_t* matrix, int rows, int width, int column) {
    const int first = block_rank_in_cluster() * ROWS + threadIdx.x / LANES;
#pragma unroll 4
    for (int row = first; row < rows; row += BLOCKS * ROWS) {
        const Vector vector = *(const Vector*)(matrix + (index)row * width + column);
#pragma unroll
        for (int i = 0; i < VALUES; i++) sums[i] += widen(vector.values[i]);
    }
}

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS)
    bias_gradients(const __grid_constant__ Params params) {
    SharedStorage& shared = *(SharedStorage*)dynamic_smem();
    const int clusters = ceil_div(params.columns + (params.d_recurrent ? params.hidden : 0), COLUMNS);  // of a direction
    const int cluster = blockIdx.x / BLOCKS, direction = cluster / clusters;
    const int first_column = cluster % clusters * COLUMNS, lane = threadIdx.x % LANES;
    const scalar_t* d_gates = params.d_gates + (index)direction * params.rows * params.columns;
    scalar_t *d_bias_ih = params.d_bias_ih + direction * params.columns, *d_bias_hh = params.d_bias_hh + direction * params.columns;
    const int column = first_column + lane * VALUES, of_recurrent = column - params.columns;
    float sums[VALUES] = {};
    if (of_recurrent < 0)
        add_rows(sums, d_gates, params.rows, params.columns, column);
    else if (params.d_recurrent && of_recurrent < params.hidden)
        add_rows(sums, params.d_recurrent + (index)direction * params.rows * params.hidden, params.rows, params.hidden, of_recurrent);
#pragma unroll
    for (int i = 0; i < VALUES; i++) shared.thread_sums[threadIdx.x / LANES][lane * VALUES + i] = sums[i];
    __syncthreads();
    const int own = threadIdx.x;  // of the block's columns
    if (own < COLUMNS) {
        float sum = 0;
        for (int row = 0; row < ROWS; row++) sum += shared.thread_sums[row][own];
        shared.block_sums[own] = sum;
    }
    cluster_sync();
    const int total = first_column + own, end = params.columns + (params.d_recurrent ? params.hidden : 0);
    if (block_rank_in_cluster() == 0 && own < COLUMNS && total < end) {
        const float sum = cluster_sum<BLOCKS>(&shared.block_sums[own]);
        const bool is_last_gate = params.d_recurrent && total >= params.columns - params.hidden;
        if (total < params.columns) d_bias_ih[total] = narrow(sum);
        if (total >= params.columns) d_bias_hh[total - params.hidden] = narrow(sum);
        else if (!is_last_gate) d_bias_hh[total] = narrow(sum);
    }
    cluster_sync();
}
