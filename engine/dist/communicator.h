// Who else trains this model. One process for now; NCCL (GPU) and MPI (CPU) communicators stand behind the same
// interface later.
#pragma once

#include <memory>

namespace gpt2 {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  bool is_root() const { return rank() == 0; }
};

// Looks at what mpirun, torchrun or srun left in the environment. Throws Error(communication) if it was started as
// one of several ranks, which this build cannot do.
std::unique_ptr<Communicator> make_communicator();

} // namespace gpt2
