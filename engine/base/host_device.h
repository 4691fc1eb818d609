// Small functions that must give the same bits on the CPU and inside a kernel are marked HOST_DEVICE.
#pragma once

#ifdef __CUDACC__
#define GPT2_HOST_DEVICE __host__ __device__
#else
#define GPT2_HOST_DEVICE
#endif
