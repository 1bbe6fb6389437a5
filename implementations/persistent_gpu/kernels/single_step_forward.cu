// Maths: one step of LSTM, GRU (torch.nn's gate order) or RNN, CELL, of few sequences, its input product included: where T is
//   1, to read the weights is all the work, and each of them is read once, by the warp that needs it.
// Layout: of Params (below), by field:
//   x [B, I], weight_ih [G*H, I], weight_hh [G*H, H] scalar_t, read
//   bias_ih, bias_hh [G*H] scalar_t, read, null for none. h0, c0 [B, H] scalar_t, read, null for zeros, whose product is left
//   out then. output [B, H] scalar_t, written, sequence b at b * output_sequence
//   h_n, c_n [B, H] scalar_t, written, c_n by LSTM only
//   saved_gates [B, 4*H] scalar_t, saved_cells [B, H] float, written with SAVE_GATES for the backward pass: LSTM i f g o, GRU
//   r z n and W_hn h + b_hn; c of LSTM
//   No two may alias. Alignment: of x, weight_ih, weight_hh and h0 LOAD_BYTES bytes; else of the element.
// Launch: BLOCKS blocks for each 8 sequences, each of UNITS hidden units. All its 8 warps multiply the rows of these units, a
//   unit's gates adjacent, each by its own K partition. Shared bytes: SingleStepConfig.launch (single_step.py).
// Cost: reads G H (I + H) values for each 8 sequences, G H I without h0; 2 B G H (I + H) operations.
// Limits: compute capability 8.0; G * UNITS at most 64; B, G * H, I below 2^30; offsets 64-bit.
// Order: 1. Partial sums of all warps are in shared memory, and are added after a barrier, in one order: bit-equal repeats.
#include "ecornn/common/ceil_div.cuh"
#include "ecornn/ptx/smem.cuh"
#include "ecornn/rnn/rnn_cell.cuh"
#include "skinny_gemm.cuh"

constexpr int M_TILES_PER_WARP = ceil_div(GATES * UNITS, 16);
constexpr int K_TILES_PER_LOAD = M_TILES_PER_WARP > 8 ? 1 : 8 / M_TILES_PER_WARP;  // whose weights a thread loads at once

typedef long long index;

struct SharedStorage {
    WarpPartials<M_TILES_PER_WARP, 1> sums[2][WARPS];  // of inputs and of states, by rows and sequences
};
static_assert(sizeof(SharedStorage) <= SHARED_BYTES, "SingleStepConfig.launch");

struct ThreadCoords {
    int warp, lane, first_unit, first_sequence, batch;
    __device__ int sequence() const { return first_sequence + lane / 4; }  // of its columns
};

// Row r of this block's product, of weights of SIZE columns.
template <int SIZE> __device__ inline MatrixRow weight_row_ptr(const scalar_t* weight, const ThreadCoords& thread, int r) {
    const int unit = thread.first_unit + r / GATES;
    return {weight + ((index)(r % GATES) * HIDDEN + unit) * SIZE, r < GATES * UNITS && unit < HIDDEN};
}

// Multiplies the block's rows of weight [G*H, SIZE] by 8 rows [SIZE] from `columns` on, of the warp's K partition.
template <int SIZE>
__device__ inline void multiply_weights(WarpPartials<M_TILES_PER_WARP, 1>& partials, const scalar_t* weight,
                                        const scalar_t* columns, const ThreadCoords& thread) {
    const MatrixRow column = {columns + (index)thread.sequence() * SIZE, thread.sequence() < thread.batch};
    skinny_mma<SIZE, K_TILES_PER_LOAD>(
        partials, thread.warp, thread.lane, [&](int r) { return weight_row_ptr<SIZE>(weight, thread, r); },
        [&](int) { return column; });
}

__device__ inline float bias_at(const scalar_t* bias, int gate, int unit) {
    return bias ? widen(bias[gate * HIDDEN + unit]) : 0;
}

struct Params {
    const scalar_t *x, *weight_ih, *weight_hh, *bias_ih, *bias_hh, *h0, *c0;
    scalar_t *output, *h_n, *c_n, *saved_gates;
    float* saved_cells;
    index output_sequence;
    int batch;
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

extern "C" __global__ void __launch_bounds__(THREADS, 1) persistent_once(const __grid_constant__ Params params) {
    SharedStorage& shared = *(SharedStorage*)dynamic_smem();
    const int thread_id = threadIdx.x, block = blockIdx.x;
    const ThreadCoords thread = {thread_id / 32, thread_id % 32, block % BLOCKS * UNITS, block / BLOCKS * 8, params.batch};
    multiply_weights<INPUTS>(shared.sums[0][thread.warp], params.weight_ih, params.x, thread);
    if (params.h0) multiply_weights<HIDDEN>(shared.sums[1][thread.warp], params.weight_hh, params.h0, thread);
    __syncthreads();
    for (int i = thread_id; i < UNITS * 8; i += THREADS) {
        const int local = i % UNITS, column = i / UNITS, unit = thread.first_unit + local, b = thread.first_sequence + column;
        if (unit >= HIDDEN || b >= params.batch) continue;
        float of_x[GATES], recurrent[GATES] = {}, saved_gates[4];
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) {
            const int row = local * GATES + gate;
            const bool is_separate = CELL == GRU && gate == GRU_N;
            of_x[gate] = reduce_partials(shared.sums[0], row, column) + bias_at(params.bias_ih, gate, unit);
            if (!is_separate) of_x[gate] += bias_at(params.bias_hh, gate, unit);
            if (params.h0) recurrent[gate] = reduce_partials(shared.sums[1], row, column);
        }
        const index place = (index)b * HIDDEN + unit;
        const CellState state_before = {params.h0 ? widen(params.h0[place]) : 0, params.c0 ? widen(params.c0[place]) : 0};
        const CellState state =
            cell_forward(state_before, of_x, recurrent, CELL == GRU ? bias_at(params.bias_hh, GRU_N, unit) : 0, saved_gates);
        params.output[b * params.output_sequence + unit] = params.h_n[place] = narrow(state.h);
        if (CELL == LSTM) params.c_n[place] = narrow(state.c);
        if (!SAVE_GATES || GATES == 1) continue;
#pragma unroll
        for (int gate = 0; gate < 4; gate++) params.saved_gates[((index)b * 4 + gate) * HIDDEN + unit] = narrow(saved_gates[gate]);
        if (CELL == LSTM) params.saved_cells[place] = state.c;
    }
}
