// The training loop: steps, and between them evaluation, samples and checkpoints.
#pragma once

#include <span>
#include <string>

#include "engine/base/error.h"
#include "engine/base/process.h"
#include "engine/train/fp8_watch.h"
#include "engine/train/many_ranks.h"
#include "engine/train/progress.h"
#include "engine/train/session.h"

namespace gpt2 {

class Trainer {
 public:
  explicit Trainer(Session& session); // which must outlive it

  // Trains to the last step: ExitCode::done, or stopped_early after a signal, saved if it took a step. Throws
  // Error(numerics) after
  // --max_skipped skipped steps in a row.
  ExitCode run();

 private:
  ExitCode train();
  void step();
  void between_steps();
  UpdateSettings update_settings(float lr) const;
  void report_step(float lr, double seconds);
  void count_skipped();
  void watch_device();
  void watch_fp8();
  void log_tensors();
  void log_fp8(std::span<const Fp8TensorStats> stats);
  // One process obeys at once; ranks do when all have heard of it, with the step's sums.
  bool stopping() const { return session_.group.alone() ? stop_.requested() : result_.stop_requested; }
  bool due(int64_t frequency) const { return frequency > 0 && state_.step % frequency == 0; }
  bool evaluate(); // true: the best so far
  void sample();
  void save(bool is_best); // begins to: a thread writes while training goes on
  void end_save_if_written();
  enum class IfNotSaved { go_on, stop };
  void wait_for_save(IfNotSaved);
  void tell(const SaveResult& result, IfNotSaved);

  ExitCode finish();
  ExitCode stop_early();
  ExitCode nothing_left();

  Session& session_;
  const RunPlan& plan_;
  const Options& options_;
  Model& model_;
  TrainState& state_;
  Console& console_;

  const StopSignal stop_;
  StragglerWatch stragglers_;
  Progress progress_;
  HostBatch batch_;        // the next micro-batch, fetched while the device works
  StepResult result_;      // of the last step
  int64_t first_step_ = 0; // where this process began
  int skipped_in_a_row_ = 0;
  bool throttling_told_ = false;
  Fp8Guard fp8_guard_;
  const int64_t histogram_freq_;
  // With state_.last_val_step, so that the end does nothing twice.
  int64_t sampled_step_ = -1, saved_step_ = -1, tensors_step_ = -1, fp8_step_ = -1;
};

} // namespace gpt2
