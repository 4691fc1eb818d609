// Statistics of a checkpoint's tensors and differences of two checkpoints, for bin/ckpt.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/format.h"

namespace gpt2 {

struct TensorSummary {
  std::string name; // "params/wte.weight"
  std::vector<int64_t> shape;
  double min = 0, max = 0, mean = 0, norm = 0; // of the finite values
  int64_t not_finite = 0;
};
std::vector<TensorSummary> summarize(OpenCheckpoint& checkpoint);

struct TensorDifference {
  std::string name;
  std::string only_in;              // "A" or "B": the other has no such tensor, or one of another shape
  int64_t count = 0, of = 0;        // elements whose bits differ
  double largest = 0, relative = 0; // max |a - b|; norm(a - b) / norm(a)
};
struct ScalarDifference {
  std::string name, a, b; // "-": absent; of a multi-line text, the first differing line
};
struct CheckpointDifference {
  std::vector<TensorDifference> tensors;
  std::vector<ScalarDifference> scalars;
  bool none() const { return tensors.empty() && scalars.empty(); }
};
// The checkpoints may be of different numbers of ranks.
CheckpointDifference compare(OpenCheckpoint& a, OpenCheckpoint& b);

} // namespace gpt2
