// TMA descriptors (CUtensorMap) of byte tensors.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <initializer_list>

namespace gpt2::sm90 {

struct TensorMapDimension {
  int64_t size;
  int64_t stride; // bytes; a multiple of 16, and 1 for the first dimension
  int box;        // extent of a tile, at most 256
};

// Tiles in shared memory: the first dimension is fastest, in rows of 128 or 64 bytes, swizzled by 16-byte chunks. Chunk
// i of row r is at i ^ (r % 8) for 128 bytes, at i ^ (r / 2 % 4) for 64 bytes.
CUtensorMap make_tensor_map(const uint8_t* data, std::initializer_list<TensorMapDimension> dimensions);

} // namespace gpt2::sm90
