#include "engine/dist/communicator.h"

#include <cstdlib>
#include <string>

#include "engine/base/error.h"

namespace gpt2 {
namespace {

class SingleProcess : public Communicator {
 public:
  int rank() const override { return 0; }
  int ranks() const override { return 1; }
};

// What each launcher leaves behind. A size alone proves nothing: sbatch exports SLURM_NTASKS to plain commands, and
// WORLD_SIZE is a common name, so the launcher's rank variable must be there too.
struct Launcher {
  const char* program;
  const char* size_variable;
  const char* rank_variable;
};
constexpr Launcher kLaunchers[] = {
    {"mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
    {"mpiexec", "PMI_SIZE", "PMI_RANK"},
    {"torchrun", "WORLD_SIZE", "RANK"},
    {"srun", "SLURM_NTASKS", "SLURM_PROCID"},
};

} // namespace

std::unique_ptr<Communicator> make_communicator() {
  for (const Launcher& launcher : kLaunchers) {
    const char* size = std::getenv(launcher.size_variable);
    if (!size || !std::getenv(launcher.rank_variable)) continue;
    if (std::atoi(size) > 1) {
      throw Error(ExitCode::communication,
                  std::string("started as one of ") + size + " ranks (" + launcher.size_variable + "=" + size + ", " +
                      launcher.program + "), but this build trains in one process",
                  "start one process, without " + std::string(launcher.program));
    }
  }
  return std::make_unique<SingleProcess>();
}

} // namespace gpt2
