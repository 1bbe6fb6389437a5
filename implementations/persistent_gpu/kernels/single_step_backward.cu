// Maths: the backward pass where T is 1, CELL: gradients of the gates, by what the forward pass saved, sums of these over all
//   sequences for the biases, and of the initial states what does not pass through W_hh. Products follow (backward.py).
// Layout: of Params (below), by field:
//   saved_gates [B, 4*H] scalar_t, read by LSTM and GRU, saved_cells [B, H] float, read by LSTM: as the forward pass wrote them
//   output [B, H] scalar_t, read by RNN: sequence b at b * output_sequence. d_output [B, H] scalar_t, read: at
//   b * d_output_sequence. h0, c0 [B, H] scalar_t, read by GRU, LSTM, null for zeros. d_h_n, d_c_n [B, H] scalar_t, read, null
//   for zeros
//   d_gates [B, G*H] scalar_t, written. d_recurrent [B, G*H] scalar_t, written by GRU: with respect to W_hh h, null for none
//   d_h0 [B, H] scalar_t, written by GRU: what passes by z. d_c0 [B, H] scalar_t, written by LSTM. Both null for none
//   d_bias_ih, d_bias_hh [G*H] scalar_t, written, null for none. d_weight_hh [G*H, H] scalar_t, written: zeros, as without h0
//   all elements are; null for none
//   No two may alias. Alignment: d_weight_hh 16 bytes; else of the element.
// Launch: a block for each UNITS units, all sequences; others write zeros alone. Half a warp has the units of a sequence.
//   Shared bytes: SingleStepBackwardConfig.launch (single_step.py).
// Cost: reads B S H values, S being 7 (LSTM, c in float counting twice), 6 (GRU), 2 (RNN), writes B G H, of GRU twice with h0,
//   and G H H zeros.
// Limits: compute capability 8.0; B, G * H below 2^30; offsets 64-bit.
// Order: 1. A thread adds its sequences from the first on. Then two of a warp are added, then, after a barrier, all warps' sums
//   in one order, in float32: bit-equal repeats.
#include "ecornn/ptx/smem.cuh"
#include "ecornn/rnn/rnn_cell.cuh"

constexpr int UNITS = 16, MAX_THREADS = 1024;
constexpr int SUMS = CELL == GRU ? 4 : GATES;  // of a unit; GRU's last is of W_hn h + b_hn

typedef long long index;

struct SharedStorage {
    float sums[MAX_THREADS / 32][SUMS][UNITS];
};
static_assert(sizeof(SharedStorage) <= SHARED_BYTES, "SingleStepBackwardConfig.launch");

struct Params {
    const scalar_t* saved_gates;
    const float* saved_cells;
    const scalar_t *output, *h0, *c0, *d_output, *d_h_n, *d_c_n;
    scalar_t *d_gates, *d_recurrent, *d_h0, *d_c0, *d_bias_ih, *d_bias_hh, *d_weight_hh;
    index output_sequence, d_output_sequence;
    int batch, blocks;
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

__device__ inline float at_or_zero(const scalar_t* states, index place) { return states ? widen(states[place]) : 0; }

__device__ inline LocalGradients local_gradients(const Params& params, int b, int unit) {
    const index place = (index)b * HIDDEN + unit;
    float saved_gates[4] = {};
#pragma unroll
    for (int gate = 0; GATES > 1 && gate < 4; gate++)
        saved_gates[gate] = widen(params.saved_gates[((index)b * 4 + gate) * HIDDEN + unit]);
    const float h = GATES == 1     ? widen(params.output[b * params.output_sequence + unit])
                    : CELL == GRU ? at_or_zero(params.h0, place)
                                  : 0;
    if (CELL != LSTM) return cell_local_gradients(saved_gates, h, 0, 0);
    return cell_local_gradients(saved_gates, 0, params.saved_cells[place], at_or_zero(params.c0, place));
}

// Stores the gradients of a sequence's unit, and adds those of its gates to the sums.
__device__ inline void unit_backward(float (&sums)[SUMS], const Params& params, int b, int unit) {
    const index place = (index)b * HIDDEN + unit;
    const LocalGradients local = local_gradients(params, b, unit);
    const float d_h = widen(params.d_output[b * params.d_output_sequence + unit]) + at_or_zero(params.d_h_n, place);
    const float d_c = CELL == LSTM ? fmaf(d_h, local.dc_dh, at_or_zero(params.d_c_n, place)) : 0;
    const bool is_some = CELL != RNN_RELU || local.gates[0] > 0;
#pragma unroll
    for (int gate = 0; gate < GATES; gate++) {
        const index row = ((index)b * GATES + gate) * HIDDEN + unit;
        const float gradient = is_some ? (CELL == LSTM && gate != LSTM_O ? d_c : d_h) * local.gates[gate] : 0;
        const float recurrent = CELL == GRU && gate == GRU_N ? d_h * local.recurrent : gradient;
        sums[gate] += gradient;
        if (CELL == GRU && gate == GRU_N) sums[SUMS - 1] += recurrent;
        params.d_gates[row] = narrow(gradient);
        if (CELL == GRU && params.d_recurrent) params.d_recurrent[row] = narrow(recurrent);
    }
    if (CELL == GRU && params.d_h0) params.d_h0[place] = narrow(d_h * local.h);
    if (CELL == LSTM && params.d_c0) params.d_c0[place] = narrow(d_c * local.c);
}

// Adds all warps' sums of the block's units, and stores the biases' gradients.
__device__ inline void store_bias_gradients(const SharedStorage& shared, const Params& params) {
    for (int i = threadIdx.x; i < SUMS * UNITS; i += blockDim.x) {
        const int number = i / UNITS, unit = blockIdx.x * UNITS + i % UNITS;
        if (unit >= HIDDEN) continue;
        float sum = 0;
#pragma unroll 8
        for (int warp = 0; warp < (int)blockDim.x / 32; warp++) sum += shared.sums[warp][number][i % UNITS];
        const bool is_recurrent = number == GATES, is_shared = CELL != GRU || number < GRU_N;
        const int row = (is_recurrent ? GRU_N : number) * HIDDEN + unit;
        if (params.d_bias_ih && !is_recurrent) params.d_bias_ih[row] = narrow(sum);
        if (params.d_bias_hh && (is_recurrent || is_shared)) params.d_bias_hh[row] = narrow(sum);
    }
}

// Stores the block's share of the zeros, 16 bytes at once but for the last elements.
__device__ inline void store_zeros(const Params& params) {
    constexpr index ELEMENTS = (index)GATES * HIDDEN * HIDDEN, VECTORS = ELEMENTS / ELEMENTS_PER_VECTOR;
    const index first = (index)blockIdx.x * blockDim.x + threadIdx.x, stride = (index)params.blocks * blockDim.x;
    for (index i = first; i < VECTORS; i += stride) ((uint4*)params.d_weight_hh)[i] = uint4{};
    for (index i = VECTORS * ELEMENTS_PER_VECTOR + first; i < ELEMENTS; i += stride) params.d_weight_hh[i] = narrow(0.0f);
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1) persistent_once_backward(const __grid_constant__ Params params) {
    SharedStorage& shared = *(SharedStorage*)dynamic_smem();
    const int thread = threadIdx.x, unit = blockIdx.x * UNITS + thread % UNITS;
    float sums[SUMS] = {};
    for (int b = thread / UNITS; unit < HIDDEN && b < params.batch; b += blockDim.x / UNITS) unit_backward(sums, params, b, unit);
    if (params.d_weight_hh) store_zeros(params);
    if (!params.d_bias_ih && !params.d_bias_hh) return;
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        const float sum = sums[i] + __shfl_xor_sync(0xffffffff, sums[i], UNITS);
        if (thread % 32 < UNITS) shared.sums[thread / 32][i][thread % UNITS] = sum;
    }
    __syncthreads();
    store_bias_gradients(shared, params);
}
