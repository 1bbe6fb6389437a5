// Takes the place of implementations/cuda/again.cuh.
#pragma once

inline void again(unsigned&) {}
inline void again(long long&) {}
