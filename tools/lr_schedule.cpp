// Draws the learning rate of a run before it starts, from the trainer's own flags (docs/tools.md).
#include <algorithm>
#include <limits>

#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/options/run_plan.h"
#include "engine/run/session.h"
#include "engine/system/files.h"
#include "engine/system/terminal.h"
#include "tools/common/output_kinds.h"
#include "tools/common/tool_arguments.h"
#include "tools/common/trainer_flags.h"
#include "tools/lr_schedule/curve_svg.h"
#include "tools/lr_schedule/schedule_phases.h"
#include "tools/report/terminal_curve.h"

namespace {

using namespace gpt2;

constexpr size_t kRows = 9, kPoints = 1200;

struct Command {
  bool overwrite = false;
  std::string svg;                // empty: none
  std::vector<std::string> flags; // the trainer's
};

void add_options(CLI::App& app, Command& command) {
  app.footer(
      "Options of train_gpt2_fp8 that matter: --lr_schedule, --max_lr, --min_lr_ratio, --warmup_steps, "
      "--wsd_decay_ratio, --max_steps or --num_epochs, --model, --config. Without a number of steps, it follows from "
      "the data.");
  app.add_option("--svg", command.svg, "write the curve to FILE too")->type_name("FILE");
  add_overwrite(app, command.overwrite);
  take_trainer_flags(app, command.flags);
}

// The schedule of a run with these options. A micro-batch of one on the CPU gives the same numbers without a GPU.
RunPlan plan_of(const CommandLine& line) {
  Options options = line.options;
  if (!trains(options) || !options.resume.empty())
    throw Error(ExitCode::usage, "only the options of a new run have a schedule",
                "leave out --resume and other actions");
  const bool gpu = options.device != DeviceKind::cpu && gpu_count() > 0;
  if (options.model == "auto") options.model = gpu ? "gpt2" : "nano";
  if (options.batch_size == 0) options.batch_size = 1;
  const GPT2Config config = resolve_config(options, gpu);
  const int64_t sequences = options.max_steps > 0 ? std::numeric_limits<int>::max() // the data does not matter
                                                  : open_run_data(options, config).train->sequences();
  return make_plan(options, config, Precision::fp32, sequences, *make_cpu_backend(1), 1);
}

std::vector<double> rates_of(const Schedule& schedule, std::vector<double>& steps) { // steps count from 1
  const int64_t count = std::min<int64_t>(schedule.max_steps, kPoints);
  std::vector<double> rates;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t step = count == 1 ? 0 : i * (schedule.max_steps - 1) / (count - 1);
    steps.push_back(static_cast<double>(step + 1));
    rates.push_back(learning_rate(schedule, step));
  }
  return rates;
}

ExitCode draw(const Command& command) {
  const auto line = parse_trainer_flags(command.flags, "lr_schedule " GPT2_VERSION);
  if (!line) return ExitCode::done;
  refuse_foreign_file(command.svg, kCurveOutput, command.overwrite);
  const RunPlan plan = plan_of(*line);
  const Schedule& schedule = plan.schedule;
  const std::string title = formatted("learning rate: %s, %lld steps, peak %.4g", name_of(schedule.decay).c_str(),
                                      static_cast<long long>(schedule.max_steps), static_cast<double>(schedule.max_lr));

  Curve curve{.title = title, .x_name = "step", .x = {}, .y = {}, .parts = {}};
  curve.y = rates_of(schedule, curve.x);
  const double high = *std::max_element(curve.y.begin(), curve.y.end());
  const auto columns = static_cast<size_t>(std::clamp(terminal_columns() - 1, 40, 120));
  for (const std::string& note : plan.notes) log_info("note: " + note);
  log_info(title);
  for (const std::string& row : labelled_curve(curve.y, 0, high > 0 ? high : 1, columns, kRows, "%.2g")) log_info(row);
  log_info(labelled_axis("step 1", std::to_string(schedule.max_steps), columns));
  for (const SchedulePhase& phase : phases_of(schedule)) {
    log_info(formatted("%-12s  steps %lld to %lld  %.4g to %.4g", phase.name.c_str(),
                       static_cast<long long>(phase.first), static_cast<long long>(phase.last),
                       static_cast<double>(learning_rate(schedule, phase.first - 1)),
                       static_cast<double>(learning_rate(schedule, phase.last - 1))));
    curve.parts.push_back({phase.name + " to " + std::to_string(phase.last), static_cast<double>(phase.first),
                           static_cast<double>(phase.last)});
  }
  if (command.svg.empty()) return ExitCode::done;
  write_file_atomic(command.svg, curve_svg(curve));
  log_info(command.svg);
  return ExitCode::done;
}

} // namespace

int main(int argc, char** argv) {
  return gpt2::run_tool<Command>(argc, argv, "Draws the learning rate of a run, in the terminal and as SVG.",
                                 "lr_schedule", add_options, draw);
}
