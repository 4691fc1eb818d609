// A planned run as a table and as JSON.
#include <nlohmann/json.hpp>

#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/run/summary.h"
#include "tools/plan/dry_run.h"

namespace gpt2 {
namespace {

std::string bytes_text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }
std::string count(double value) { return format_count(value); }

std::string begins_text(const PlannedRun& run) {
  if (run.settings.resumed) return "from " + run.settings.resumed->checkpoint + " at step " + std::to_string(run.done);
  return run.settings.weights ? "with the weights of " + run.settings.weights->path() : "with new weights";
}

std::string steps_text(const PlannedRun& run) {
  const int64_t end = run.plan.max_steps;
  if (run.cost.steps == 0) return "none: all " + std::to_string(end) + " are done";
  return std::to_string(run.cost.steps) + (run.done > 0 ? " of " + std::to_string(end) : "") + " = " +
         count(static_cast<double>(run.cost.tokens)) + " tokens";
}

std::string device_text(const PlannedRun& run) {
  const std::string name = (run.ranks > 1 ? std::to_string(run.ranks) + " x " : "") + run.device;
  if (!run.asked_for.empty()) return name + " (--for " + run.asked_for + "): " + run.figures;
  return name + (run.assumed ? " (assumed: this machine has no GPU that the program can use)" : "");
}

std::string rates_text(const LearningRates& rates) {
  return "first " + formatted("%.2e", rates.first) + ", peak " + formatted("%.2e", rates.peak) + ", last " +
         formatted("%.2e", rates.last);
}

std::string speed_text(const PlannedRun& run) {
  if (run.tokens_per_second) return count(*run.tokens_per_second) + " tokens/s: " + run.speed_from;
  return "not known for this GPU: --measure 60 trains for a minute to measure it";
}

std::string memory_row(const PlannedRun& run) {
  if (run.memory.empty()) return "not counted: this build has no CUDA engine";
  return memory_text(run.memory) +
         (run.device_bytes ? "; " + bytes_text(*run.device_bytes) + (run.assumed ? " on such a GPU" : " are free")
                           : "");
}

std::string checkpoints_text(const PlannedRun& run) {
  const CheckpointCost& cost = run.cost.checkpoints;
  return run.place.checkpoints() + ": " + bytes_text(cost.bytes_each) + " each, " + std::to_string(cost.kept) +
         " kept, at most " + bytes_text(cost.bytes()) + "; " + bytes_text(run.free_disk) + " are free" +
         (cost.bytes() > run.free_disk ? ": NOT ENOUGH, see --keep_checkpoints" : "");
}

nlohmann::json optional_number(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

} // namespace

std::vector<TableSection> plan_table(const PlannedRun& run) {
  const RunPlan& plan = run.plan;
  const RunCost& cost = run.cost;
  std::vector<TableSection> sections{
      {"Model",
       {{"model", plan.model.config.name + ": " + shape_text(plan.model.config)},
        {"parameters", count(static_cast<double>(parameter_count(plan.model.config)))},
        {"device", device_text(run)},
        {"precision", to_string(plan.model.precision)},
        {"memory", memory_row(run)},
        {"begins", begins_text(run)}}},
      {"Data", {{"train data", data_text(*run.data.train, run.data.train_from)}}},
      {"Training",
       {{"batch", batch_text(plan)},
        {"steps", steps_text(run)},
        {"length", formatted("%.2f epochs, %.1f tokens per parameter", cost.epochs, cost.tokens_per_parameter)},
        {"optimizer", optimizer_text(plan)},
        {"learning rate", rates_text(cost.rates)}}},
      {"Cost", {{"speed", speed_text(run)}}}};
  if (run.data.validation)
    sections[1].rows.push_back({"val data", data_text(*run.data.validation, run.data.validation_from)});
  if (cost.evaluations > 0)
    sections[2].rows.push_back({"evaluations", std::to_string(cost.evaluations) + ", of " +
                                                   std::to_string(run.evaluated()) + " sequences each"});
  auto& rows = sections.back().rows;
  if (cost.seconds) {
    rows.push_back({"time", format_duration(*cost.seconds) + ", " + format_duration(*cost.step_seconds) + " a step" +
                                (run.gpu ? formatted(", %.2f GPU-hours", *run.gpu_hours()) : "")});
  }
  rows.push_back({"checkpoints", checkpoints_text(run)});
  rows.push_back({"logs", run.place.logs()});
  return sections;
}

std::string plan_json(const PlannedRun& run) {
  const RunPlan& plan = run.plan;
  const RunCost& cost = run.cost;
  nlohmann::json memory = nlohmann::json::object(), host_memory = nlohmann::json::object();
  for (const MemoryLine& line : run.memory) (line.pinned_host ? host_memory : memory)[line.purpose] = line.bytes;
  const nlohmann::json json{
      {"model", plan.model.config.name},
      {"parameters", parameter_count(plan.model.config)},
      {"device", run.device},
      {"device_assumed", run.assumed},
      {"ranks", run.ranks},
      {"precision", to_string(plan.model.precision)},
      {"memory_bytes", memory},
      {"host_memory_bytes", host_memory},
      {"resumes", run.settings.resumed ? nlohmann::json(run.settings.resumed->checkpoint) : nlohmann::json(nullptr)},
      {"steps_done", run.done},
      {"steps", cost.steps},
      {"tokens", cost.tokens},
      {"tokens_per_step", plan.tokens_per_step()},
      {"batch_size", plan.batch.batch_size},
      {"accumulation", plan.batch.accumulation},
      {"epochs", cost.epochs},
      {"tokens_per_parameter", cost.tokens_per_parameter},
      {"evaluations", cost.evaluations},
      {"lr", {{"first", cost.rates.first}, {"peak", cost.rates.peak}, {"last", cost.rates.last}}},
      {"tokens_per_second", optional_number(run.tokens_per_second)},
      {"speed_from", run.speed_from},
      {"step_seconds", optional_number(cost.step_seconds)},
      {"hours", cost.seconds ? nlohmann::json(*cost.seconds / 3600) : nlohmann::json(nullptr)},
      {"gpu_hours", optional_number(run.gpu_hours())},
      {"checkpoints",
       {{"folder", run.place.checkpoints()},
        {"bytes_each", cost.checkpoints.bytes_each},
        {"kept", cost.checkpoints.kept},
        {"bytes", cost.checkpoints.bytes()},
        {"bytes_free", run.free_disk}}},
      {"notes", run.notes}};
  return json.dump() + "\n";
}

} // namespace gpt2
