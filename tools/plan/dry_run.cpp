#include "tools/plan/dry_run.h"

#include "engine/backend/roofline.h"
#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/options/parse_options.h"
#include "engine/run/multi_rank.h"
#include "engine/run/option_notes.h"
#include "engine/run/rank_start.h"
#include "engine/system/files.h"
#include "engine/system/process.h"
#include "tools/plan/dry_run_backend.h"
#include "tools/plan/measure.h"
#include "tools/plan/planned_data.h"

namespace gpt2 {
namespace {

// ---- checks of a run's start ----

void check_folders(const PlannedRun& run) {
  const StopSignal stop;
  stop.defer(); // until the folders are removed
  for (const std::string& folder : {run.place.logs(), run.place.checkpoints()}) {
    const ScopedFolders made(folder);
    const FolderLock lock(folder, "--run_name"); // the only test of the lock is to take it
  }
  stop.answer_at_once();
  refuse_taken_name(run.place);
  check_room_for_checkpoint(run.place.checkpoints(), ParameterTable(run.plan.model.config).size());
}

// Tokenizer, prompt and tasks.
void check_texts(const PlannedRun& run, RankGroup& alone) {
  const Options& options = run.plan.options;
  const TextCodec text(Tokenizer::find_folder(options.tokenizer), run.data.built_in);
  text.encode(options.prompt);
  open_hellaswag(options, run.plan.model.seq_len, alone);
}

void check_memory(const PlannedRun& run) {
  const int64_t needed = device_bytes(run.memory);
  if (!run.device_bytes || needed <= *run.device_bytes) return;
  const bool one_sequence = run.plan.model.batch_size == 1;
  throw Error(ExitCode::device,
              (one_sequence ? "one sequence of this model needs " : "the model needs ") +
                  format_bytes(static_cast<double>(needed)) + " of GPU memory, and " +
                  format_bytes(static_cast<double>(*run.device_bytes)) +
                  (run.asked_for.empty() ? " are free" : " are free on such a GPU"),
              one_sequence ? "use a smaller --model or --seq_len"
                           : "use a smaller --batch_size (accumulation keeps the step the same)");
}

// ---- speed ----

// At most 4 micro-batches per step: same throughput, sooner.
void measure(PlannedRun& run, const BackendOptions& backend_options, double seconds) {
  constexpr int kMicroBatches = 4;
  const OpenBackend open = open_backend(backend_options);
  const std::unique_ptr<Model> model = open.backend->make_model(steady_state(run.plan.model));
  const MeasuredSteps measured = measure_steps(
      *model, run.data.train, run.plan,
      {.steps = 1 << 30, .seconds = seconds, .micro_batches = std::min(run.plan.batch.accumulation, kMicroBatches)});
  run.tokens_per_second = measured.tokens_per_second * run.ranks;
  run.speed_from = "measured here in " + counted(measured.steps, "step") +
                   (run.ranks > 1 ? " on one rank, times " + std::to_string(run.ranks) + " ranks: an upper limit" : "");
}

// The GEMMs of one update: five iterations of 60 C^3 FLOPs a block, divided among the ranks.
double muon_seconds(const RunPlan& plan, int ranks) {
  constexpr double kFlopsPerSecond = 470e12; // 3.5 ms more than AdamW at 124M, one H200, 2026-11-18
  if (plan.model.optimizer != Optimizer::muon) return 0;
  const double L = plan.model.config.layers, C = plan.model.config.channels;
  return 300 * L * C * C * C / kFlopsPerSecond / ranks;
}

void estimate_speed(PlannedRun& run, const DryRunBackend& planned) {
  if (!run.gpu) {
    const CpuSpeed cpu = estimate_cpu_speed(run.plan.model);
    run.tokens_per_second = cpu.tokens_per_second * run.ranks;
    run.speed_from = formatted("an estimate, from FP32 GEMMs at %.0f GFLOP/s; --measure 60 trains for a minute",
                               cpu.gemm_flops / 1e9);
    return;
  }
  const std::optional<double> one = planned.backend->expected_speed(run.plan.model);
  if (!one) return;
  const auto tokens = static_cast<double>(run.plan.tokens_per_step());
  run.tokens_per_second =
      tokens / (tokens / (*one * run.ranks) + muon_seconds(run.plan, run.ranks) / planned.math_rate);
  run.speed_from = planned.speed_from +
                   (run.ranks > 1 ? ", times " + std::to_string(run.ranks) + " ranks: an upper limit (docs/scaling.md)"
                                  : std::string());
}

} // namespace

int64_t PlannedRun::evaluated() const {
  if (!data.validation || !plan.wants_evaluation()) return 0;
  return std::min(plan.eval_sequences, data.validation->sequences());
}

std::optional<double> PlannedRun::gpu_hours() const {
  if (!gpu || !cost.seconds) return std::nullopt;
  return *cost.seconds / 3600 * ranks;
}

int planned_ranks(const Options& options, const Environment& environment) {
  if (const int children = ranks_to_start(options, environment)) return children;
  if (options.ranks > 0) return options.ranks;
  const std::optional<Launch> launch = find_launch(environment);
  return launch ? launch->ranks : 1;
}

PlannedRun plan_run(const CommandLine& command_line, int ranks, double measure_seconds) {
  RankGroup alone;
  PlannedRun run;
  run.ranks = ranks;
  run.settings = resolve_settings(command_line, find_resume_point(command_line, alone));
  const Options& options = run.settings.options;
  BackendOptions of_backend = backend_options(options);
  const DryRunBackend planned = open_dry_run_backend(of_backend, command_line.options.plan_for);
  const DeviceChoice& device = planned.device;
  if (planned.assumed && measure_seconds > 0)
    choose_device(of_backend, find_gpu(of_backend)); // throws: no GPU to measure on
  run.gpu = device.gpu;
  run.device = planned.name;
  run.assumed = planned.assumed;
  run.asked_for = command_line.options.plan_for;
  run.figures = planned.figures;
  run.device_bytes = planned.memory_bytes;

  const GPT2Config config = resolve_config(options, device.gpu);
  const bool real = run.settings.resumed || measure_seconds > 0; // needs the tokens themselves
  run.data = real ? open_run_data(options, config) : open_planned_data(options, config);
  run.place = find_place(run.settings, config, device.precision);
  run.plan = make_plan(fitted_to_ranks(run.settings, ranks), config, device.precision, run.data.train->sequences(),
                       *planned.backend, ranks);
  check_folders(run);
  check_texts(run, alone);
  run.memory = planned.backend->memory(run.plan.model, ranks);
  check_memory(run);
  run.free_disk = free_disk_space(run.place.checkpoints());

  run.notes = run.settings.notes;
  append_notes(run.notes, run.place.notes);
  append_notes(run.notes, device.notes);
  append_notes(run.notes, run.data.notes);
  append_notes(run.notes, run.plan.notes);
  append_notes(run.notes, notes_on_options_without_effect(run.settings, run.plan, device.gpu, run.evaluated() > 0));
  if (const auto& point = run.settings.resumed) {
    const std::string note = check_same_data(*point, run.data.train->fingerprint(), options.allow_other_data);
    if (!note.empty()) run.notes.push_back(note);
    run.done = point->step;
    append_notes(run.notes, notes_on_resume(point->options, run.plan.options, point->step));
  }

  of_backend.cuda.plan_cache.clear(); // a measurement does not write the plan cache
  of_backend.cuda.timeline.clear();
  if (measure_seconds > 0)
    measure(run, of_backend, measure_seconds);
  else
    estimate_speed(run, planned);
  run.cost = cost_of(run.plan, run.done, run.data.train->sequences(), run.evaluated(), run.tokens_per_second);
  return run;
}

} // namespace gpt2
