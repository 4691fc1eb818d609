// --plan: a run worked out to the last number and not started. The same options are refused with the same words and
// exit codes as by a start. Its folders are made and locked for a moment, to see whether they can be; nothing stays.
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
  bool assumed = false;                     // the device is not in this machine
  std::vector<MemoryLine> memory = {};      // of each rank; empty: not known
  std::optional<int64_t> device_bytes = {}; // free on the GPU
  RunPlace place;
  int64_t free_disk = 0;                        // bytes, where the checkpoints will be
  int64_t done = 0;                             // steps of the checkpoint
  std::optional<double> tokens_per_second = {}; // of all ranks
  std::string speed_from = {};                  // where that number is from
  RunCost cost = {};
  std::vector<std::string> notes = {};

  int64_t evaluated() const; // sequences of one evaluation; 0: there are none
  std::optional<double> gpu_hours() const;
};

// How many ranks the run would have: of --gpus, of a launcher, or one.
int planned_ranks(const Options& options, const Environment& environment);

// `measure_seconds`: train so long, on this machine and alone, for the speed; 0: from what was measured before.
PlannedRun plan_run(const CommandLine& command_line, int ranks, double measure_seconds);

std::vector<TableSection> plan_table(const PlannedRun& run);
std::string plan_json(const PlannedRun& run); // one line, numbers in bytes, seconds and tokens

} // namespace gpt2
