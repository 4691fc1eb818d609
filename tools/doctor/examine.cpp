#include <unistd.h>

#include <optional>
#include <thread>

#include "engine/backend/backend.h"
#include "engine/base/log.h"
#include "engine/system/process.h"
#include "tools/doctor/checks.h"

namespace gpt2 {
namespace {

void check_machine(const Report& report) {
  const double memory = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  report({"program", Level::ok, "train_gpt2_fp8 " GPT2_VERSION ", " + cuda_version()});
  report({"machine", Level::ok,
          host_name() + ": " + std::to_string(std::thread::hardware_concurrency()) + " cores, " + format_bytes(memory) +
              " of memory"});
}

} // namespace

std::vector<Finding> examine(const CommandLine& command_line, const std::string& verified_data, const Report& report) {
  std::vector<Finding> findings;
  const Report keep = [&](const Finding& finding) {
    findings.push_back(finding);
    report(finding);
  };
  std::optional<PlannedRun> run;
  std::optional<Error> refused;
  try {
    run = plan_run(command_line, planned_ranks(command_line.options, process_environment()), 0);
  } catch (const Error& error) {
    if (error.code() == ExitCode::usage) throw;
    refused = error;
  }

  check_machine(keep);
  check_gpus(command_line.options, keep);
  check_cpu_engine(keep);
  if (refused) keep({"plan of the run", Level::fail, refused->what(), refused->hint(), refused->code()});
  check_data(run ? &run->data : nullptr, verified_data, keep);
  const Options& options = run ? run->settings.options : command_line.options;
  const Precision precision = options.precision == PrecisionChoice::bf16 ? Precision::bf16 : Precision::fp8;
  check_storage(run ? &*run : nullptr, run ? run->plan.options.checkpoint_dir : checkpoint_dir_for(options, precision),
                keep);
  if (run) check_run(*run, keep);
  return findings;
}

} // namespace gpt2
