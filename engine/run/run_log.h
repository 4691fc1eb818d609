// Everything a run writes to its log folder: TensorBoard events and metrics.jsonl (docs/metrics.md).
//
// TensorBoard sorts groups (the part of a tag before the slash) by name and opens the first two. Names of the other
// groups therefore sort after train and val: vitals_fp8, vitals_gpu, weights, weights_grad.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/logging/metrics.h"
#include "engine/logging/step_report.h"
#include "engine/logging/tensorboard.h"
#include "engine/model/model.h"
#include "engine/options/run_plan.h"
#include "engine/ranks/rank_group.h"
#include "engine/run/fp8_monitor.h"
#include "engine/text/task_scores.h"

namespace gpt2 {

class RunLog {
 public:
  // `first_step` is the next step to log: 0 for a new run. `file`: name of the metrics file in `folder`; empty: nothing
  // is written. Throws Error(disk); once open, a failure is only a line to `warn`.
  RunLog(const std::string& folder, bool use_tensorboard, int64_t first_step, const std::string& file,
         const Warn& warn);
  ~RunLog(); // removes the files of a new run that did not complete a step

  // The first line of every start of a run, after `step` completed steps; TensorBoard's hparams.
  void begin(int64_t step, const RunPlan& plan, const ObservableModel& model);
  void step(const StepReport& report, Verdict verdict, int64_t tokens);
  void validation(int64_t step, double loss, bool is_best);
  void hellaswag(int64_t step, const Accuracy& scores);
  void sample(int64_t step, const std::string& text);
  void device(int64_t step, std::span<const DeviceMetric> metrics);
  // Histograms of weights and gradients; collective, each rank passes its shards. `tokens` of the step scale gradients
  // of the sum over tokens to gradients of the mean, as in train/grad_norm.
  void tensors(int64_t step, ObservableModel& model, int64_t tokens, RankGroup& group);
  void fp8(int64_t step, const Fp8Summary& summary);
  void fp8_detail(int64_t step, std::span<const Fp8TensorStats> stats); // by kind; single tensors only in metrics.jsonl
  // A warning, as printed. TensorBoard shows it under `tag`; empty: not.
  void event(int64_t step, const std::string& what, const std::string& text, std::vector<Metric> more = {},
             const std::string& tag = "");
  void saved(int64_t step, const std::string& path, bool is_best);
  void flush();

 private:
  void scalar(const std::string& tag, double value, int64_t step);
  void write(std::string_view type, int64_t step, const std::vector<Metric>& metrics);

  std::vector<std::string> removable_; // this start's files, until it completes a step
  std::optional<MetricsLog> metrics_;
  std::unique_ptr<TensorBoardLogger> tensorboard_; // null: off
};

} // namespace gpt2
