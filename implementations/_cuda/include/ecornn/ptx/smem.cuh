// A block's dynamic shared memory. Addresses are of shared memory, 32 bits each. Compute capability 8.0.
#pragma once

typedef unsigned int smem_addr_t;

__device__ inline smem_addr_t smem_addr(const void* shared) { return (smem_addr_t)__cvta_generic_to_shared(shared); }

// The block's dynamic shared memory. Its address stays in a register: in a cluster the compiler would recompute it wherever it
// is needed, by an instruction that the next ones wait for.
__device__ inline unsigned char* dynamic_smem() {
    extern __shared__ __align__(128) unsigned char memory[];
    smem_addr_t address = smem_addr(memory);
    asm volatile("" : "+r"(address));
    return (unsigned char*)__cvta_shared_to_generic(address);
}
