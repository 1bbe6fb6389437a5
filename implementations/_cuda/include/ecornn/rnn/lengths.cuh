// Lengths of sequences [B], null where all have T steps. What a caller gives below 0 or above T counts as these.
#pragma once

typedef long long length;

__device__ inline int clamped_length(const length* lengths, int sequence, int steps) {
    const length given = lengths ? lengths[sequence] : steps;
    return given < 0 ? 0 : given < steps ? (int)given : steps;
}
