// An open run: data, plan, model and outputs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/checkpoint/folder.h"
#include "engine/data/loader.h"
#include "engine/logging/console.h"
#include "engine/options/run_plan.h"
#include "engine/ranks/rank_group.h"
#include "engine/run/run_log.h"
#include "engine/run/run_settings.h"
#include "engine/system/folder_lock.h"
#include "engine/system/process.h"
#include "engine/text/tasks.h"
#include "engine/text/text_codec.h"

namespace gpt2 {

// The shards of the options, or the built-in sample.
struct RunData {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> validation; // null: none given
  std::string train_from, validation_from;   // globs, or "built-in sample"
  bool built_in = false;
  std::optional<double> entropy;  // nats per token: lower bound of the built-in sample's validation loss
  std::vector<std::string> notes; // one line per fallback
};

// Throws Error(data) for unusable shards.
RunData open_run_data(const Options& options, const GPT2Config& config);

// For --hellaswag_freq; empty without it. The tasks are split over ranks: all must have the same ones.
std::vector<Task> open_hellaswag(const Options& options, int seq_len, RankGroup& group);

// A position in the data order is meaningless in other data: throws Error(checkpoint) unless `allowed`. Returns a note
// or "".
std::string check_same_data(const ResumePoint& point, const std::string& data, bool allowed);

// Work due at the resumed step that a signal prevented.
struct MissingWork {
  bool evaluation = false, hellaswag = false, sample = false;
  bool any() const { return evaluation || hellaswag || sample; }
};

// Members open in declaration order and close in reverse. Cheap checks come first; the locks come before the device,
// whose memory another run may hold; the first write comes after everything else has worked.
struct Session {
  // `backend`, `group` and `console` must outlive it. Prints the notes and the start-up table.
  Session(const RunSettings& settings, const DeviceChoice& device, Backend& backend, RankGroup& group,
          Console& console);

  Backend& backend;
  RankGroup& group;
  Console& console;
  const Warn warn; // above the progress bar; ranks other than 0 print nothing there: theirs goes to stderr

  const GPT2Config config;
  const RunData data;
  const RunPlace place;
  const StopSignal stop;                     // deferred once the log is open
  std::optional<UnusedFolders> unused;       // on rank 0: a run without a step leaves no folder
  std::optional<FolderLock> log_lock;        // held by rank 0
  std::optional<FolderLock> checkpoint_lock; // nullopt if logs and checkpoints share a folder
  RunPlan plan;
  CheckpointFolder checkpoints;
  const TextCodec text;
  const std::vector<uint16_t> prompt;
  const std::vector<Task> hellaswag; // empty: off
  const bool prompt_given;           // on this command line, not by the resumed run
  const std::unique_ptr<Model> model;
  const std::optional<ResumePoint> resumed;
  TrainState state;
  const std::vector<HostBatch> validation; // empty: no evaluation
  const MissingWork missing;
  RunLog log; // writes nothing if no work is left
  Loader loader;

  bool work_left() const { return state.step < plan.max_steps || missing.any(); }
};

} // namespace gpt2
