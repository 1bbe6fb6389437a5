// Maths: copies of up to MATRICES matrices, to which rows and columns of zeros are added, and rows of another before their first.
//   Row t * batch + b is zeros where t >= lengths[b], whatever is there. The first column that is added may be ones.
// Layout: of Params (below), by field, of each matrix:
//   rows [R - S, C] scalar_t, read, `stride` elements from one row to the next
//   above [S, C] scalar_t, read, without gaps; null for zeros. S: skipped.
//   lengths [batch] int64, read; null where rows are of no sequences, or all count
//   padded [PR, PC] scalar_t, written, without gaps
//   None that is written may alias another. Alignment: rows and above of the element, padded of 16 bytes.
// Launch: one block for each THREADS vectors of 16 bytes of all copies, one matrix after the other.
// Cost: reads R * C and writes PR * PC elements.
// Limits: vectors of all below 2^31, PC below 2^28; offsets 64-bit. R = PR = 0 for no matrix.
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
    int row_count, columns, padded_rows, padded_columns, skipped, batch, has_ones;
};

struct Params {
    Matrix matrices[MATRICES];
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

// The elements of a copy's row, null for zeros.
__device__ inline const scalar_t* elements_of(const Matrix& matrix, int row) {
    if (row < matrix.skipped) return matrix.above ? matrix.above + (index)row * matrix.columns : nullptr;
    const bool is_padding = matrix.lengths && row / matrix.batch >= matrix.lengths[row % matrix.batch];
    return row < matrix.row_count && !is_padding ? matrix.rows + (row - matrix.skipped) * matrix.stride : nullptr;
}

// Writes one vector of a matrix's copy, of one row or, where rows are not of whole vectors, of several.
__device__ inline void copy_vector(const Matrix& matrix, int vector) {
    const unsigned columns = matrix.padded_columns, rest = vector % columns * VALUES;
    const index first = (index)vector * VALUES, end = (index)matrix.padded_rows * columns;
    int row = vector / columns * VALUES + rest / columns, column = rest % columns;
    const scalar_t* from = elements_of(matrix, row);
    Vector copied = {};
#pragma unroll
    for (int i = 0; i < VALUES; i++, column++) {
        if (column == columns) from = elements_of(matrix, ++row), column = 0;
        if (column < matrix.columns) {
            if (from) copied.values[i] = from[column];
        } else if (matrix.has_ones && column == matrix.columns) copied.values[i] = narrow(1);
    }
    if (first + VALUES <= end) {
        *(Vector*)(matrix.padded + first) = copied;
        return;
    }
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        if (first + i < end) matrix.padded[first + i] = copied.values[i];
}

extern "C" __global__ void __launch_bounds__(THREADS) pad_rows(const __grid_constant__ Params params) {
    int vector = blockIdx.x * THREADS + threadIdx.x, number = 0;
    for (; number < MATRICES; number++) {
        const Matrix& matrix = params.matrices[number];
        const int vectors = ((index)matrix.padded_rows * matrix.padded_columns + VALUES - 1) / VALUES;
        if (vector < vectors) break;
        vector -= vectors;
    }
    if (number < MATRICES) copy_vector(params.matrices[number], vector);
}
