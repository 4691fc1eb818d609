// The training loop: steps, with evaluation, samples and checkpoints between them.
#pragma once

#include <exception>
#include <optional>
#include <span>

#include "engine/base/error.h"
#include "engine/base/stopwatch.h"
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

  // Trains to the last step: ExitCode::done, or stopped_early after a signal, saved if a step was done and the weights
  // are sound. Throws Error(numerics) after --max_skipped skipped steps in a row, or if the run ends with a skipped
  // step or a non-finite validation loss. A single process first saves if its data or host memory fails.
  ExitCode run();

 private:
  ExitCode train();
  bool step(); // false: a stop signal came, and the step is discarded
  bool discards_step(int micro_batch);
  void fetch();
  const HostBatch& fetched();
  void between_steps();
  void report_step(float lr, double seconds);
  std::optional<StepReport::MuonStep> muon_step(float lr) const;
  void count_skipped();
  void watch_device();
  void watch_fp8();
  void log_tensors();
  void log_fp8(std::span<const Fp8TensorStats> stats);
  // A single process stops after this step; ranks stop once all know, by the step's sums or during an evaluation.
  bool stopping() const { return session_.group.alone() ? stop_.requested() : result_.stop_requested || stop_agreed_; }
  bool due(int64_t frequency) const { return frequency > 0 && state_.step % frequency == 0; }
  bool anything_due() const;
  bool save_due() const { return due(options_.checkpoint_freq) || state_.step == before_cooldown_; }
  bool evaluate(); // true: best so far
  void make_up_missing();
  void score_hellaswag(); // after a signal: leaves it due
  void sample();          // likewise

  void probe(); // checks the loss of the weights after the last update
  void rescue();
  void wind_up(bool try_to_save); // before an error ends the run
  ExitCode finish();
  ExitCode stop_early();
  void report_left_out();
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
  std::exception_ptr fetch_error_; // set instead of batch_
  DataWatch data_watch_;
  StepResult result_;                         // of the last step
  int64_t first_step_ = 0, first_tokens_ = 0; // completed before this process started
  Stopwatch watch_;                           // since then
  bool stop_agreed_ = false;                  // several ranks, besides result_.stop_requested
  bool updating_ = false;                     // the weights may be half updated
  bool before_fp8_ = false;                   // as of the last step
  bool throttling_reported_ = false;
  Fp8Guard fp8_guard_;
  Fp8LagWatch fp8_lag_;
  const int64_t histogram_freq_;
  const int64_t before_cooldown_; // step to save: KeepRule
  SavePolicy saves_;
  // Steps of the last such work, as state_.last_val_step: finish() repeats none of it.
  int64_t hellaswag_step_ = -1, sampled_step_ = -1, tensors_step_ = -1, fp8_step_ = -1;
};

} // namespace gpt2
