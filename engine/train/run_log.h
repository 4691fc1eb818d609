// Everything a run writes to its log folder: TensorBoard events and metrics.jsonl.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/io/metrics.h"
#include "engine/io/tensorboard.h"
#include "engine/model/model.h"
#include "engine/train/report.h"
#include "engine/train/run_plan.h"

namespace gpt2 {

class RunLog {
 public:
  // `first_step` is the next step that will be logged: 0 for a new run. Throws Error(disk).
  RunLog(const std::string& folder, bool use_tensorboard, int64_t first_step);

  void hparams(const RunPlan& plan, const ObservableModel& model);
  void step(const StepReport& report, Verdict verdict, int64_t tokens);
  void validation(int64_t step, double loss);
  void sample(int64_t step, const std::string& text);
  void device(int64_t step, std::span<const DeviceMetric> metrics);
  // Histograms of weights and gradients, FP8 statistics. `tokens`, those of the step, turn the model's gradients of the
  // sum over tokens into those of the mean: what train/grad_norm is the norm of.
  void tensors(int64_t step, ObservableModel& model, int64_t tokens);
  void fallback(int64_t step, int block, const std::string& line); // a block goes on in BF16
  void flush();

 private:
  MetricsLog metrics_;
  std::unique_ptr<TensorBoardLogger> tensorboard_; // null: not wanted
};

} // namespace gpt2
