// cuDNN's scaled dot product attention: one graph per shape and direction, built once, executed on the caller's stream
// in the caller's workspace. cuDNN is opened at run time, so the program starts without it.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string>

#include "kernels/attention.h"
#include "kernels/cuda/cuda_backend.h"

namespace gpt2 {

// Device memory that cuDNN's workspace takes on one stream, at most, for batches of this shape: counted before anything
// is allocated. 0 with --attention own; where Hopper's kernels serve (kernels/sm90/attention.h), nothing is asked for.
size_t attention_workspace_bytes(AttentionKind kind, bool deterministic, int B, int T, int NH, int HS);

class AttentionPlans {
 public:
  explicit AttentionPlans(const CudaDevice& device);
  ~AttentionPlans();
  AttentionPlans(const AttentionPlans&) = delete;

  // False, with the reason kept, where cuDNN is missing or refuses the shape: the caller then has to compute. The first
  // call for a shape builds its graph and allocates workspace, and so must not be under stream capture.
  bool forward(CudaStream& cuda, const AttentionForward<bf16>& args);
  bool backward(CudaStream& cuda, const AttentionBackward<bf16>& args);

  const std::string& reason() const { return reason_; } // why cuDNN did not serve; empty while it does, or nobody asked
  std::string version();                                // "cuDNN 9.19.0", or empty without the library

 private:
  struct Cudnn;
  std::string open();
  bool ready(const CudaStream& cuda);
  bool refuse(const std::string& reason);

  const CudaDevice& device_;
  std::unique_ptr<Cudnn> cudnn_; // null: not needed so far, or the library is missing
  std::string reason_;
  std::set<std::string> said_; // reasons already printed
};

} // namespace gpt2
