// Takes the place of implementations/cuda/roles.cuh.
#pragma once
#include "machine.hpp"

inline void meet(int meeting, int threads) { meet(current->block->meeting_of(meeting, threads)); }
inline void come(int meeting, int threads) { come(current->block->meeting_of(meeting, threads)); }
template <int REGISTERS> void make_do_with() {}
template <int REGISTERS> void take() {}
