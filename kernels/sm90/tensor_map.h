// A view of a matrix of bytes that the copy engine walks box by box.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <initializer_list>

namespace gpt2::sm90 {

struct TensorMapDimension {
  int64_t size;
  int64_t stride; // bytes to the next one; a multiple of 16, and 1 for the first dimension
  int box;        // of these at once; at most 256
};

// Boxes lie in shared memory with the first dimension fastest, in rows of 128 or of 64 bytes, whose 16-byte pieces are
// swizzled: piece i of row r is at i ^ (r % 8) of 128, at i ^ (r / 2 % 4) of 64.
CUtensorMap make_tensor_map(const uint8_t* data, std::initializer_list<TensorMapDimension> dimensions);

} // namespace gpt2::sm90
