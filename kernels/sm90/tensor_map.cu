#include "kernels/sm90/tensor_map.h"

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_backend.h"

namespace gpt2::sm90 {
namespace {

// Looked up at run time: the program does not link libcuda, so it starts on a machine without a driver.
auto encode_function() {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result));
    if (result != cudaDriverEntryPointSuccess || !found)
      throw Error(ExitCode::device, "the driver has no cuTensorMapEncodeTiled", "install a driver for CUDA 13");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  return function;
}

} // namespace

CUtensorMap make_tensor_map(const uint8_t* data, std::initializer_list<TensorMapDimension> dimensions) {
  constexpr int kMaxRank = 5;
  cuuint64_t sizes[kMaxRank], strides[kMaxRank];
  cuuint32_t boxes[kMaxRank], steps[kMaxRank];
  cuuint32_t rank = 0;
  for (const TensorMapDimension& dimension : dimensions) {
    sizes[rank] = static_cast<cuuint64_t>(dimension.size);
    strides[rank] = static_cast<cuuint64_t>(dimension.stride);
    boxes[rank] = static_cast<cuuint32_t>(dimension.box);
    steps[rank++] = 1;
  }
  const auto swizzle = boxes[0] == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMap map;
  const CUresult status = encode_function()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, rank, const_cast<uint8_t*>(data),
                                            sizes, strides + 1, boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                            CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    throw Error(ExitCode::device, "cuTensorMapEncodeTiled failed with error " + std::to_string(status));
  return map;
}

} // namespace gpt2::sm90
