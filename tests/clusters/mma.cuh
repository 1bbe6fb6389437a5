// Takes the place of implementations/cuda/mma.cuh.
#pragma once

// Fragments as PTX has them: of a lane (g, t), a0 is row g and a1 row g + 8 of k 2 t and 2 t + 1, a2 and a3 of k + 8; b likewise.
inline void add_product(Sums& sums, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    Warp& warp = warp_of_current();
    const unsigned lane = threadIdx.x % 32, given[6] = {a0, a1, a2, a3, b0, b1};
    std::memcpy(warp.words[lane], given, sizeof(given));
    meet(warp.meeting);
    const auto at = [&](unsigned row, unsigned k, unsigned word) {
        return widen(((const storage*)&warp.words[row % 8 * 4 + k % 8 / 2][word])[k % 2]);
    };
    for (int i = 0; i < 4; i++) {
        const unsigned row = lane / 4 + i / 2 * 8, n = lane % 4 * 2 + i % 2;
        for (unsigned k = 0; k < 16; k++) sums.at[i] += at(row, k, row / 8 + k / 8 * 2) * at(n, k, 4 + k / 8);
    }
    meet(warp.meeting);
}

inline unsigned transposed(unsigned pair) {
    Warp& warp = warp_of_current();
    const unsigned lane = threadIdx.x % 32;
    warp.words[lane][0] = pair;
    meet(warp.meeting);
    unsigned short found[2];
    for (int i = 0; i < 2; i++) found[i] = ((const unsigned short*)warp.words[(lane % 4 * 2 + i) * 4 + lane / 4 / 2])[lane / 4 % 2];
    meet(warp.meeting);
    std::memcpy(&pair, found, 4);
    return pair;
}
