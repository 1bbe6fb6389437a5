// Skinny products: of rows of weights, each of which is read once, and few columns, rows of another matrix. Each of a block's 8
// warps has a K partition. After a barrier all warps' partial sums are added in one order.
#pragma once
#include "vector_load.cuh"

// A warp's partial sums of ROWS times 16 rows and COLUMNS times 8 columns, in shared memory.
template <int ROWS, int COLUMNS> struct WarpPartials {
    float data[ROWS * 16][COLUMNS * 8 + 1];
};

// Computes the partial sums of the warp's partition of SIZE elements, of which a lane loads BATCH_K_TILES K tiles at once.
// row_of(r), column_of(n): row r, and the lane's column of the n-th 8, as a MatrixRow.
template <int SIZE, int BATCH_K_TILES, int ROWS, int COLUMNS, typename RowOf, typename ColumnOf>
__device__ inline void skinny_mma(WarpPartials<ROWS, COLUMNS>& partials, int warp, int lane, RowOf row_of, ColumnOf column_of) {
    const int g = lane / 4, t = lane % 4;
    Accumulator acc[ROWS][COLUMNS] = {};
#pragma unroll 1
    for (int first = warp * K_TILE; first < SIZE; first += BATCH_K_TILES * WARPS * K_TILE) {
        uint4 b_vectors[BATCH_K_TILES][COLUMNS];
        AFragment a_fragments[BATCH_K_TILES][ROWS];
#pragma unroll
        for (int s = 0; s < BATCH_K_TILES; s++) {
            const int k = first + s * WARPS * K_TILE + t * ELEMENTS_PER_VECTOR;
#pragma unroll
            for (int n = 0; n < COLUMNS; n++) b_vectors[s][n] = load_vector(column_of(n), k, SIZE);
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                a_fragments[s][i] =
                    make_a_fragment(load_vector(row_of(i * 16 + g), k, SIZE), load_vector(row_of(i * 16 + g + 8), k, SIZE));
        }
#pragma unroll
        for (int s = 0; s < BATCH_K_TILES; s++) {
            BFragment b_fragments[COLUMNS];
#pragma unroll
            for (int n = 0; n < COLUMNS; n++) b_fragments[n] = make_b_fragment(b_vectors[s][n]);
#pragma unroll
            for (int i = 0; i < ROWS; i++) mma_k_tile(acc[i], split_a_fragment(a_fragments[s][i]), b_fragments);
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS * 2; i++)
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
            for (int j = 0; j < 2; j++) partials.data[i * 8 + g][n * 8 + t * 2 + j] = acc[i / 2][n].data[i % 2 * 2 + j];
}

// Adds all warps' partial sums of a row and column.
template <int ROWS, int COLUMNS>
__device__ inline float reduce_partials(const WarpPartials<ROWS, COLUMNS>* partials, int row, int column) {
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) sum += partials[warp].data[row][column];
    return sum;
}
