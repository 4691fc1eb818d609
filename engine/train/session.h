// A run, opened: its data, its plan, its model and everything that it writes to.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/data/loader.h"
#include "engine/dist/rank_group.h"
#include "engine/inference/tasks.h"
#include "engine/inference/text_codec.h"
#include "engine/io/checkpoint_folder.h"
#include "engine/io/folder_lock.h"
#include "engine/train/console.h"
#include "engine/train/resume.h"
#include "engine/train/run_log.h"
#include "engine/train/run_plan.h"

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

// --run_name, or one of the model, the precision and the date that no other run has.
std::string run_name_for(const Options& options, const std::string& checkpoint_dir, const GPT2Config& config,
                         Precision precision);

// The place in the order of the data means nothing in other data: throws Error(checkpoint) unless it is `allowed`.
// Answers a note where there is something to say, else "".
std::string check_same_data(const std::string& checkpoint, const TrainState& state, const std::string& data,
                            bool allowed);

// Members are opened in the order in which they stand here, and closed in reverse. What is cheap to refuse comes first;
// the locks come before the device, whose memory another run may hold; nothing is written before all else is known to
// work.
struct Session {
  // `backend`, `group` and `console` must outlive it. Ends by printing the notes and the start-up table.
  Session(const RunStart& start, const DeviceChoice& device, Backend& backend, RankGroup& group, Console& console);

  Backend& backend;
  RankGroup& group;
  Console& console;

  const GPT2Config config;
  const RunData data;
  const std::string checkpoint_dir, run_name, log_folder;
  std::optional<FolderLock> log_lock;        // rank 0 holds it for all
  std::optional<FolderLock> checkpoint_lock; // none where logs and checkpoints share a folder
  CheckpointFolder checkpoints;
  RunPlan plan;
  const TextCodec text;
  const std::vector<uint16_t> prompt;
  const std::vector<Task> hellaswag; // empty: not wanted
  const bool prompt_given;           // on this command line, not by the run that is resumed
  const std::unique_ptr<Model> model;
  const bool resumed;             // from a checkpoint
  const std::string resumed_from; // its folder
  TrainState state;
  RunLog log;
  Loader loader;
  const std::vector<HostBatch> validation; // empty: nothing to evaluate
};

} // namespace gpt2
