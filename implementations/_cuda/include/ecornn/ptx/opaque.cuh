// Optimisation barriers: what keeps the compiler from recomputing a value, or from holding on to what it computed.
#pragma once

// The compiler takes x for another value than before.
__device__ inline void opaque(unsigned& x) { asm volatile("" : "+r"(x)); }
__device__ inline void opaque(long long& x) { asm volatile("" : "+l"(x)); }
