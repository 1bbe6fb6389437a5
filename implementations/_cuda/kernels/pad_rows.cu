// Maths: copies of one or two matrices, to which rows and columns of zeros are added.
// Layout: of Params (below), by field, of each matrix:
//   rows [R, C] scalar_t, read, `stride` elements from one row to the next
//   padded [PR, PC] scalar_t, written, without gaps
//   None that is written may alias another. Alignment: rows of the element, padded of 16 bytes; PC a multiple of 16 bytes.
// Launch: one block for each THREADS vectors of 16 bytes of the first matrix's copy and then of the second's.
// Cost: reads R * C and writes PR * PC elements.
// Limits: vectors of both below 2^31; offsets 64-bit. R = PR = 0 for no second matrix.
// Order: none: a thread writes one vector.
#include "ecornn/common/dtypes.cuh"

constexpr int THREADS = 256, VALUES = ELEMENTS_PER_VECTOR;

typedef long long index;

struct Matrix {
    const scalar_t* rows;
    scalar_t* padded;
    index stride;
    int row_count, columns, padded_rows, padded_columns;
};

struct Params {
    Matrix first, second;
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

struct alignas(16) Vector {
    scalar_t values[VALUES];
};

extern "C" __global__ void __launch_bounds__(THREADS) pad_rows(const __grid_constant__ Params params) {
    const int of_first = params.first.padded_rows * (params.first.padded_columns / VALUES);
    int vector = blockIdx.x * THREADS + threadIdx.x;
    const bool is_first = vector < of_first;
    const Matrix& matrix = is_first ? params.first : params.second;
    if (!is_first) vector -= of_first;
    const int width = matrix.padded_columns / VALUES;
    if (vector >= matrix.padded_rows * width) return;
    const int row = vector / width, column = vector % width * VALUES;
    Vector copied = {};
    if (row < matrix.row_count) {
        const scalar_t* from = matrix.rows + row * matrix.stride + column;
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            if (column + i < matrix.columns) copied.values[i] = from[i];
    }
    *(Vector*)(matrix.padded + (index)row * matrix.padded_columns + column) = copied;
}
