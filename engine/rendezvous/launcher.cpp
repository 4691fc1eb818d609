#include "engine/rendezvous/launcher.h"

#include <array>
#include <cstdint>
#include <cstdlib>

#include "engine/base/error.h"
#include "engine/base/parse_number.h"

namespace gpt2 {
namespace {

using Variables = std::array<const char*, 5>; // the last may be null

struct Launcher {
  const char* program;
  const char *size, *rank, *local_rank, *local_size; // variables; null: the launcher sets none
  Variables job;                                     // together they identify the job
  void (*find_master)(Launch&, const Environment&, const Launcher&) = nullptr;
  bool (*applies)(const Environment&) = nullptr;
};

[[noreturn]] void refuse(const char* variable, const char* text, const Launcher& launcher, const std::string& what) {
  throw Error(ExitCode::communication, std::string(variable) + "=" + text + " (" + launcher.program + "): " + what,
              "start again with " + std::string(launcher.program) + ", or unset " + launcher.size + " and " +
                  launcher.rank + " to train in one process");
}

int read_number(const char* variable, const char* text, const Launcher& launcher) {
  const int number = parse_number<int>(text).value_or(-1);
  if (number < 0) refuse(variable, text, launcher, "not a whole number");
  return number;
}

std::optional<Launch> read_launch(const Launcher& launcher, const Environment& environment) {
  if (launcher.applies && !launcher.applies(environment)) return std::nullopt;
  const char* const size = environment(launcher.size);
  const char* const rank = environment(launcher.rank);
  if (!size || !rank) return std::nullopt;
  Launch launch{.program = launcher.program,
                .rank = read_number(launcher.rank, rank, launcher),
                .ranks = read_number(launcher.size, size, launcher),
                .job = launcher.program};
  if (launch.ranks < 1) refuse(launcher.size, size, launcher, "must be at least 1");
  if (launch.rank >= launch.ranks) {
    refuse(launcher.rank, rank, launcher, "must be 0 to " + std::to_string(launch.ranks - 1));
  }
  if (const char* const local_rank = environment(launcher.local_rank)) {
    launch.local_rank = read_number(launcher.local_rank, local_rank, launcher);
  }
  const char* const local_size = launcher.local_size ? environment(launcher.local_size) : nullptr;
  if (local_size) launch.local_ranks = read_number(launcher.local_size, local_size, launcher);
  for (const char* const variable : launcher.job) {
    if (variable) launch.job += " " + text_of(environment, variable);
  }
  if (launcher.find_master) launcher.find_master(launch, environment, launcher);
  return launch;
}

// Slurm numbers the steps of a job from 0; batch scripts and interactive shells have numbers near 2^32.
bool is_under_srun(const Environment& environment) {
  const char* const step = environment("SLURM_STEP_ID");
  return step && parse_number<uint32_t>(step).value_or(UINT32_MAX) < 0xFFFFFFF0u;
}

void use_master_variables(Launch& launch, const Environment& environment) {
  launch.master = text_of(environment, "MASTER_ADDR");
  const std::string port = text_of(environment, "MASTER_PORT");
  if (!launch.master.empty() && !port.empty()) launch.master += ":" + port;
}

// First node of the step; empty: the step has one node.
std::string slurm_master(const Environment& environment) {
  if (text_of(environment, "SLURM_STEP_NUM_NODES") == "1") return "";
  const std::string of_step = text_of(environment, "SLURM_STEP_NODELIST"); // a step may use a subset of the job's nodes
  return first_host(of_step.empty() ? text_of(environment, "SLURM_JOB_NODELIST") : of_step);
}

// On several nodes the address of rank 0 comes from MPI, or from srun if it provides PMI.
void find_mpi_master(Launch& launch, const Environment& environment, const Launcher&) {
  use_master_variables(launch, environment);
  if (!launch.master.empty()) return;
  if (launch.local_ranks && *launch.local_ranks < launch.ranks) {
    launch.master = "mpi:";
  } else if (!launch.local_ranks && is_under_srun(environment)) {
    launch.master = slurm_master(environment);
  }
}

// torchrun's agent may listen on MASTER_PORT. Without TORCHELASTIC_RUN_ID there is no agent: the variables were set by
// hand or by another system, and the port is meant for rank 0.
void find_torchrun_master(Launch& launch, const Environment& environment, const Launcher& torchrun) {
  if (!environment("TORCHELASTIC_RUN_ID")) return use_master_variables(launch, environment);
  launch.master = text_of(environment, "MASTER_ADDR");
  if (const char* const port = environment("MASTER_PORT")) {
    launch.avoid_port = read_number("MASTER_PORT", port, torchrun);
  }
}

void find_slurm_master(Launch& launch, const Environment& environment, const Launcher&) {
  use_master_variables(launch, environment);
  if (launch.master.empty()) launch.master = slurm_master(environment);
  if (text_of(environment, "SLURM_STEP_NUM_NODES") == "1") launch.local_ranks = launch.ranks;
}

constexpr Variables kMpiJob = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "SLURM_JOB_ID",
                               "SLURM_STEP_ID"};
constexpr Variables kTorchrunJob = {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"};
constexpr Variables kSlurmJob = {"SLURM_JOB_ID", "SLURM_STEP_ID"};

constexpr Launcher kLaunchers[] = {
    {"--gpus", "GPT2_RANKS", "GPT2_RANK", "GPT2_LOCAL_RANK", "GPT2_LOCAL_RANKS", {"GPT2_JOB"}},
    {"mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", kMpiJob, find_mpi_master},
    {"mpiexec", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", kMpiJob, find_mpi_master},
    {"torchrun", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", kTorchrunJob, find_torchrun_master},
    {"srun", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", nullptr, kSlurmJob, find_slurm_master, is_under_srun},
};

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos);
}

} // namespace

Environment process_environment() {
  return [](const char* name) -> const char* { return std::getenv(name); };
}

std::string text_of(const Environment& environment, const char* variable) {
  const char* const text = environment(variable);
  return text ? text : "";
}

std::optional<Launch> find_launch(const Environment& environment) {
  for (const Launcher& launcher : kLaunchers) {
    if (auto launch = read_launch(launcher, environment)) return launch;
  }
  return std::nullopt;
}

Launch explicit_launch(int ranks, int rank, const std::string& master) {
  if (rank < 0 || rank >= ranks) {
    throw Error(ExitCode::usage, "--rank " + std::to_string(rank) + " is not below --ranks " + std::to_string(ranks),
                "give each process one of 0 to " + std::to_string(ranks - 1));
  }
  return {.program = "--ranks", .rank = rank, .ranks = ranks, .job = "--ranks " + master, .master = master};
}

bool on_one_host(const Launch& launch) {
  if (launch.master.empty() || launch.local_ranks == launch.ranks) return true;
  return launch.master != "mpi:" && !launch.master.starts_with("file:") &&
         is_loopback(parse_master(launch.master).host);
}

Endpoint parse_master(const std::string& master) {
  std::string host = master, port;
  const size_t colon = master.rfind(':');
  if (master.starts_with('[')) {
    const size_t end = master.find(']');
    host = master.substr(1, end - 1);
    if (end != std::string::npos && colon == end + 1) port = master.substr(colon);
  } else if (colon != std::string::npos &&
             master.find(':') == colon) { // two or more colons: an IPv6 address without a port
    host = master.substr(0, colon), port = master.substr(colon);
  }
  const std::optional<int> number = port.empty() ? 0 : read_port(std::string_view(port).substr(1));
  if (!number || host.empty()) {
    throw Error(ExitCode::usage, "'" + master + "' is not HOST[:PORT]", "a port is a number from 1 to 65535");
  }
  return {host, *number};
}

std::optional<int> read_port(std::string_view text) {
  const std::optional<int> port = parse_number<int>(text);
  return port && *port >= 1 && *port <= 65535 ? port : std::nullopt;
}

std::string first_host(const std::string& slurm_node_list) {
  std::string host;
  for (size_t at = 0; at < slurm_node_list.size() && slurm_node_list[at] != ','; ++at) {
    if (slurm_node_list[at] != '[') {
      host += slurm_node_list[at];
      continue;
    }
    const size_t end = slurm_node_list.find(']', at);
    host += slurm_node_list.substr(at + 1, slurm_node_list.find_first_of(",-]", at) - at - 1);
    if (end == std::string::npos) break;
    at = end;
  }
  return host;
}

} // namespace gpt2
