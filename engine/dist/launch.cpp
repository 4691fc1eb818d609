#include "engine/dist/launch.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "engine/base/error.h"

namespace gpt2 {
namespace {

struct Launcher {
  const char* program;
  const char* size_variable;
  const char* rank_variable;
  const char* local_rank_variable;
};
constexpr Launcher kLaunchers[] = {
    {"mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"mpiexec", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"},
    {"torchrun", "WORLD_SIZE", "RANK", "LOCAL_RANK"},
    {"srun", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID"},
};

[[noreturn]] void refuse(const char* variable, const char* text, const Launcher& launcher, const std::string& what) {
  throw Error(ExitCode::communication, std::string(variable) + "=" + text + " (" + launcher.program + "): " + what,
              "start again with " + std::string(launcher.program) + ", or unset " + launcher.size_variable + " and " +
                  launcher.rank_variable + " to train in one process");
}

int read_number(const char* variable, const char* text, const Launcher& launcher) {
  int number = 0;
  const char* const end = text + std::strlen(text);
  const auto [stopped, status] = std::from_chars(text, end, number);
  if (status != std::errc() || stopped != end || number < 0) refuse(variable, text, launcher, "not a whole number");
  return number;
}

} // namespace

Environment process_environment() {
  return [](const char* name) -> const char* { return std::getenv(name); };
}

std::optional<Launch> find_launch(const Environment& environment) {
  for (const Launcher& launcher : kLaunchers) {
    const char* const size = environment(launcher.size_variable);
    const char* const rank = environment(launcher.rank_variable);
    if (!size || !rank) continue;
    Launch launch{.program = launcher.program,
                  .rank = read_number(launcher.rank_variable, rank, launcher),
                  .ranks = read_number(launcher.size_variable, size, launcher),
                  .local_rank = std::nullopt};
    if (launch.ranks < 1) refuse(launcher.size_variable, size, launcher, "there is at least one rank");
    if (launch.rank >= launch.ranks) {
      refuse(launcher.rank_variable, rank, launcher, "ranks are 0 to " + std::to_string(launch.ranks - 1));
    }
    if (const char* const local_rank = environment(launcher.local_rank_variable)) {
      launch.local_rank = read_number(launcher.local_rank_variable, local_rank, launcher);
    }
    return launch;
  }
  return std::nullopt;
}

} // namespace gpt2
