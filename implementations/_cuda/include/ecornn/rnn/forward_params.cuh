// The parameters that all forward kernels of persistent_gpu and sparse_persistent_gpu have in common.
#pragma once
#include "ecornn/common/dtypes.cuh"
#include "ecornn/rnn/lengths.cuh"

typedef long long index;

// Parameters of every forward kernel, to which it adds its own. Null: biases for none, h0, c0 for zeros, lengths for all steps.
struct ForwardParams {
    const scalar_t* gates;
    index gates_step, gates_sequence;
    const scalar_t *bias_ih, *bias_hh, *h0, *c0;
    scalar_t* output;
    index output_step, output_sequence;
    scalar_t *h_n, *c_n;
    const length* lengths;
    scalar_t* saved_gates;
    float* saved_cells;
    index row_step, row_sequence;
    int* status;
    int steps, batch, is_reverse;
    __device__ int direction() const { return is_reverse ? -1 : 1; }
    __device__ int step(int t) const { return is_reverse ? steps - 1 - t : t; }
    __device__ index place(int t, index b, int unit) const { return t * output_step + b * output_sequence + unit; }
};
