// Who else trains this model. One process for now; NCCL (GPU) and MPI (CPU) communicators stand behind the same
// interface later.
#pragma once

#include <memory>

#include "engine/dist/launch.h"

namespace gpt2 {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
};

// Throws Error(communication) if this process was started as one of several ranks, which this build cannot do.
std::unique_ptr<Communicator> make_communicator(const Environment& environment);

} // namespace gpt2
