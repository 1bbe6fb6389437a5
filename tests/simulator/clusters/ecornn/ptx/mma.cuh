// Takes the place of ecornn/ptx/mma.cuh.
#pragma once
#include "machine.hpp"
#include "ecornn/common/dtypes.cuh"

// What tensor cores read of an operand's k-th element in a register.
inline float operand(unsigned bits, unsigned k) {
    if (sizeof(scalar_t) == 2) return widen(((const scalar_t*)&bits)[k]);
    bits &= 0xffffe000;  // TF32
    return __uint_as_float(bits);
}

// Fragments as PTX has them: of a lane (g, t), a0 is row g and a1 row g + 8 of 4 bytes of k from 4 t on, a2 and a3 of those half
// of all k further on; b likewise. Sums are cut off.
inline void multiply_all(Warp& warp) {
    constexpr unsigned each = 4 / sizeof(scalar_t), half = 4 * each;
    float a[16][2 * half], b[8][2 * half];
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned word = 0; word < 6; word++)
            for (unsigned k = 0; k < each; k++) {
                const float value = operand(warp.operands[lane][word], k);
                const unsigned column = lane % 4 * each + k;
                if (word < 4) a[lane / 4 + word % 2 * 8][column + word / 2 * half] = value;
                else b[lane / 4][column + (word - 4) * half] = value;
            }
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < 4; i++) {
            const float *row = a[lane / 4 + i / 2 * 8], *column = b[lane % 4 * 2 + i % 2];
            float& result = warp.sums[lane][i];
            double sum = result;
            for (unsigned k = 0; k < 2 * half; k++) sum += (double)row[k] * column[k];
            result = sum;
            if (fabsf(result) > __builtin_fabs(sum) && __builtin_isfinite(sum)) result = __builtin_nextafterf(result, 0.0f);
        }
}

// By the last lane that arrives for all: a lane's own result stays until all have arrived again.
inline void mma_m16n8(float (&acc)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    Warp& warp = warp_of_current();
    const unsigned lane = threadIdx.x % 32, operands[6] = {a0, a1, a2, a3, b0, b1};
    memcpy(warp.operands[lane], operands, sizeof(operands));
    memcpy(warp.sums[lane], acc, sizeof(acc));
    if (warp.barrier.arrived + 1 == warp.barrier.members) multiply_all(warp);
    barrier_sync(warp.barrier);
    memcpy(acc, warp.sums[lane], sizeof(acc));
}

inline void scheduling_fence(const uint4*) {}
