// Maths: copies of up to three matrices, to which rows and columns of zeros are added, and rows of another before their first.
//   Row t * batch + b is zeros where t >= lengths[b], whatever is there.
// Layout: of Params (below), by field, of each matrix:
//   rows [R - S, C] scalar_t, read, `stride` elements from one row to the next
//   above [S, C] scalar_t, read, without gaps; null for zeros. S: skipped.
//   lengths [batch] int64, read; null where rows are of no sequences, or all count
//   padded [PR, PC] scalar_t, written, without gaps
//   None that is written may alias another. Alignment: rows and above of the element, padded of 16 bytes; PC a multiple of that.
// Launch: one block for each THREADS vectors of 16 bytes of all copies, one matrix after the other.
// Cost: reads R * C and writes PR * PC elements.
// Limits: vectors of all below 2^31; offsets 64-bit. R = PR = 0 for no matrix.
// Order: none: a thread writes one vector.
#include "ecornn/common/element_vector.cuh"

constexpr int THREADS = 256, VALUES = ELEMENTS_PER_VECTOR;

typedef long long index;
typedef ElementVector<VALUES> Vector;

struct Matrix {
    const scalar_t *rows, *above;
    scalar_t* padded;
    const index* lengths;
    index stride;
    int row_count, columns, padded_rows, padded_columns, skipped, batch;
};

struct Params {
    Matrix matrices[MATRICES];
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

// Writes one vector of a matrix's copy.
__device__ inline void copy_vector(const Matrix& matrix, int vector) {
    const int width = matrix.padded_columns / VALUES, row = vector / width, column = vector % width * VALUES;
    const scalar_t* from = nullptr;
    if (row < matrix.skipped) {
        if (matrix.above) from = matrix.above + (index)row * matrix.columns + column;
    } else if (row < matrix.row_count && !(matrix.lengths && row / matrix.batch >= matrix.lengths[row % matrix.batch])) {
        from = matrix.rows + (row - matrix.skipped) * matrix.stride + column;
    }
    Vector copied = {};
    if (from) {
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            if (column + i < matrix.columns) copied.values[i] = from[i];
    }
    *(Vector*)(matrix.padded + (index)row * matrix.padded_columns + column) = copied;
}

extern "C" __global__ void __launch_bounds__(THREADS) pad_rows(const __grid_constant__ Params params) {
    int vector = blockIdx.x * THREADS + threadIdx.x;
#pragma unroll
    for (int i = 0; i < MATRICES; i++) {
        const Matrix& matrix = params.matrices[i];
        const int vectors = matrix.padded_rows * (matrix.padded_columns / VALUES);
        if (vector >= 0 && vector < vectors) copy_vector(matrix, vector);
        vector -= vectors;
    }
}
