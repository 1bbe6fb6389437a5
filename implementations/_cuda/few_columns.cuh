// The product of rows of weights, each of which is read once, and few columns, rows of something else: each of a block's 8 warps
// takes a share of what is summed over. All warps' sums are to be met by the block, and are added in one order.
#pragma once
#include "pieces.cuh"

// A warp's sums of ROWS times 16 rows and COLUMNS times 8 columns of SIZE elements, as a block has them in shared memory.
template <int ROWS, int COLUMNS> struct Share {
    float at[ROWS * 16][COLUMNS * 8 + 1];
};

// Those of its share of the elements, of which a lane reads SLICES slices at once. row_of(r), column_of(n): row r, and the
// lane's column of the n-th 8, as a MatrixRow.
template <int SIZE, int SLICES, int ROWS, int COLUMNS, typename RowOf, typename ColumnOf>
__device__ inline void multiply_share(Share<ROWS, COLUMNS>& found, int warp, int lane, RowOf row_of, ColumnOf column_of) {
    const int g = lane / 4, t = lane % 4;
    Sums sums[ROWS][COLUMNS] = {};
#pragma unroll 1
    for (int first = warp * SLICE; first < SIZE; first += SLICES * WARPS * SLICE) {
        uint4 columns[SLICES][COLUMNS];
        Slice weights[SLICES][ROWS];
#pragma unroll
        for (int s = 0; s < SLICES; s++) {
            const int k = first + s * WARPS * SLICE + t * PIECE;
#pragma unroll
            for (int n = 0; n < COLUMNS; n++) columns[s][n] = piece_at(column_of(n), k, SIZE);
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                weights[s][i] = slice_of(piece_at(row_of(i * 16 + g), k, SIZE), piece_at(row_of(i * 16 + g + 8), k, SIZE));
        }
#pragma unroll
        for (int s = 0; s < SLICES; s++) {
            Columns of_slice[COLUMNS];
#pragma unroll
            for (int n = 0; n < COLUMNS; n++) of_slice[n] = columns_of(columns[s][n]);
#pragma unroll
            for (int i = 0; i < ROWS; i++) add_slice(sums[i], halves_of(weights[s][i]), of_slice);
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS * 2; i++)
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
            for (int j = 0; j < 2; j++) found.at[i * 8 + g][n * 8 + t * 2 + j] = sums[i / 2][n].at[i % 2 * 2 + j];
}

// All warps' sums of a row and column.
template <int ROWS, int COLUMNS> __device__ inline float sum_of(const Share<ROWS, COLUMNS>* shares, int row, int column) {
    float found = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) found += shares[warp].at[row][column];
    return found;
}
