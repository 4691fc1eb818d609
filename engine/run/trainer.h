// The training loop: steps, and between them evaluation, samples and checkpoints.
#pragma once

#include <exception>
#include <optional>
#include <span>
#include <string>

#include "engine/base/error.h"
#include "engine/data/bad_tokens.h"
#include "engine/logging/progress.h"
#include "engine/run/fp8_monitor.h"
#include "engine/run/multi_rank.h"
#include "engine/run/save_policy.h"
#include "engine/run/session.h"
#include "engine/system/process.h"

namespace gpt2 {

class Trainer {
 public:
  explicit Trainer(Session& session); // which must outlive it

  // Trains to the last step: ExitCode::done, or stopped_early after a signal, saved if it took a step and the weights
  // are sound. Throws Error(numerics) after --max_skipped skipped steps in a row, or if the run ends with a skipped
  // step or a validation loss that is not finite. One process saves its weights before it ends with an error of its
  // data or its memory.
  ExitCode run();

 private:
  ExitCode train();
  void step();
  void fetch();
  const HostBatch& fetched();
  void between_steps();
  UpdateSettings update_settings(float lr) const;
  void report_step(float lr, double seconds);
  std::optional<StepReport::MuonStep> muon_step(float lr) const;
  void count_skipped();
  void watch_device();
  void watch_fp8();
  void log_tensors();
  void log_fp8(std::span<const Fp8TensorStats> stats);
  // One process obeys at once; ranks do when all have heard of it, with the step's sums or during an evaluation.
  bool stopping() const { return session_.group.alone() ? stop_.requested() : result_.stop_requested || stop_agreed_; }
  bool due(int64_t frequency) const { return frequency > 0 && state_.step % frequency == 0; }
  bool anything_due() const;
  bool evaluate(); // true: the best so far
  void make_up_missing();
  void score_hellaswag(); // or, after a signal, leaves it due
  void sample();          // the same

  void probe(); // are the weights sound that the last update has left?
  void rescue();
  void end_save_under_way();
  ExitCode finish();
  ExitCode stop_early();
  void tell_left_out();
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
  HostBatch batch_;                // the next micro-batch, fetched while the device works
  std::exception_ptr fetch_error_; // instead of it
  DataWatch data_watch_;
  StepResult result_;        // of the last step
  int64_t first_step_ = 0;   // where this process began
  bool stop_agreed_ = false; // many ranks, beside result_.stop_requested
  bool updating_ = false;    // the weights are between two steps
  bool before_fp8_ = false;  // as of the last step
  bool throttling_told_ = false;
  const ModelOptions in_bf16_; // what it is before FP8 begins
  Fp8Guard fp8_guard_;
  Fp8LagWatch fp8_lag_;
  const int64_t histogram_freq_;
  SoundSaves saves_;
  // With state_.last_val_step, so that the end does nothing twice.
  int64_t hellaswag_step_ = -1, sampled_step_ = -1, tensors_step_ = -1, fp8_step_ = -1;
};

} // namespace gpt2
