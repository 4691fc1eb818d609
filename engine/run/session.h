// A run, opened: its data, its plan, its model and everything that it writes to.
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
#include "engine/text/tasks.h"
#include "engine/text/text_codec.h"

namespace gpt2 {

// The shards that were asked for, or the built-in sample.
struct RunData {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> validation; // null: none was given
  std::string train_from, validation_from;   // patterns, or words for the built-in sample
  bool built_in = false;
  std::optional<double> entropy;  // nats per token: the floor of the built-in sample's validation loss
  std::vector<std::string> notes; // one line for each fallback taken
};

// Throws Error(data) for shards that cannot be used.
RunData open_run_data(const Options& options, const GPT2Config& config);

// For --hellaswag_freq; empty without it. Ranks that share the tasks must have the same ones.
std::vector<Task> open_hellaswag(const Options& options, int seq_len, RankGroup& group);

// The place in the order of the data means nothing in other data: throws Error(checkpoint) unless it is `allowed`.
// Answers a note where there is something to say, else "".
std::string check_same_data(const ResumePoint& point, const std::string& data, bool allowed);

// What was due at the step that is resumed and is not done: the signal that ended the run came first.
struct MissingWork {
  bool evaluation = false, hellaswag = false, sample = false;
  bool any() const { return evaluation || hellaswag || sample; }
};

// Members are opened in the order in which they stand here, and closed in reverse. What is cheap to refuse comes first;
// the locks come before the device, whose memory another run may hold; nothing is written before all else is known to
// work.
struct Session {
  // `backend`, `group` and `console` must outlive it. Ends by printing the notes and the start-up table.
  Session(const RunSettings& settings, const DeviceChoice& device, Backend& backend, RankGroup& group,
          Console& console);

  Backend& backend;
  RankGroup& group;
  Console& console;

  const GPT2Config config;
  const RunData data;
  const RunPlace place;
  std::optional<FolderLock> log_lock;        // rank 0 holds it for all
  std::optional<FolderLock> checkpoint_lock; // none where logs and checkpoints share a folder
  RunPlan plan;
  CheckpointFolder checkpoints;
  const TextCodec text;
  const std::vector<uint16_t> prompt;
  const std::vector<Task> hellaswag; // empty: not wanted
  const bool prompt_given;           // on this command line, not by the run that is resumed
  const std::unique_ptr<Model> model;
  const std::optional<ResumePoint> resumed;
  TrainState state;
  const std::vector<HostBatch> validation; // empty: nothing to evaluate
  const MissingWork missing;
  RunLog log; // writes nothing if nothing is left to do
  Loader loader;

  bool work_left() const { return state.step < plan.max_steps || missing.any(); }
};

} // namespace gpt2
