// Takes the place of ecornn/ptx/register_reconfig.cuh.
#pragma once

template <int REGISTERS> void warpgroup_reg_dealloc() {}
template <int REGISTERS> void warpgroup_reg_alloc() {}
