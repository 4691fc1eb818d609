#include "engine/run/run_log.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <thread>

#include "engine/base/enum_names.h"
#include "engine/base/utf8.h"
#include "engine/options/option_fields.h"
#include "engine/system/process.h"

namespace gpt2 {

constexpr auto names_of(Verdict) {
  using enum Verdict;
  return std::to_array<EnumName<Verdict>>({{applied, "applied"},
                                           {skipped_nonfinite, "skipped_nonfinite"},
                                           {skipped_loss_z, "skipped_loss_z"},
                                           {skipped_norm_z, "skipped_norm_z"}});
}

namespace {

constexpr size_t kHistogramValues = 1 << 18; // an even sample of a large tensor has the same shape

// TOML values of options (numbers, true, false, quoted text) are JSON too.
JsonText options_json(const Options& options) {
  std::string json;
  for (const OptionField& field : option_fields()) {
    if (field.not_stored) continue;
    json += (json.empty() ? "{\"" : ",\"") + field.name + "\":" + field.toml(options);
  }
  return JsonText(to_valid_utf8(json) + "}");
}

// Only options that affect this run: each becomes a column when runs are compared.
std::map<std::string, HParam> hparams_of(const RunPlan& plan, const ObservableModel& model) {
  const Options& o = plan.options;
  std::map<std::string, HParam> hparams = {
      {"model", plan.model.config.name},
      {"precision", model.precision_label()},
      {"optimizer", name_of(o.optimizer)},
      {"max_lr", static_cast<double>(plan.schedule.max_lr)},
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
      {"seed", static_cast<double>(o.seed)},
  };
  if (o.optimizer == Optimizer::muon) hparams["adamw_lr"] = static_cast<double>(o.adamw_lr);
  if (o.lr_schedule != Decay::constant) hparams["min_lr_ratio"] = static_cast<double>(o.min_lr_ratio);
  if (o.lr_schedule == Decay::wsd) hparams["wsd_decay_ratio"] = static_cast<double>(o.wsd_decay_ratio);
  if (plan.model.precision == Precision::fp8) {
    hparams["fp8_format"] = name_of(o.fp8_format);
    hparams["fp8_recipe"] = name_of(o.fp8_recipe);
    hparams["fp8_bf16_steps"] = static_cast<double>(o.fp8_bf16_steps);
    hparams["fp8_current_steps"] = static_cast<double>(o.fp8_current_steps);
    hparams["fp8_margin"] = static_cast<double>(o.fp8_margin);
    hparams["fp8_lm_head"] = o.fp8_lm_head;
  }
  return hparams;
}

// Escapes text for Markdown. Line breaks stay; the browser wraps long lines.
std::string as_markdown(const std::string& text) {
  std::string out;
  bool line_begins = true;
  for (const char c : text) {
    if (c == '\n')
      out += "  \n"; // line break within a paragraph
    else if (c == ' ' && line_begins)
      out += "&nbsp;"; // four spaces would be code
    else if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '|')
      out += "&#124;"; // table delimiter
    else if (std::string_view("\\`*_{}[]()#+-.!>").find(c) != std::string_view::npos)
      out += '\\', out += c;
    else
      out += c;
    line_begins = c == '\n' || (c == ' ' && line_begins);
  }
  return out;
}

std::vector<float> evenly_sampled(const std::vector<float>& values, size_t most) {
  if (values.size() <= most) return values;
  std::vector<float> sample(most);
  for (size_t i = 0; i < sample.size(); ++i) sample[i] = values[i * values.size() / sample.size()];
  return sample;
}

// On rank 0: a sample of the values of all ranks.
std::vector<float> gathered(RankGroup& group, const std::vector<float>& mine) {
  const std::vector<float> sample = evenly_sampled(mine, kHistogramValues / static_cast<size_t>(group.ranks()));
  if (group.alone()) return sample;
  std::vector<float> all;
  for (const std::string& part : group.gather({reinterpret_cast<const char*>(sample.data()), sample.size() * 4})) {
    if (part.empty()) continue; // a rank without a shard of this tensor
    const size_t before = all.size();
    all.resize(before + part.size() / sizeof(float));
    std::memcpy(all.data() + before, part.data(), part.size());
  }
  return all;
}

} // namespace

RunLog::RunLog(const std::string& folder, bool use_tensorboard, int64_t first_step, const std::string& file,
               const Warn& warn) {
  if (file.empty()) return;
  const std::string path = folder + "/" + file;
  std::error_code absent;
  const bool is_new = !std::filesystem::exists(path, absent); // else the log of an earlier run
  metrics_.emplace(path, first_step, warn);
  if (use_tensorboard) tensorboard_ = std::make_unique<TensorBoardLogger>(folder, first_step, warn);
  if (first_step > 0 || !is_new) return;
  removable_.push_back(path);
  if (tensorboard_) removable_.push_back(tensorboard_->path());
}

RunLog::~RunLog() {
  metrics_.reset();
  tensorboard_.reset();
  std::error_code ignored;
  for (const std::string& file : removable_) std::filesystem::remove(file, ignored);
}

void RunLog::begin(int64_t step, const RunPlan& plan, const ObservableModel& model) {
  write("run", step,
        {{"event", step == 0 ? "start" : "resume"},
         {"run_name", plan.options.run_name},
         {"version", GPT2_VERSION},
         {"host", host_name()},
         {"cpu_threads", static_cast<int64_t>(std::thread::hardware_concurrency())},
         {"device", model.device_name()},
         {"precision", model.precision_label()},
         {"parameters", parameter_count(plan.model.config)},
         {"layers", int64_t{plan.model.config.layers}},
         {"channels", int64_t{plan.model.config.channels}},
         {"max_steps", plan.max_steps},
         {"tokens_per_step", plan.tokens_per_step()},
         {"options", options_json(plan.options)}});
  if (tensorboard_) tensorboard_->add_hparams(hparams_of(plan, model), "val/loss");
}

void RunLog::write(std::string_view type, int64_t step, const std::vector<Metric>& metrics) {
  if (type != "run") removable_.clear(); // the run has done something
  if (metrics_) metrics_->write(type, step, metrics);
}

void RunLog::scalar(const std::string& tag, double value, int64_t step) {
  if (tensorboard_) tensorboard_->add_scalar(tag, value, step);
}

void RunLog::step(const StepReport& r, Verdict verdict, int64_t tokens) {
  std::vector<Metric> metrics = {
      {"epoch", r.epoch},         {"loss", r.loss},           {"lr", r.lr},
      {"grad_norm", r.grad_norm}, {"dt_ms", 1e3 * r.seconds}, {"tokens_per_sec", r.tokens_per_second},
      {"tokens", tokens},         {"precision", r.precision}, {"verdict", name_of(verdict)}};
  if (r.speed_of_light) metrics.push_back({"speed_of_light", *r.speed_of_light});
  if (r.muon) {
    metrics.push_back({"adamw_lr", r.muon->adamw_lr});
    metrics.push_back({"update_norm", r.muon->update_norm});
    metrics.push_back({"adamw_update_norm", r.muon->adamw_update_norm});
  }
  write("step", r.step, metrics);
  scalar("train/loss", r.loss, r.step);
  scalar("train/lr", r.lr, r.step);
  scalar("train/grad_norm", r.grad_norm, r.step);
  scalar("train/tokens_per_sec", r.tokens_per_second, r.step);
  if (r.speed_of_light) scalar("train/speed_of_light", *r.speed_of_light, r.step);
  if (!r.muon) return;
  scalar("train/adamw_lr", r.muon->adamw_lr, r.step);
  scalar("train/update_norm", r.muon->update_norm, r.step);
  scalar("train/adamw_update_norm", r.muon->adamw_update_norm, r.step);
}

void RunLog::validation(int64_t step, double loss, bool is_best) {
  write("validation", step, {{"val_loss", loss}, {"best", is_best}});
  scalar("val/loss", loss, step);
}

void RunLog::hellaswag(int64_t step, const Accuracy& scores) {
  write("hellaswag", step,
        {{"tasks", scores.tasks},
         {"accuracy", scores.summed},
         {"per_token", scores.per_token},
         {"per_byte", scores.per_byte}});
  scalar("val/hellaswag", scores.per_token, step);
}

void RunLog::sample(int64_t step, const std::string& text) {
  write("sample", step, {{"text", text}});
  if (tensorboard_) tensorboard_->add_text("sample", as_markdown(text), step);
}

void RunLog::device(int64_t step, std::span<const DeviceMetric> metrics) {
  if (metrics.empty()) return;
  std::vector<Metric> fields;
  for (const DeviceMetric& metric : metrics) {
    std::string name = metric.name; // "gpu/power_watts", and gpu_power_watts as a column
    std::replace(name.begin(), name.end(), '/', '_');
    fields.push_back({name, metric.value});
    scalar("vitals_" + metric.name, metric.value, step);
  }
  write("device", step, fields);
}

void RunLog::tensors(int64_t step, ObservableModel& model, int64_t tokens, RankGroup& group) {
  if (group.alone() && !tensorboard_) return;
  const float per_token = 1.0f / static_cast<float>(std::max<int64_t>(tokens, 1)); // 0: every target was ignored
  for (const ParameterTensor& tensor : model.parameters().tensors()) {
    const std::vector<float> weights = gathered(group, model.read_tensor(tensor, TensorKind::weight).values);
    std::vector<float> gradients = gathered(group, model.read_tensor(tensor, TensorKind::gradient).values);
    if (!tensorboard_) continue;
    tensorboard_->add_histogram("weights/" + tensor.name, weights, step);
    for (float& gradient : gradients) gradient *= per_token;
    tensorboard_->add_histogram("weights_grad/" + tensor.name, gradients, step);
  }
}

void RunLog::fp8(int64_t step, const Fp8Summary& s) {
  write("fp8", step,
        {{"fwd_scale", s.forward_scale},
         {"bwd_scale", s.backward_scale},
         {"worst_saturated", s.worst_saturated},
         {"worst_saturated_tensor", s.worst_saturated_tensor},
         {"worst_flushed", s.worst_flushed},
         {"worst_flushed_tensor", s.worst_flushed_tensor},
         {"blocks_in_bf16", int64_t{s.blocks_in_bf16}}});
  scalar("vitals_fp8/fwd_scale", s.forward_scale, step);
  scalar("vitals_fp8/bwd_scale", s.backward_scale, step);
  scalar("vitals_fp8/worst_saturated", s.worst_saturated, step);
  scalar("vitals_fp8/worst_flushed", s.worst_flushed, step);
  scalar("vitals_fp8/blocks_in_bf16", s.blocks_in_bf16, step);
}

void RunLog::fp8_detail(int64_t step, std::span<const Fp8TensorStats> stats) {
  for (const Fp8TensorStats& s : stats) {
    std::vector<Metric> metrics = {
        {"tensor", s.tensor.text()}, {"format", std::string(to_string(s.format))}, {"scale", s.scale}};
    if (!s.fixed_scale) {
      metrics.push_back({"amax", s.amax});
      metrics.push_back({"saturated", s.saturated});
      metrics.push_back({"flushed", s.flushed});
      if (flushes_only_gelu_tail(s)) metrics.push_back({"gelu_tail", true});
    }
    write("fp8_tensor", step, metrics);
  }
  for (const Fp8Kind& kind : group_by_kind(stats)) {
    if (kind.fixed_scale) continue;
    scalar("vitals_fp8_scale/" + kind.name, kind.smallest_scale, step);
    scalar("vitals_fp8_saturated/" + kind.name, kind.worst_saturated, step);
    scalar("vitals_fp8_flushed/" + kind.name, kind.worst_flushed, step);
  }
}

void RunLog::event(int64_t step, const std::string& what, const std::string& text, std::vector<Metric> more,
                   const std::string& tag) {
  std::vector<Metric> metrics; // no list: g++ 12 unwinds lists wrongly when memory runs out
  metrics.push_back({"event", what});
  metrics.push_back({"text", text});
  std::ranges::move(more, std::back_inserter(metrics));
  write("event", step, metrics);
  if (tensorboard_ && !tag.empty()) tensorboard_->add_text(tag, text, step);
}

void RunLog::saved(int64_t step, const std::string& path, bool is_best) {
  write("event", step, {{"event", "save"}, {"path", path}, {"best", is_best}});
}

void RunLog::flush() {
  if (metrics_) metrics_->flush();
  if (tensorboard_) tensorboard_->flush();
}

} // namespace gpt2
