// Takes the place of ecornn/ptx/smem.cuh: the same functions, by machine.hpp.
#pragma once
#include "machine.hpp"

typedef unsigned int smem_addr_t;

inline unsigned char* dynamic_smem() { return current.block->memory; }
inline smem_addr_t smem_addr(const void* shared) {
    return current.block->place << 24 | (smem_addr_t)((const unsigned char*)shared - dynamic_smem());
}
