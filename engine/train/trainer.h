// The training loop: steps, and between them evaluation, samples and checkpoints.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/backend/backend.h"
#include "engine/base/error.h"
#include "engine/data/loader.h"
#include "engine/dist/communicator.h"
#include "engine/io/checkpoint.h"
#include "engine/io/folder_lock.h"
#include "engine/train/console.h"
#include "engine/train/fp8_guard.h"
#include "engine/train/run_data.h"
#include "engine/train/run_log.h"
#include "engine/train/run_plan.h"
#include "engine/train/run_start.h"
#include "engine/train/sampling.h"

namespace gpt2 {

class Trainer {
 public:
  // Opens data, checks every output folder, builds or restores the model and prints the start-up table. `backend`,
  // `communicator` and `console` must outlive it.
  Trainer(const RunStart& start, const DeviceChoice& device, Backend& backend, const Communicator& communicator,
          Console& console);

  // Trains to the last step: ExitCode::done, or stopped_early after a signal, saved. Throws Error(numerics) after
  // --max_skipped skipped steps in a row.
  ExitCode run();

  const RunPlan& plan() const { return plan_; }
  const TrainState& state() const { return state_; }
  Model& model() { return *model_; }

 private:
  void restore(const std::string& checkpoint);
  void note_older_checkpoints(std::vector<std::string>& notes) const;
  void print_start(const std::vector<std::string>& notes);

  UpdateSettings update_settings(float lr) const;
  void finish_step(const StepResult& result, float lr, double seconds);
  void count_skipped(const StepResult& result);
  void watch_device();
  void watch_fp8();
  bool due(int64_t frequency) const { return frequency > 0 && state_.step % frequency == 0; }
  bool evaluate(); // true: the best so far
  void sample();
  void save(bool is_best);

  ExitCode finish();
  ExitCode stop_early();
  ExitCode nothing_left();

  int64_t epoch() const { return state_.loader_position / data_.train->sequences(); }

  Backend& backend_;
  const Communicator& communicator_;
  Console& console_;

  RunData data_;
  RunPlan plan_;
  TrainState state_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<TextCodec> text_;
  std::vector<uint16_t> prompt_;
  CheckpointFolder checkpoints_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<FolderLock> log_lock_, checkpoint_lock_; // before what they guard: let go after it
  std::unique_ptr<RunLog> log_;
  std::vector<HostBatch> validation_;

  double smoothed_seconds_ = 0; // of a step, for the ETA
  int skipped_in_a_row_ = 0;
  bool throttling_told_ = false;
  Fp8Guard fp8_guard_;
  int64_t sampled_step_ = -1, saved_step_ = -1; // with state_.last_val_step, so that the end does nothing twice
  std::string extra_best_;                      // the last checkpoint saved only because it was the best
};

} // namespace gpt2
