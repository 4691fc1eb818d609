// --plan: computes a run without starting it. Invalid options are refused with the same messages and exit codes as by a
// run. The folders of the run are created and locked for a moment, to check permissions, and removed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/logging/console.h"
#include "engine/options/parse_options.h"
#include "engine/rendezvous/launcher.h"
#include "engine/run/session.h"
#include "tools/plan/run_cost.h"

namespace gpt2 {

struct PlannedRun {
  RunSettings settings;
  RunPlan plan;
  RunData data;
  int ranks = 1;
  bool gpu = false;
  std::string device;
  bool assumed = false;                     // this machine has no such device
  std::string asked_for = {}, figures = {}; // --for; figures of an assumed GPU
  std::vector<MemoryLine> memory = {};      // per rank; empty: unknown
  std::optional<int64_t> device_bytes = {}; // free on the GPU
  RunPlace place;
  int64_t free_disk = 0;                        // bytes, at the checkpoint folder
  int64_t done = 0;                             // steps, of the resumed checkpoint
  std::optional<double> tokens_per_second = {}; // of all ranks
  std::string speed_from = {};                  // source of tokens_per_second
  RunCost cost = {};
  std::vector<std::string> notes = {};

  int64_t evaluated() const; // sequences per evaluation; 0: no evaluations
  std::optional<double> gpu_hours() const;
};

// Number of ranks of the run: from --gpus, --ranks, a launcher, or 1.
int planned_ranks(const Options& options, const Environment& environment);

// `measure_seconds`: train for this time in one process to measure the speed; 0: use docs/benchmarks.md.
PlannedRun plan_run(const CommandLine& command_line, int ranks, double measure_seconds);

std::vector<TableSection> plan_table(const PlannedRun& run);
std::string plan_json(const PlannedRun& run); // one line, numbers in bytes, seconds and tokens

} // namespace gpt2
