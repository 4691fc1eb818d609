#include "engine/train/trainer.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "engine/base/log.h"
#include "engine/io/utf8.h"
#include "engine/train/fp8_health.h"
#include "engine/train/start_table.h"
#include "engine/train/stop_signal.h"

namespace gpt2 {
namespace {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

constexpr int64_t kDeviceMetricsFreq = 10; // steps: NVML answers in milliseconds
constexpr int64_t kFp8LookFreq = 10;       // steps: a look waits for the device

std::string text_of(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string reason_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::skipped_loss_z:
      return "its loss is an outlier (--skip_loss_z)";
    case Verdict::skipped_norm_z:
      return "its gradient norm is an outlier (--skip_grad_z)";
    default:
      return "its loss or gradient norm is not finite";
  }
}

bool same_folder(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  return fs::weakly_canonical(a, ignored) == fs::weakly_canonical(b, ignored);
}

std::string fp8_line(const RunPlan& plan, bool gpu) {
  const std::string& format = plan.options.fp8_format;
  const std::string meaning = format == "hybrid" ? "E4M3 forward, E5M2 backward"
                              : format == "e4m3" ? "E4M3 forward and backward"
                                                 : "E5M2 forward and backward, E4M3 weights";
  return "FP8 training enabled: " + format + " (" + meaning + ")" + (gpu ? "" : " (emulated on the CPU)");
}

} // namespace

Trainer::Trainer(const RunStart& start, const DeviceChoice& device, Backend& backend, const Communicator& communicator,
                 Console& console)
    : backend_(backend), communicator_(communicator), console_(console), checkpoints_(start.options.checkpoint_dir) {
  const GPT2Config config = resolve_config(start.options, device.gpu);
  data_ = open_run_data(start.options, config);
  const std::string run_name =
      start.options.run_name.empty() ? new_run_name(config, device.precision) : start.options.run_name;
  const std::string log_folder = start.options.log_dir + "/" + run_name;
  // Before the device: the other run may have all its memory. Checkpoints of two runs would replace each other.
  log_lock_ = std::make_unique<FolderLock>(log_folder, "--run_name");
  if (!same_folder(log_folder, start.options.checkpoint_dir))
    checkpoint_lock_ = std::make_unique<FolderLock>(start.options.checkpoint_dir, "--checkpoint_dir");
  plan_ = make_plan(start.options, config, device.precision, data_.train->sequences(), backend, communicator.ranks());
  const Options& options = plan_.options;
  text_ = std::make_unique<TextCodec>(Tokenizer::find_folder(options.tokenizer), data_.built_in);
  prompt_ = text_->encode(options.prompt);
  checkpoints_.check_writable(ParameterTable(config).size());

  model_ = backend.make_model(plan_.model);
  state_.seed = options.seed;
  if (!start.checkpoint.empty()) restore(start.checkpoint);
  state_.run_name = plan_.options.run_name = run_name;
  plan_.options.resume.clear(); // a checkpoint's options start a run, they do not resume one
  state_.precision = to_string(plan_.model.precision);
  state_.options_toml = to_toml(plan_.options);

  log_ = std::make_unique<RunLog>(log_folder, options.use_tensorboard, start.checkpoint.empty() ? 0 : state_.step + 1);
  log_->hparams(plan_, *model_);
  loader_ = std::make_unique<Loader>(data_.train,
                                     LoaderOptions{.batch_size = plan_.batch.batch_size,
                                                   .rank = communicator.rank(),
                                                   .ranks = communicator.ranks(),
                                                   .seed = state_.seed},
                                     state_.loader_position);
  if (data_.validation && (options.eval_freq > 0 || options.eval_at_start)) {
    validation_ = validation_batches(*data_.validation, plan_.eval_sequences, plan_.batch.batch_size,
                                     communicator.rank(), communicator.ranks());
  }

  std::vector<std::string> notes = device.notes;
  notes.insert(notes.end(), data_.notes.begin(), data_.notes.end());
  if (!text_->can_decode() && options.sample_tokens > 0) {
    notes.push_back("no BPE tables: samples are not printed; run tools/install_deps.sh or give --tokenizer DIR");
  }
  if (start.checkpoint.empty()) note_older_checkpoints(notes);
  print_start(notes);
}

ExitCode Trainer::run() {
  if (state_.step >= plan_.max_steps) return nothing_left();
  StopSignal stop;
  if (plan_.options.eval_at_start && state_.step == 0) evaluate();

  const int accumulation = plan_.batch.accumulation;
  HostBatch batch = loader_->next();
  while (state_.step < plan_.max_steps && !stop.requested()) {
    const Stopwatch watch;
    const float lr = learning_rate(plan_.schedule, state_.step);
    for (int i = 0; i < accumulation; ++i) {
      if (i > 0) batch = loader_->next();
      model_->micro_step(batch.view(), i, accumulation);
    }
    model_->update(update_settings(lr));
    batch = loader_->next(); // while the device works
    const StepResult result = model_->step_result();
    finish_step(result, lr, watch.seconds());

    const bool is_best = due(plan_.options.eval_freq) && evaluate();
    if (due(plan_.options.sample_freq)) sample();
    if ((is_best && plan_.options.save_best) || due(plan_.options.checkpoint_freq)) save(is_best);
  }
  return state_.step < plan_.max_steps ? stop_early() : finish();
}

UpdateSettings Trainer::update_settings(float lr) const {
  const Options& o = plan_.options;
  return {.adamw = {.lr = lr, .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.adam_eps, .weight_decay = o.weight_decay},
          .grad_clip = o.grad_clip,
          .limits = {.loss_z = o.skip_loss_z, .norm_z = o.skip_grad_z}};
}

void Trainer::finish_step(const StepResult& result, float lr, double seconds) {
  const int64_t epoch_of_step = epoch();
  state_.step += 1;
  state_.loader_position += plan_.target_batch_size;
  state_.tokens += result.tokens;

  smoothed_seconds_ = smoothed_seconds_ == 0 ? seconds : 0.9 * smoothed_seconds_ + 0.1 * seconds;
  const double eta = smoothed_seconds_ * static_cast<double>(plan_.max_steps - state_.step);
  const double speed = static_cast<double>(plan_.tokens_per_step()) / seconds;
  const auto light_speed = backend_.light_speed(plan_.model);
  const StepReport report{.step = state_.step,
                          .epoch = epoch_of_step,
                          .loss = result.loss,
                          .lr = lr,
                          .grad_norm = result.grad_norm,
                          .seconds = seconds,
                          .tokens_per_second = speed,
                          .speed_of_light = light_speed ? std::optional(speed / *light_speed) : std::nullopt,
                          .eta_seconds = eta,
                          .precision = model_->precision_label()};
  console_.line(step_line(report));
  console_.progress(progress_bar(state_.step, plan_.max_steps, eta));
  log_->step(report, result.verdict, state_.tokens);
  if (due(kDeviceMetricsFreq)) watch_device();
  if (due(kFp8LookFreq) || result.verdict != Verdict::applied) watch_fp8();
  count_skipped(result);
}

void Trainer::count_skipped(const StepResult& result) {
  if (result.verdict == Verdict::applied) {
    skipped_in_a_row_ = 0;
    return;
  }
  skipped_in_a_row_ += 1;
  const int limit = plan_.options.max_skipped;
  console_.line("step " + std::to_string(state_.step) +
                " skipped, the weights are unchanged: " + reason_of(result.verdict) + " (" +
                std::to_string(skipped_in_a_row_) + " in a row, stops at " + std::to_string(limit) + ")");
  if (skipped_in_a_row_ < limit) return;
  log_->flush();
  throw Error(ExitCode::numerics,
              std::to_string(limit) + " steps in a row were skipped, the last at step " + std::to_string(state_.step) +
                  ": " + reason_of(result.verdict),
              "resume an earlier checkpoint (--list_checkpoints) with a lower --max_lr or a smaller --grad_clip");
}

void Trainer::watch_device() {
  const std::vector<DeviceMetric> metrics = model_->device_metrics();
  log_->device(state_.step, metrics);
  for (const DeviceMetric& metric : metrics) {
    if (metric.name != "gpu/throttled" || metric.value == 0 || throttling_told_) continue;
    console_.line("the GPU is throttled (temperature or hardware slowdown): steps are slower than they could be");
    throttling_told_ = true;
  }
}

// What saturates or overflows repeatedly goes on without FP8. The LM head has a flag of its own, and is only named.
void Trainer::watch_fp8() {
  if (!plan_.options.fp8_auto_fallback || plan_.model.precision != Precision::fp8) return;
  for (const Fp8Guard::Finding& finding : fp8_guard_.look(model_->fp8_stats())) {
    if (finding.layer == Fp8Guard::kLmHead) {
      console_.line("the LM head stays in FP8 although " + finding.reason +
                    ": --no-fp8_lm_head would leave it in BF16");
      continue;
    }
    model_->leave_in_bf16(finding.layer);
    const std::string line = "block " + std::to_string(finding.layer) + " stays in BF16 from step " +
                             std::to_string(state_.step + 1) + " on: " + finding.reason;
    console_.line(line);
    log_->fallback(state_.step, finding.layer, line);
  }
}

bool Trainer::evaluate() {
  if (validation_.empty()) return false;
  LossSum total;
  for (const HostBatch& batch : validation_) {
    const LossSum sum = gpt2::evaluate(*model_, batch.view());
    total.sum += sum.sum;
    total.tokens += sum.tokens;
  }
  const double loss = total.sum / static_cast<double>(total.tokens);
  const bool is_best = std::isfinite(loss) && loss < state_.best_val_loss;
  if (is_best) state_.best_val_loss = loss;
  state_.last_val_loss = loss;
  state_.last_val_step = state_.step;
  console_.line("step " + std::to_string(state_.step) + " | val loss: " + text_of("%.6f", loss) +
                (is_best ? " | best so far" : " | best: " + text_of("%.6f", state_.best_val_loss)));
  log_->validation(state_.step, loss);
  if (state_.step > 0) log_->tensors(state_.step, *model_);
  log_->flush();
  return is_best;
}

void Trainer::sample() {
  const Options& o = plan_.options;
  if (o.sample_tokens == 0 || !text_->can_decode()) return;
  const SampleSettings settings{o.sample_tokens, o.temperature, o.top_k, o.sample_seed};
  const auto tokens = generate(*model_, prompt_, settings, static_cast<uint64_t>(state_.step));
  const std::string text = to_valid_utf8(text_->decode(tokens));
  sampled_step_ = state_.step;
  console_.line("step " + std::to_string(state_.step) + " | sample: " + text);
  log_->sample(state_.step, text);
}

void Trainer::save(bool is_best) {
  const std::string path = checkpoints_.save(*model_, state_, is_best);
  saved_step_ = state_.step;
  console_.line("step " + std::to_string(state_.step) + " | saved " + path + (is_best ? " (best)" : ""));
  if (!is_best) return;
  // A new best makes the one before superfluous, unless it was due anyway.
  std::error_code ignored; // it costs only disk space
  if (!extra_best_.empty() && extra_best_ != path) std::filesystem::remove_all(extra_best_, ignored);
  extra_best_ = due(plan_.options.checkpoint_freq) || state_.step == plan_.max_steps ? "" : path;
}

ExitCode Trainer::finish() {
  const bool is_best = state_.last_val_step != state_.step && plan_.options.eval_freq > 0 && evaluate();
  if (sampled_step_ != state_.step) sample();
  if (saved_step_ != state_.step || is_best) save(is_best);
  if (const std::string health = fp8_health_table(model_->fp8_stats()); !health.empty()) console_.line(health);
  log_->flush();
  console_.clear_progress();
  console_.line("done: " + std::to_string(state_.step) + " steps, " + format_count(static_cast<double>(state_.tokens)) +
                " tokens");
  if (state_.last_val_step != state_.step) return ExitCode::done;
  console_.line("val loss " + text_of("%.3f", state_.last_val_loss) +
                (data_.entropy
                     ? ", the grammar's own entropy is " + text_of("%.3f", *data_.entropy) + ": no model can do better"
                     : ", best " + text_of("%.3f", state_.best_val_loss)));
  return ExitCode::done;
}

ExitCode Trainer::stop_early() {
  console_.clear_progress();
  if (saved_step_ != state_.step) save(false);
  log_->flush();
  console_.line("stopped at step " + std::to_string(state_.step) + " of " + std::to_string(plan_.max_steps) +
                ", saved: --resume latest goes on from here");
  return ExitCode::stopped_early;
}

ExitCode Trainer::nothing_left() {
  console_.line("step " + std::to_string(state_.step) + " of " + std::to_string(plan_.max_steps) +
                " is done already: nothing left to train; a larger --max_steps goes on");
  return ExitCode::done;
}

void Trainer::restore(const std::string& checkpoint) {
  state_ = load_checkpoint(checkpoint, *model_);
  saved_step_ = state_.step;
  console_.line("resumed " + checkpoint + " at step " + std::to_string(state_.step));
  const std::string precision = to_string(plan_.model.precision);
  if (state_.precision == precision) return;
  console_.line("note: trained in " + state_.precision + " so far, " + precision + " from here on" +
                (plan_.model.precision == Precision::fp8 ? ": the FP8 recipe calibrates at the first step" : ""));
}

void Trainer::note_older_checkpoints(std::vector<std::string>& notes) const {
  const std::vector<CheckpointInfo> older = checkpoints_.list();
  if (older.empty()) return;
  notes.push_back(plan_.options.checkpoint_dir + " holds checkpoints of another run, up to step " +
                  std::to_string(older.back().step) +
                  ": those of equal steps will be replaced; --resume latest would go on with that run instead");
}

void Trainer::print_start(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) console_.line("note: " + note);
  if (plan_.model.precision == Precision::fp8) console_.line(fp8_line(plan_, backend_.is_gpu()));
  console_.line(start_table(plan_, data_, *model_, communicator_.ranks(), log_->folder()));
}

} // namespace gpt2
