#include "engine/train/run_log.h"

#include <algorithm>
#include <vector>

#include "engine/base/files.h"

namespace gpt2 {
namespace {

constexpr size_t kHistogramValues = 1 << 18; // an even sample of a large tensor has the same shape

std::string metrics_path(const std::string& folder) {
  make_folders(folder);
  return folder + "/metrics.jsonl";
}

std::string verdict_text(Verdict verdict) {
  switch (verdict) {
    case Verdict::applied:
      return "applied";
    case Verdict::skipped_nonfinite:
      return "skipped_nonfinite";
    case Verdict::skipped_loss_z:
      return "skipped_loss_z";
    case Verdict::skipped_norm_z:
      return "skipped_norm_z";
  }
  return "unknown";
}

std::vector<float> evenly_sampled(const std::vector<float>& values) {
  if (values.size() <= kHistogramValues) return values;
  std::vector<float> sample(kHistogramValues);
  for (size_t i = 0; i < sample.size(); ++i) sample[i] = values[i * values.size() / sample.size()];
  return sample;
}

} // namespace

RunLog::RunLog(const std::string& folder, bool use_tensorboard, int64_t first_step)
    : metrics_(metrics_path(folder), first_step) {
  if (use_tensorboard) tensorboard_ = std::make_unique<TensorBoardLogger>(folder, first_step);
}

void RunLog::hparams(const RunPlan& plan, const ObservableModel& model) {
  if (!tensorboard_) return;
  const Options& o = plan.options;
  tensorboard_->add_hparams({{"model", plan.model.config.name},
                             {"precision", model.precision_label()},
                             {"fp8_format", name_of(o.fp8_format)},
                             {"max_lr", static_cast<double>(plan.schedule.max_lr)},
                             {"min_lr_ratio", static_cast<double>(o.min_lr_ratio)},
                             {"lr_schedule", name_of(o.lr_schedule)},
                             {"warmup_steps", static_cast<double>(plan.schedule.warmup_steps)},
                             {"max_steps", static_cast<double>(plan.max_steps)},
                             {"target_batch_size", static_cast<double>(plan.target_batch_size)},
                             {"batch_size", static_cast<double>(plan.batch.batch_size)},
                             {"seq_len", static_cast<double>(plan.model.seq_len)},
                             {"weight_decay", static_cast<double>(o.weight_decay)},
                             {"beta1", static_cast<double>(o.beta1)},
                             {"beta2", static_cast<double>(o.beta2)},
                             {"grad_clip", static_cast<double>(o.grad_clip)},
                             {"seed", static_cast<double>(o.seed)}},
                            "val/loss");
}

void RunLog::step(const StepReport& r, Verdict verdict, int64_t tokens) {
  metrics_.write(r.step, {{"epoch", r.epoch},
                          {"loss", r.loss},
                          {"lr", r.lr},
                          {"grad_norm", r.grad_norm},
                          {"dt_ms", 1e3 * r.seconds},
                          {"tokens_per_sec", r.tokens_per_second},
                          {"tokens", tokens},
                          {"precision", r.precision},
                          {"verdict", verdict_text(verdict)}});
  if (!tensorboard_) return;
  tensorboard_->add_scalar("train/loss", r.loss, r.step);
  tensorboard_->add_scalar("train/lr", r.lr, r.step);
  tensorboard_->add_scalar("train/grad_norm", r.grad_norm, r.step);
  tensorboard_->add_scalar("train/tokens_per_sec", r.tokens_per_second, r.step);
  if (r.speed_of_light) tensorboard_->add_scalar("train/speed_of_light", *r.speed_of_light, r.step);
}

void RunLog::validation(int64_t step, double loss) {
  metrics_.write(step, {{"val_loss", loss}});
  if (tensorboard_) tensorboard_->add_scalar("val/loss", loss, step);
}

void RunLog::sample(int64_t step, const std::string& text) {
  if (tensorboard_) tensorboard_->add_text("sample", "```\n" + text + "\n```", step);
}

void RunLog::device(int64_t step, std::span<const DeviceMetric> metrics) {
  if (!tensorboard_) return;
  for (const DeviceMetric& metric : metrics) tensorboard_->add_scalar(metric.name, metric.value, step);
}

void RunLog::tensors(int64_t step, ObservableModel& model, int64_t tokens) {
  if (!tensorboard_) return;
  const float per_token = 1.0f / static_cast<float>(std::max<int64_t>(tokens, 1)); // 0: every target was ignored
  for (const ParameterTensor& tensor : model.parameters().tensors()) {
    const auto weights = model.read_tensor(tensor, TensorKind::weight);
    tensorboard_->add_histogram("weights/" + tensor.name, evenly_sampled(weights.values), step);
    std::vector<float> gradients = evenly_sampled(model.read_tensor(tensor, TensorKind::gradient).values);
    for (float& gradient : gradients) gradient *= per_token;
    tensorboard_->add_histogram("gradients/" + tensor.name, gradients, step);
  }
  for (const Fp8TensorStats& stats : model.fp8_stats()) {
    tensorboard_->add_scalar("fp8/" + stats.tensor.text() + "/scale", stats.scale, step);
    if (stats.fixed_scale) continue;
    tensorboard_->add_scalar("fp8/" + stats.tensor.text() + "/amax", stats.amax, step);
    tensorboard_->add_scalar("fp8/" + stats.tensor.text() + "/saturated", stats.saturated, step);
    tensorboard_->add_scalar("fp8/" + stats.tensor.text() + "/flushed", stats.flushed, step);
  }
}

void RunLog::fallback(int64_t step, int block, const std::string& line) {
  metrics_.write(step, {{"fp8_fallback_block", int64_t{block}}, {"fp8_fallback_reason", line}});
  if (tensorboard_) tensorboard_->add_text("fp8/fallback", line, step);
}

void RunLog::flush() {
  metrics_.flush();
  if (tensorboard_) tensorboard_->flush();
}

} // namespace gpt2
