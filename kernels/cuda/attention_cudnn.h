// cuDNN scaled dot product attention: one graph per shape and direction, built once, executed on the caller's stream in
// the caller's workspace. cuDNN is loaded at run time, so the program starts without it.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string>

#include "kernels/attention.h"
#include "kernels/cuda/cuda_backend.h"

namespace gpt2 {

// Upper bound of cuDNN's workspace on one stream for batches of this shape, before anything is allocated. 0 with
// --attention own. kernels/sm90/attention.h needs no workspace.
size_t attention_workspace_bytes(AttentionKind kind, bool deterministic, int B, int T, int NH, int HS);

class AttentionPlans {
 public:
  explicit AttentionPlans(const CudaDevice& device);
  ~AttentionPlans();
  AttentionPlans(const AttentionPlans&) = delete;

  // False if cuDNN is missing or rejects the shape; reason() says why, and the caller uses another kernel. The first
  // call for a shape builds its graph and allocates workspace: not under stream capture.
  bool forward(CudaStream& cuda, const AttentionForward<bf16>& args);
  bool backward(CudaStream& cuda, const AttentionBackward<bf16>& args);

  const std::string& reason() const { return reason_; } // why cuDNN is not used; empty if it is, or was never needed
  std::string version();                                // "cuDNN 9.19.0", or empty without the library

 private:
  struct Cudnn;
  std::string open();
  bool ready(const CudaStream& cuda);
  bool refuse(const std::string& reason);

  const CudaDevice& device_;
  std::unique_ptr<Cudnn> cudnn_; // null: not needed yet, or the library is missing
  std::string reason_;
  std::set<std::string> logged_; // reasons already logged
};

} // namespace gpt2
