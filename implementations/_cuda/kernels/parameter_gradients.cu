// Maths: the gradients of up to LAYERS small layers' parameters in D directions: of weight_ih d_gates^T x, of weight_hh d_rows^T h, of
//   bias_ih and bias_hh the sums of the rows of d_gates and d_rows. h is the output one step before, before the first `initial`.
//   d_rows is d_gates, but its last H columns are GRU's d_recurrent. Direction 1 runs from the last step to the first.
// Layout: of Params (below), by field, of each layer:
//   d_gates [D, rows, C] scalar_t, d_recurrent [D, rows, H] scalar_t, read, the latter null but for GRU
//   inputs [rows, I] scalar_t, output [rows, D*H] scalar_t, read; rows are T*B, sequences of a step side by side
//   initial [D, B, H] scalar_t, read, null for zeros
//   d_weight_ih [D, C, I], d_weight_hh [D, C, H], d_bias_ih, d_bias_hh [D, C] scalar_t, written
//   partial_sums [tiles, splits, BLOCKS, THREADS] uint4, written, then read; arrivals [tiles, BLOCKS] unsigned, zeros before the
//   launch, counted up; both null for one split
//   None that is written may alias another. Alignment: VALUES elements.
// Launch: layer by layer, direction by direction for each tile of TILE by TILE elements of d_weight_ih, then of d_weight_hh,
//   `splits` clusters of BLOCKS blocks. A block adds every (splits * BLOCKS)-th chunk of CHUNK rows, each of its GROUPS of threads a
//   part of these, a thread SIDE by SIDE elements. Shared bytes: _SHARED_BYTES of parameter_gradients.py.
// Cost: D * rows * C * (I + H) multiply-adds in float32; d_gates is read (I + H) / TILE times, inputs and output C / TILE times.
//   Of several splits each stores BLOCKS * THREADS * 16 bytes a tile, which are read once.
// Limits: compute capability 9.0; rows, C, H and I below 2^30; offsets 64-bit; VALUES divides C, H and I.
// Order: 1. A thread adds its group's rows from the first on, in float32; then the sums of groups and of blocks are added, each
//   from 0 on: bit-equal repeats.
//   2. A chunk is stored to one of two buffers. Before it is overwritten every thread has passed the barrier of the chunk between.
//   3. A block reads the sums of others after a cluster_sync; before the next one none of them ends.
//   4. Blocks of one rank in a tile's clusters own the same rows. Each stores its sums; after a barrier one thread adds 1 to their
//   counter, acquiring and releasing. So the last to arrive sees the sums of all. It adds them from split 0 on, whichever it is
//   itself: bit-equal repeats. No block waits for another cluster.
#include "ecornn/common/ceil_div.cuh"
#include "ecornn/common/cluster_sum.cuh"
#include "ecornn/common/element_vector.cuh"
#include "ecornn/ptx/flags.cuh"
#include "ecornn/ptx/ld_st_128.cuh"

constexpr int THREADS = 256, TILE = 64, CHUNK = 16, PART = 4, SIDE = 8;
constexpr int LANES = TILE / SIDE, GROUP = LANES * LANES, GROUPS = THREADS / GROUP;  // threads of a row of the tile, of a tile
constexpr int VECTORS = TILE / VALUES;  // of a row of a chunk
constexpr int FETCHES = ceil_div(CHUNK * VECTORS, THREADS);  // of a thread, of each factor's chunk
constexpr int OWN_ROWS = TILE / BLOCKS;  // of the tile, which a block writes
static_assert(GROUP == TILE && CHUNK % GROUPS == 0 && TILE % BLOCKS == 0 && TILE % VALUES == 0, "the tile's division");
static_assert(OWN_ROWS * TILE == 2 * THREADS, "the elements of OwnSums");

typedef long long index;
typedef ElementVector<VALUES> Vector;

struct Layer {
    const scalar_t *d_gates, *d_recurrent, *inputs, *output, *initial;
    scalar_t *d_weight_ih, *d_weight_hh, *d_bias_ih, *d_bias_hh;
    index width;
};

struct SharedStorage {
    union {
        struct {
            float gates[2][CHUNK][TILE], factors[2][CHUNK][TILE];
        };
        float block_sums[TILE][TILE];
    };
    float bias_sums[TILE];
    Layer layer;  // of the tile: kept in registers its pointers would take too many
};
static_assert(sizeof(SharedStorage) == SHARED_BYTES, "_SHARED_BYTES of parameter_gradients.py");

struct Params {
    Layer layers[LAYERS];
    uint4* partial_sums;
    unsigned* arrivals;
    int rows, batch, columns, hidden, directions, splits;
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

// Elements of a row that a thread reads or writes at once.
template <int COUNT> struct alignas(COUNT * sizeof(float)) Floats {
    float values[COUNT];
};
typedef Floats<PART> Part;

// A tile of a direction's gradient: its first row and column, and of which weight.
struct Tile {
    const Layer& layer;
    int direction, row, column;
    bool is_of_states;
};

// The tile of that number. Thread 0 copies its layer, which no thread may read before a barrier.
__device__ inline Tile tile_of(SharedStorage& shared, const Params& params, int number) {
    const int tall = ceil_div(params.columns, TILE), of_states = ceil_div(params.hidden, TILE);
    int layer = 0, of_inputs = ceil_div((int)params.layers[0].width, TILE);
    for (int tiles; layer + 1 < LAYERS && number >= (tiles = params.directions * tall * (of_inputs + of_states)); number -= tiles)
        of_inputs = ceil_div((int)params.layers[++layer].width, TILE);
    const int of_direction = tall * (of_inputs + of_states), place = number % of_direction, column = place / tall;
    const bool is_of_states = column >= of_inputs;
    if (threadIdx.x == 0) shared.layer = params.layers[layer];
    return {shared.layer, number / of_direction, place % tall * TILE, (is_of_states ? column - of_inputs : column) * TILE, is_of_states};
}

// VALUES columns of a row of d_gates or d_rows, zeros outside of them.
__device__ inline Vector load_gates(const Params& params, const Tile& tile, int row, int column) {
    if (row >= params.rows || column >= params.columns) return Vector{};
    const int of_recurrent = column - (params.columns - params.hidden);
    const index at = (index)tile.direction * params.rows + row;
    if (tile.is_of_states && tile.layer.d_recurrent && of_recurrent >= 0)
        return *(const Vector*)(tile.layer.d_recurrent + at * params.hidden + of_recurrent);
    return *(const Vector*)(tile.layer.d_gates + at * params.columns + column);
}

// VALUES columns of a row of the inputs, or of the states before it, zeros outside of them.
__device__ inline Vector load_factor(const Params& params, const Tile& tile, int row, int column) {
    const Layer& layer = tile.layer;
    if (row >= params.rows || column >= (tile.is_of_states ? params.hidden : layer.width)) return Vector{};
    if (!tile.is_of_states) return *(const Vector*)(layer.inputs + row * layer.width + column);
    const int before = tile.direction ? row + params.batch : row - params.batch;
    if (before >= 0 && before < params.rows) {
        const index at = (index)before * params.directions + tile.direction;
        return *(const Vector*)(layer.output + at * params.hidden + column);
    }
    if (!layer.initial) return Vector{};
    const int sequence = tile.direction ? before - params.rows : row;
    return *(const Vector*)(layer.initial + ((index)tile.direction * params.batch + sequence) * params.hidden + column);
}

// A thread's vectors of a chunk of both factors.
struct Fetched {
    Vector gates[FETCHES], factors[FETCHES];
};

__device__ inline void fetch_chunk(Fetched& fetched, const Params& params, const Tile& tile, int chunk) {
#pragma unroll
    for (int i = 0; i < FETCHES; i++) {
        const int vector = threadIdx.x + i * THREADS;
        if (vector >= CHUNK * VECTORS) break;
        const int row = chunk * CHUNK + vector / VECTORS, column = vector % VECTORS * VALUES;
        fetched.gates[i] = load_gates(params, tile, row, tile.row + column);
        fetched.factors[i] = load_factor(params, tile, row, tile.column + column);
    }
}

__device__ inline void store_chunk(SharedStorage& shared, int buffer, const Fetched& fetched) {
    constexpr int STORED = VALUES < PART ? VALUES : PART;
#pragma unroll
    for (int i = 0; i < FETCHES; i++) {
        const int vector = threadIdx.x + i * THREADS, row = vector / VECTORS, column = vector % VECTORS * VALUES;
        if (vector >= CHUNK * VECTORS) break;
#pragma unroll
        for (int j = 0; j < VALUES; j += STORED) {
            Floats<STORED> gates, factors;
#pragma unroll
            for (int n = 0; n < STORED; n++) {
                gates.values[n] = widen(fetched.gates[i].values[j + n]);
                factors.values[n] = widen(fetched.factors[i].values[j + n]);
            }
            *(Floats<STORED>*)&shared.gates[buffer][row][column + j] = gates;
            *(Floats<STORED>*)&shared.factors[buffer][row][column + j] = factors;
        }
    }
}

// A thread's sums over the rows of its group: SIDE by SIDE elements, and of a bias.
struct GroupSums {
    float elements[SIDE][SIDE], bias;
};

// Where the part of a thread's i-th row or column is in the tile: LANES parts apart, so that a warp's reads are adjacent.
__device__ inline int part_of(int lane, int i) { return (i / PART * LANES + lane) * PART; }

__device__ inline void load_side(float (&values)[SIDE], const float* row, int lane) {
#pragma unroll
    for (int i = 0; i < SIDE; i += PART) *(Part*)&values[i] = *(const Part*)(row + part_of(lane, i));
}

__device__ inline void add_chunk(GroupSums& sums, const SharedStorage& shared, int buffer, bool has_bias) {
    constexpr int ROWS = CHUNK / GROUPS;
    const int lane = threadIdx.x % GROUP, first = threadIdx.x / GROUP * ROWS;
#pragma unroll 2  // all at once spill
    for (int k = 0; k < ROWS; k++) {
        alignas(Part) float gates[SIDE], factors[SIDE];
        load_side(gates, shared.gates[buffer][first + k], lane / LANES);
        load_side(factors, shared.factors[buffer][first + k], lane % LANES);
#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int j = 0; j < SIDE; j++) sums.elements[i][j] += gates[i] * factors[j];
        if (has_bias) sums.bias += shared.gates[buffer][first + k][lane];
    }
}

// Adds the groups' sums to the block's, after all threads have read their last chunk.
__device__ inline void add_groups(SharedStorage& shared, const GroupSums& sums) {
    const int lane = threadIdx.x % GROUP;
    for (int group = 0; group < GROUPS; group++) {
        __syncthreads();
        if (threadIdx.x / GROUP != group) continue;
#pragma unroll
        for (int i = 0; i < SIDE; i++) {
            float* row = shared.block_sums[part_of(lane / LANES, i) + i % PART];
#pragma unroll
            for (int j = 0; j < SIDE; j += PART) {
                Part& place = *(Part*)(row + part_of(lane % LANES, j));
                Part part = group ? place : Part{};
#pragma unroll
                for (int n = 0; n < PART; n++) part.values[n] += sums.elements[i][j + n];
                place = part;
            }
        }
        shared.bias_sums[lane] = (group ? shared.bias_sums[lane] : 0) + sums.bias;
    }
}

// The sums that a thread writes: of two elements in the tile's rows of its block, and of a bias.
struct OwnSums {
    float first, second, bias;
};

// The first of the thread's elements is in this row of the tile, the second THREADS / TILE rows below, both in one column.
__device__ inline int own_row() { return block_rank_in_cluster() * OWN_ROWS + threadIdx.x / TILE; }
__device__ inline bool owns_bias(const Tile& tile) {
    return tile.column == 0 && block_rank_in_cluster() == 0 && threadIdx.x < TILE;
}

__device__ inline OwnSums add_blocks(const SharedStorage& shared, const Tile& tile) {
    const float* element = &shared.block_sums[own_row()][threadIdx.x % TILE];
    return {cluster_sum<BLOCKS>(element), cluster_sum<BLOCKS>(element + THREADS),
            owns_bias(tile) ? cluster_sum<BLOCKS>(&shared.bias_sums[threadIdx.x]) : 0};
}

// Adds the sums of all splits, where this block is the last of them to have its own. Returns whether it is.
__device__ inline bool add_splits(OwnSums& sums, const Params& params, int tile) {
    const unsigned rank = block_rank_in_cluster();
    const uint4 own{__float_as_uint(sums.first), __float_as_uint(sums.second), __float_as_uint(sums.bias), 0};
    st_relaxed_b128(params.partial_sums + (index)blockIdx.x * THREADS + threadIdx.x, own);
    __syncthreads();
    const bool is_last = threadIdx.x == 0 && atom_add_acq_rel(params.arrivals + tile * BLOCKS + rank, 1) == params.splits - 1;
    if (!__syncthreads_or(is_last)) return false;
    const uint4* partial_sums = params.partial_sums + ((index)tile * params.splits * BLOCKS + rank) * THREADS + threadIdx.x;
    sums = {};
#pragma unroll 8
    for (int split = 0; split < params.splits; split++) {
        const uint4 partial = ld_relaxed_b128(partial_sums + split * BLOCKS * THREADS);
        sums.first += __uint_as_float(partial.x);
        sums.second += __uint_as_float(partial.y);
        sums.bias += __uint_as_float(partial.z);
    }
    return true;
}

__device__ inline void write_sums(const OwnSums& sums, const Params& params, const Tile& tile) {
    const Layer& layer = tile.layer;
    const int width = tile.is_of_states ? params.hidden : layer.width;
    const int row = tile.row + own_row(), column = tile.column + threadIdx.x % TILE, second_row = row + THREADS / TILE;
    scalar_t* gradient = (tile.is_of_states ? layer.d_weight_hh : layer.d_weight_ih) +
                         ((index)tile.direction * params.columns + row) * width + column;
    if (row < params.columns && column < width) *gradient = narrow(sums.first);
    if (second_row < params.columns && column < width) gradient[(index)(THREADS / TILE) * width] = narrow(sums.second);
    const int of_bias = tile.row + threadIdx.x;
    if (owns_bias(tile) && of_bias < params.columns)
        (tile.is_of_states ? layer.d_bias_hh : layer.d_bias_ih)[tile.direction * params.columns + of_bias] = narrow(sums.bias);
}

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 2)
    parameter_gradients(const __grid_constant__ Params params) {
    SharedStorage& shared = *(SharedStorage*)dynamic_smem();
    const int stride = BLOCKS * params.splits, number = blockIdx.x / stride;  // of the block's chunks; of its tile
    const Tile tile = tile_of(shared, params, number);
    const int chunks = ceil_div(params.rows, CHUNK);
    GroupSums sums{};
    Fetched fetched;
    int buffer = 0, chunk = blockIdx.x % stride;
    __syncthreads();
    fetch_chunk(fetched, params, tile, chunk);
    for (; chunk < chunks; chunk += stride) {
        store_chunk(shared, buffer, fetched);
        __syncthreads();
        fetch_chunk(fetched, params, tile, chunk + stride);
        add_chunk(sums, shared, buffer, tile.column == 0);
        buffer ^= 1;
    }
    add_groups(shared, sums);
    cluster_sync();
    OwnSums own_sums = add_blocks(shared, tile);
    cluster_sync();
    if (params.splits == 1 || add_splits(own_sums, params, number)) write_sums(own_sums, params, tile);
}
