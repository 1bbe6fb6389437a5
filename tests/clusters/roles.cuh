// Takes the place of implementations/_cuda/roles.cuh.
#pragma once
#include "machine.hpp"

inline Meeting& meeting_of(int meeting, int threads) {
    Meeting& found = current.block->named[meeting];
    found.members = threads;
    return found;
}
inline void meet(int meeting, int threads) { meet(meeting_of(meeting, threads)); }
inline void come(int meeting, int threads) { come(meeting_of(meeting, threads)); }
template <int REGISTERS> void make_do_with() {}
template <int REGISTERS> void take() {}
