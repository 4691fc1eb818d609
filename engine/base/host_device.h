// Marks functions that must give the same bits on the CPU and in a kernel.
#pragma once

#ifdef __CUDACC__
#define GPT2_HOST_DEVICE __host__ __device__
#else
#define GPT2_HOST_DEVICE
#endif
