#include "engine/run/trainer.h"

#include <cmath>
#include <new>
#include <utility>

#include "engine/base/formatted.h"
#include "engine/base/utf8.h"
#include "engine/ranks/agreement.h"
#include "engine/run/evaluation.h"
#include "engine/run/rank_start.h"
#include "engine/run/summary.h"
#include "engine/text/generate.h"

namespace gpt2 {
namespace {

using IfNotSaved = SavePolicy::IfNotSaved;

constexpr int64_t kDeviceMetricsFreq = 10; // steps: NVML takes milliseconds
constexpr int64_t kFp8CheckFreq = 10;      // steps: a check waits for the device
constexpr int64_t kHistogramFreq = 250;    // steps, without evaluation: a histogram copies every tensor

int64_t histogram_freq(const Session& session) {
  const Options& o = session.plan.options;
  if (o.histogram_freq >= 0) return o.histogram_freq;
  return session.validation.empty() || o.eval_freq == 0 ? kHistogramFreq : o.eval_freq;
}

} // namespace

Trainer::Trainer(Session& session)
    : session_(session),
      plan_(session.plan),
      options_(session.plan.options),
      model_(*session.model),
      state_(session.state),
      console_(session.console),
      progress_(session.console, options_.log_freq, plan_.max_steps),
      fp8_guard_(session.state.fp8_guard),
      fp8_lag_(
          {.fp8 = plan_.model.fp8, .layers = plan_.model.config.layers, .warmup_steps = plan_.schedule.warmup_steps},
          session.state.fp8_lag),
      histogram_freq_(histogram_freq(session)),
      before_cooldown_(keep_rule(options_).before_cooldown),
      saves_(session) {
  if (!session.resumed || session.missing.evaluation) return; // then HellaSwag and the sample are missing too
  if (!session.missing.hellaswag) hellaswag_step_ = state_.step;
  if (!session.missing.sample) sampled_step_ = state_.step;
}

ExitCode Trainer::run() {
  try {
    return train();
  } catch (const Error& error) {
    wind_up(error.code() == ExitCode::data);
    throw;
  } catch (const std::bad_alloc&) {
    wind_up(true);
    throw;
  }
}

ExitCode Trainer::train() {
  if (!session_.work_left()) return nothing_left();
  if (options_.eval_at_start && state_.step == 0) evaluate();
  first_step_ = state_.step;
  first_tokens_ = state_.tokens;
  watch_ = {};
  stop_.defer();
  stop_agreed_ = any_rank(session_.group, stop_.requested()); // ranks could not agree on it while they started

  if (session_.missing.any() && !stopping()) make_up_missing();
  fetch();
  while (state_.step < plan_.max_steps && !stopping()) {
    if (!step()) break;
    saves_.judge();
    if (anything_due()) between_steps();
  }
  return state_.step < plan_.max_steps ? stop_early() : finish();
}

bool Trainer::step() {
  const Stopwatch watch;
  const float lr = learning_rate(plan_.schedule, state_.step);
  const int accumulation = plan_.accumulation_at(state_.step);
  for (int i = 0; i < accumulation; ++i) {
    if (i > 0) {
      if (discards_step(i)) return false;
      fetch();
    }
    model_.micro_step(fetched().view(), i, accumulation);
    progress_.show_micro_batch(state_.step + 1, i + 1, accumulation);
  }
  saves_.end_if_written(); // renaming and pruning overlap with device work
  updating_ = true;
  UpdateSettings settings = update_settings(options_, lr);
  settings.stop_requested = stop_.requested();
  model_.update(settings);
  fetch(); // overlaps with device work
  result_ = model_.step_result();
  saves_.note(result_);
  report_step(lr, watch.seconds());
  if (due(kDeviceMetricsFreq)) watch_device();
  if (due(kFp8CheckFreq) || result_.verdict != Verdict::applied) watch_fp8();
  count_skipped();
  if (saves_.file_check_due()) saves_.check_files();
  return true;
}

// A step on the CPU may take hours. A GPU has queued its micro-steps, and finishes the step.
bool Trainer::discards_step(int micro_batch) {
  if (session_.backend.is_gpu()) return false;
  return stop_agreed_ = agree_to_stop(session_.group, static_cast<size_t>(micro_batch), stop_.requested());
}

// Stores an error until a step needs the batch: the current step completes without it.
void Trainer::fetch() {
  try {
    batch_ = session_.loader.next();
    const std::optional<std::string> line = data_watch_.check(batch_);
    if (!line) return;
    session_.warn(*line);
    session_.log.event(state_.step, "bad_data", *line);
  } catch (...) {
    fetch_error_ = std::current_exception();
  }
}

const HostBatch& Trainer::fetched() {
  if (fetch_error_) std::rethrow_exception(fetch_error_);
  return batch_;
}

// ---- after a step ----

void Trainer::report_step(float lr, double seconds) {
  const int64_t epoch = state_.loader_position / session_.data.train->sequences(); // in which the step began
  const int sequences = plan_.ramp.at(state_.step);
  const int64_t tokens = plan_.tokens_at(state_.step);
  state_.step += 1;
  state_.loader_position += sequences;
  state_.tokens += result_.tokens;
  state_.hellaswag_due = state_.sample_due = false;
  updating_ = false;

  if (std::exchange(before_fp8_, model_.before_fp8()) && !before_fp8_) progress_.step_kind_changed();
  progress_.timed_step(seconds, tokens);
  const double speed = static_cast<double>(tokens) / seconds;
  const double sequences_left = plan_.ramp.sequences_before(plan_.max_steps) - plan_.ramp.sequences_before(state_.step);
  ModelOptions as_trained = plan_.model;
  if (model_.before_fp8()) as_trained.precision = Precision::bf16;
  const std::optional<double> roofline = session_.backend.roofline(as_trained);
  const StepReport report{.step = state_.step,
                          .epoch = epoch,
                          .loss = result_.loss,
                          .lr = lr,
                          .grad_norm = result_.grad_norm,
                          .seconds = seconds,
                          .tokens_per_second = speed,
                          .speed_of_light = roofline ? std::optional(speed / *roofline) : std::nullopt,
                          .eta_seconds = progress_.eta_seconds(std::llround(sequences_left / sequences)),
                          .precision = model_.step_label(),
                          .muon = muon_step(lr)};
  progress_.show(report, result_.verdict);
  session_.log.step(report, result_.verdict, state_.tokens);
}

std::optional<StepReport::MuonStep> Trainer::muon_step(float lr) const {
  if (options_.optimizer != Optimizer::muon) return std::nullopt;
  return StepReport::MuonStep{.adamw_lr = adamw_rate(options_, lr),
                              .update_norm = result_.matrix_update_norm,
                              .adamw_update_norm = result_.adamw_update_norm};
}

void Trainer::count_skipped() {
  if (result_.verdict == Verdict::applied) return;
  const int limit = options_.max_skipped;
  const std::string line = skip_line(state_.step, result_.verdict, result_.skipped_in_a_row, limit);
  console_.line(line, Style::warning);
  session_.log.event(state_.step, "skip", line);
  if (result_.skipped_in_a_row < limit) return;
  throw saves_.diverged(concat(result_.skipped_in_a_row, " steps in a row were skipped, the last at step ", state_.step,
                               ": ", reason_of(result_.verdict)));
}

void Trainer::watch_device() {
  if (const auto straggler = stragglers_.check(session_.group, result_.own_seconds))
    console_.line(*straggler, Style::warning);
  const std::vector<DeviceMetric> metrics = model_.device_metrics();
  session_.log.device(state_.step, metrics);
  for (const DeviceMetric& metric : metrics) {
    if (metric.name != "gpu/throttled" || metric.value == 0 || throttling_reported_) continue;
    console_.line("the GPU is throttled (temperature or hardware slowdown): steps are slower than they could be",
                  Style::warning);
    throttling_reported_ = true;
  }
}

// Moves blocks that saturate or overflow repeatedly to BF16. The LM head has its own flag and is only reported.
void Trainer::watch_fp8() {
  if (plan_.model.precision != Precision::fp8 || model_.before_fp8()) return;
  const std::vector<Fp8TensorStats> stats = average_over_ranks(session_.group, model_.fp8_stats());
  if (session_.resumed && fp8_step_ < 0) fp8_guard_.forget_blocks_in(stats); // first check after a resume
  log_fp8(stats);
  if (const auto warning = fp8_lag_.check(state_.step, stats)) {
    console_.line("warning: " + warning->text, Style::warning);
    session_.log.event(state_.step, "fp8_lag", warning->text,
                       {{"tensor", warning->tensor}, {"saturated", warning->saturated}}, "fp8_lag");
  }
  state_.fp8_lag = fp8_lag_.text();
  if (!options_.fp8_auto_fallback) return;
  const std::vector<Fp8Guard::Finding> findings = fp8_guard_.check(stats);
  state_.fp8_guard = fp8_guard_.text();
  for (const Fp8Guard::Finding& finding : findings) {
    if (finding.layer == Fp8Guard::kLmHead) {
      console_.line("the LM head stays in FP8 although " + finding.reason + ": --no-fp8_lm_head would leave it in BF16",
                    Style::warning);
      continue;
    }
    model_.leave_in_bf16(finding.layer);
    const std::string line =
        concat("block ", finding.layer, " stays in BF16 from step ", state_.step + 1, " on: ", finding.reason);
    console_.line(line, Style::warning);
    session_.log.event(state_.step, "fallback", line, {{"block", int64_t{finding.layer}}}, "fp8_fallback");
  }
}

void Trainer::log_fp8(std::span<const Fp8TensorStats> stats) {
  session_.log.fp8(state_.step, summarize(stats, plan_.model.config.layers));
  fp8_step_ = state_.step;
}

// ---- between steps ----

bool Trainer::anything_due() const {
  return due(options_.eval_freq) || due(options_.hellaswag_freq) || due(histogram_freq_) || due(options_.sample_freq) ||
         save_due() || (saves_.postponed() && saves_.unsound().empty());
}

void Trainer::between_steps() {
  const Stopwatch watch;
  const bool is_best = due(options_.eval_freq) && evaluate();
  if (due(options_.hellaswag_freq)) score_hellaswag();
  if (due(histogram_freq_) && !stopping()) log_tensors();
  if (due(options_.sample_freq)) sample();
  const bool is_last = state_.step == plan_.max_steps; // saved by finish(), with its evaluation and sample
  if (!is_last && ((is_best && options_.save_best) || save_due() || saves_.postponed())) saves_.save_if_sound(is_best);
  progress_.timed_between_steps(watch.seconds());
}

void Trainer::log_tensors() {
  if (options_.use_tensorboard) session_.log.tensors(state_.step, model_, result_.tokens, session_.group);
  if (options_.fp8_detail) session_.log.fp8_detail(state_.step, average_over_ranks(session_.group, model_.fp8_stats()));
  session_.log.flush();
  tensors_step_ = state_.step;
}

bool Trainer::evaluate() {
  if (session_.validation.empty()) return false;
  const std::optional<double> evaluated = mean_loss(model_, session_.validation, session_.group, stop_);
  if (!evaluated) {
    stop_agreed_ = true;
    return false;
  }
  const double loss = *evaluated;
  const bool is_best = std::isfinite(loss) && loss < state_.best_val_loss && saves_.unsound().empty();
  if (is_best) saves_.note_best(loss);
  state_.last_val_loss = loss;
  state_.last_val_step = state_.step;
  console_.line(validation_line(state_.step, loss, is_best, state_.best_val_loss),
                is_best ? Style::good : Style::plain);
  session_.log.validation(state_.step, loss, is_best);
  session_.log.flush();
  return is_best;
}

void Trainer::make_up_missing() {
  const bool is_best = session_.missing.evaluation && evaluate();
  if (session_.missing.hellaswag) score_hellaswag();
  if (session_.missing.sample) sample();
  if (state_.step == plan_.max_steps)
    saves_.forget_saved(); // finish() saves it again, complete
  else if (!stopping())
    saves_.save_if_sound(is_best); // a later start need not repeat it
}

void Trainer::score_hellaswag() {
  state_.hellaswag_due = true;
  if (stopping()) return;
  ScoringOptions scoring;
  scoring.batch_size = plan_.batch.batch_size;
  scoring.window = plan_.model.seq_len;
  scoring.stop = [this] { return stop_.requested(); };
  const auto losses = task_losses(model_, session_.hellaswag, session_.group, scoring);
  if (!losses) {
    stop_agreed_ = true;
    return;
  }
  const Accuracy scores = accuracy(session_.hellaswag, *losses);
  console_.line(hellaswag_line(state_.step, scores));
  session_.log.hellaswag(state_.step, scores);
  session_.log.flush();
  hellaswag_step_ = state_.step;
  state_.hellaswag_due = false;
}

void Trainer::sample() {
  const Options& o = options_;
  sampled_step_ = state_.step;
  if (o.sample_tokens == 0 || !session_.text.can_decode() || !session_.group.leads()) return;
  state_.sample_due = true;
  if (stop_.requested()) return;
  const auto busy = session_.group.busy(); // the other ranks wait in their next step
  const GenerationSettings settings{
      .tokens = o.sample_tokens,
      .sampling = {.temperature = o.temperature, .top_k = o.top_k},
      .seed = o.sample_seed,
  };
  const auto tokens = write_sample(model_, {session_.prompt, static_cast<uint64_t>(state_.step)}, settings,
                                   [this] { return stop_.requested(); });
  if (stop_.requested()) return;
  const std::string text = to_valid_utf8(session_.text.decode(tokens));
  console_.line(concat("step ", state_.step, " | sample: ", text));
  session_.log.sample(state_.step, text);
  state_.sample_due = false;
}

// ---- the end ----

// A step's loss is that of the weights before its update: the last update needs an extra forward pass.
void Trainer::probe() {
  if (state_.last_val_step == state_.step) return;
  const bool finite =
      fetch_error_ || std::isfinite(gpt2::evaluate(model_, batch_.view()).sum); // without a batch: assumed
  if (any_rank(session_.group, !finite)) saves_.note_ruined();
}

// Tries once to save before an error unrelated to the model ends the run. Single process only: an error of one rank
// leaves the others blocked, and a save needs all of them.
void Trainer::rescue() {
  if (!session_.group.alone() || updating_ || !saves_.unsound().empty()) return;
  if (state_.step == first_step_ || saves_.is_saved()) return;
  try {
    probe();
    if (!saves_.unsound().empty()) return;
    saves_.check_files();
    saves_.save(false);
    saves_.wait(IfNotSaved::stop);
    console_.line(concat("step ", state_.step,
                         " was saved because the run ends with an error; once that is fixed, resume with:"));
    console_.command(resume_command(session_.checkpoints.path(), options_));
  } catch (const std::exception& error) {
    console_.line(concat("step ", state_.step, " could not be saved either: ", error.what()), Style::warning);
  }
}

void Trainer::wind_up(bool try_to_save) {
  console_.clear_progress(); // the message starts a new line
  if (try_to_save) rescue();
  if (session_.group.alone()) attempt([&] { saves_.wait(IfNotSaved::keep_training); });
}

ExitCode Trainer::finish() {
  if (state_.last_val_step != state_.step && options_.eval_freq > 0) evaluate();
  probe();
  if (options_.hellaswag_freq > 0 && hellaswag_step_ != state_.step) score_hellaswag();
  if (histogram_freq_ > 0 && tensors_step_ != state_.step && !stopping()) log_tensors();
  if (sampled_step_ != state_.step) sample();
  saves_.wait(IfNotSaved::keep_training);
  if (const std::string trouble = saves_.unsound(); !trouble.empty())
    throw saves_.diverged(concat("the run ends at step ", state_.step, " with weights that are not saved: ", trouble));
  if (!saves_.is_saved()) saves_.save_if_sound(saves_.is_best());
  saves_.wait(IfNotSaved::stop);
  if (plan_.model.precision == Precision::fp8 && !model_.before_fp8()) {
    const std::vector<Fp8TensorStats> stats = average_over_ranks(session_.group, model_.fp8_stats());
    if (fp8_step_ != state_.step) log_fp8(stats);
    const std::string health = fp8_health(stats, fp8_lag_, options_.fp8_detail || fp8_guard_.found_any());
    if (!health.empty()) console_.line(health);
  }
  session_.log.flush();
  console_.clear_progress();
  report_left_out();
  console_.line(closing_lines(session_, watch_.seconds(), first_tokens_, result_.loss));
  if (session_.group.leads()) // whose save has left the marker of the best checkpoint
    for (const std::string& command : next_commands(session_)) console_.command(command);
  if (!stopping()) return ExitCode::done;
  console_.line("stopped after the last step: everything is saved");
  return ExitCode::stopped_early;
}

ExitCode Trainer::stop_early() {
  console_.clear_progress();
  if (state_.step == first_step_) {
    saves_.wait(IfNotSaved::keep_training); // of an evaluation that was made up
    console_.line("stopped before the first step: nothing to save");
    return ExitCode::stopped_early;
  }
  probe();
  saves_.wait(IfNotSaved::keep_training);
  const std::string stopped = concat("stopped at step ", state_.step, " of ", plan_.max_steps);
  report_left_out();
  if (const std::string trouble = saves_.unsound(); !trouble.empty()) {
    session_.log.flush();
    console_.line(
        stopped + ", not saved: " + trouble +
            (saves_.last_good().empty() ? "; no earlier checkpoint"
                                        : "; the last good checkpoint is " + saves_.last_good() + ", resume with:"),
        Style::warning);
    if (!saves_.last_good().empty()) console_.command(resume_command(saves_.last_good(), options_));
    return ExitCode::stopped_early;
  }
  if (!saves_.is_saved()) saves_.save_if_sound(false);
  saves_.wait(IfNotSaved::stop);
  session_.log.flush();
  console_.line(stopped + ", saved; resume with:");
  console_.command(resume_command(session_.checkpoints.path(), options_));
  return ExitCode::stopped_early;
}

void Trainer::report_left_out() {
  if (const int64_t bad = data_watch_.bad_sequences(); bad > 0)
    console_.line(concat("warning: ", counted(bad, "sequence"), bad == 1 ? " was" : " were",
                         " left out because of tokens beyond the vocabulary"),
                  Style::warning);
}

ExitCode Trainer::nothing_left() {
  if (session_.prompt_given) { // resumed for a sample
    sample();
    return ExitCode::done;
  }
  console_.line(concat("step ", state_.step, " of ", plan_.max_steps,
                       " is done already: nothing left to train; use a larger --max_steps to continue"));
  return ExitCode::done;
}

} // namespace gpt2
