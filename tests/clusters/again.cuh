// Takes the place of implementations/_cuda/again.cuh.
#pragma once

inline void again(unsigned&) {}
inline void again(long long&) {}
