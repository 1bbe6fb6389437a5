// Products by fused multiply-adds with weights in registers, for blocks that own all of a layer's units. A group of K_LANES
// adjacent lanes has UNITS_PER_THREAD units. Each lane multiplies its part of K by all their rows. The sums of the lanes are
// added by shuffles, after which a lane has a unit and a gate of its own: unit k_lane / LANES_PER_UNIT of the group's.
#pragma once
#include "ecornn/common/ceil_div.cuh"
#include "ecornn/rnn/nn_cells.cuh"

constexpr int LANES_PER_UNIT = GATES == 1 ? 1 : 4;  // of GRU the last one has no gate
constexpr int K_LANES = UNITS_PER_THREAD * LANES_PER_UNIT;
static_assert((K_LANES & (K_LANES - 1)) == 0 && K_LANES <= 32, "lanes are added in halves of a warp's parts");

// A thread: its group's first unit, its part of K, and what it computes of the cell.
struct LaneCoords {
    int k_lane, first_unit, gate, unit;
    __device__ explicit LaneCoords(int thread_id) {
        k_lane = thread_id % K_LANES, first_unit = thread_id / K_LANES * UNITS_PER_THREAD;
        gate = k_lane % LANES_PER_UNIT, unit = first_unit + k_lane / LANES_PER_UNIT;
    }
    __device__ bool has_gate() const { return gate < GATES && unit < HIDDEN; }
    // The lane that has a unit's state, forward: that of the gate which is needed last, LSTM's o and GRU's n.
    __device__ bool has_state() const { return gate == GATES - 1 && unit < HIDDEN; }
};

// K elements of an operand, of each sequence, in shared memory: lanes have vectors of K_VECTOR in turns.
struct alignas(4 * K_VECTOR) KVector {
    float data[K_VECTOR];
};
template <int K> struct Operand {
    static constexpr int VECTORS_PER_LANE = ceil_div(K, K_LANES * K_VECTOR);
    KVector data[SEQUENCES][VECTORS_PER_LANE * K_LANES];
    __device__ float& at(int sequence, int k) { return data[sequence][k / K_VECTOR].data[k % K_VECTOR]; }
    // The first element of a lane's i-th vector.
    __device__ static int k_of(int k_lane, int i) { return (i * K_LANES + k_lane) * K_VECTOR; }
};

// Whether a thread's row is of the gate that GRU does not have: of a product with a row for each lane of a unit.
template <int ROWS> __device__ constexpr bool is_no_row(int row) {
    return ROWS > UNITS_PER_THREAD && row % LANES_PER_UNIT >= GATES;
}

// A thread's weights of ROWS rows of the product: its last SMEM_VECTORS vectors of K in shared memory, the others in registers.
template <int K, int ROWS> struct LaneWeights {
    static constexpr int REG_VECTORS = Operand<K>::VECTORS_PER_LANE - SMEM_VECTORS;
    static constexpr int SMEM_ROWS = ROWS > UNITS_PER_THREAD ? UNITS_PER_THREAD * GATES : ROWS;
    struct Storage {
        KVector data[SMEM_VECTORS > 0 ? SMEM_VECTORS : 1][SMEM_ROWS][BLOCK_THREADS];
    };
    static constexpr int STORAGE_BYTES = SMEM_VECTORS > 0 ? sizeof(Storage) : 0;
    KVector registers[REG_VECTORS > 0 ? REG_VECTORS : 1][ROWS];
    Storage& smem;

    __device__ explicit LaneWeights(void* storage) : registers(), smem(*(Storage*)storage) {}

    __device__ KVector& shared_at(int vector, int row) const {
        const int smem_row = ROWS > UNITS_PER_THREAD ? row / LANES_PER_UNIT * GATES + row % LANES_PER_UNIT : row;
        return smem.data[vector - REG_VECTORS][smem_row][threadIdx.x];
    }
    // Calls fn(vector, row, weights) for all of them, to load them.
    template <typename Fn> __device__ void for_each(Fn fn) {
#pragma unroll
        for (int i = 0; i < Operand<K>::VECTORS_PER_LANE; i++)
#pragma unroll
            for (int row = 0; row < ROWS; row++)
                if (!is_no_row<ROWS>(row)) fn(i, row, i < REG_VECTORS ? registers[i][row] : shared_at(i, row));
    }
    // Adds the lane's part of the product to acc.
    __device__ void fma_lanes(float (&acc)[SEQUENCES][ROWS], const Operand<K>& operand, int k_lane) const {
#pragma unroll
        for (int i = 0; i < Operand<K>::VECTORS_PER_LANE; i++) {
            KVector vectors[SEQUENCES];
#pragma unroll
            for (int s = 0; s < SEQUENCES; s++) vectors[s] = operand.data[s][i * K_LANES + k_lane];
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                if (is_no_row<ROWS>(row)) continue;
                const KVector weights = i < REG_VECTORS ? registers[i][row] : shared_at(i, row);
#pragma unroll
                for (int s = 0; s < SEQUENCES; s++)
#pragma unroll
                    for (int v = 0; v < K_VECTOR; v++)
                        acc[s][row] = fmaf(weights.data[v], vectors[s].data[v], acc[s][row]);
            }
        }
    }
};

// Adds what lanes MASK apart have of the first 2 * LEFT values: the upper one keeps the upper half, the other one the lower.
// Of all sequences in turn, as the next shuffle of each waits for the last one.
template <int MASK, int LEFT, int COUNT> __device__ inline void add_halves(float (&values)[SEQUENCES][COUNT], int k_lane) {
    const bool is_upper = k_lane & MASK;
#pragma unroll
    for (int j = 0; j < LEFT; j++) {
        if (LEFT >= LANES_PER_UNIT && is_no_row<COUNT>(j)) continue;
#pragma unroll
        for (int s = 0; s < SEQUENCES; s++) {
            const float sent = is_upper ? values[s][j] : values[s][j + LEFT];
            const float own = is_upper ? values[s][j + LEFT] : values[s][j];
            values[s][j] = own + __shfl_xor_sync(~0u, sent, MASK);
        }
    }
    if constexpr (LEFT > 1) add_halves<MASK / 2, LEFT / 2>(values, k_lane);
}

// Leaves in values[s][0] the group's sum of the lane's own value, of COUNT: each is of K_LANES / COUNT adjacent lanes. The
// order of additions is fixed.
template <int COUNT> __device__ inline void add_lanes(float (&values)[SEQUENCES][COUNT], int k_lane) {
    if constexpr (COUNT > 1) add_halves<K_LANES / 2, COUNT / 2>(values, k_lane);
#pragma unroll
    for (int mask = K_LANES / COUNT / 2; mask > 0; mask /= 2)
#pragma unroll
        for (int s = 0; s < SEQUENCES; s++) values[s][0] += __shfl_xor_sync(~0u, values[s][0], mask);
}
