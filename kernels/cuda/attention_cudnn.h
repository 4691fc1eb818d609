// cuDNN's scaled dot product attention: one graph per shape and direction, built once, executed on the Cuda's stream.
// cuDNN is opened at run time, so the program starts without it.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string>

#include "kernels/attention.h"
#include "kernels/cuda/cuda_backend.h"

namespace gpt2 {

class AttentionPlans {
 public:
  explicit AttentionPlans(Cuda& cuda);
  ~AttentionPlans();
  AttentionPlans(const AttentionPlans&) = delete;

  // False, with the reason kept, where cuDNN is missing or refuses the shape: the caller then has to compute. The first
  // call for a shape builds its graph and allocates workspace, and so must not be under stream capture.
  bool forward(const AttentionForward<bf16>& args);
  bool backward(const AttentionBackward<bf16>& args);

  const std::string& reason() const { return reason_; } // why cuDNN did not serve; empty while it does
  std::string version() const;                          // "cuDNN 9.19.0", or empty without the library
  size_t workspace_bytes() const;                       // device memory held besides the Cuda's scratch

 private:
  struct Cudnn;
  bool refuse(const std::string& reason);

  Cuda& cuda_;
  std::unique_ptr<Cudnn> cudnn_; // null: the library is missing
  std::string reason_;
  std::set<std::string> said_; // reasons already printed
};

} // namespace gpt2
