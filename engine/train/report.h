// What a run says about itself, in words: the table that opens it, a line for each step, how it ended.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/loader.h"
#include "engine/inference/task_scores.h"
#include "engine/model/model.h"
#include "engine/train/console.h"
#include "engine/train/run_plan.h"

namespace gpt2 {

struct Session;

struct StepReport {
  int64_t step; // from 1
  int64_t epoch;
  float loss, lr, grad_norm;
  double seconds;
  double tokens_per_second;
  std::optional<double> speed_of_light; // share, where the floor is known
  double eta_seconds;
  std::string precision; // "FP8", "FP8 (emulated)", ...
  struct MuonStep {
    float adamw_lr, update_norm, adamw_update_norm; // lr and update_norm are the matrices'
  };
  std::optional<MuonStep> muon = {};
};

// step  250 | epoch 0 | loss: 3.456789 | lr: 6.00e-04 | norm: 0.8234 | dt: 156.78ms | tok/sec: 3345.67 | eta: 2m 05s |
// FP8
std::vector<std::string> step_fields(const StepReport& report); // the parts between the bars

// Rows of the table, which a plan shares.
std::string shape_text(const GPT2Config& config); // "12 layers, 12 heads, 768 channels, sequences of 1024"
std::string data_text(const Dataset& dataset, const std::string& source);
std::string batch_text(const RunPlan& plan);
std::string optimizer_text(const RunPlan& plan);
std::string kept_text(const Options& o); // which checkpoints stay; `o` is resolved
std::string memory_text(const std::vector<MemoryLine>& lines);

std::vector<TableSection> start_table(const Session& session); // every setting that matters, resolved
std::string fp8_line(const Session& session); // "FP8 Training Enabled: hybrid (E4M3 forward, E5M2 backward)"
std::string skip_line(int64_t step, Verdict verdict, int in_a_row, int limit);
std::string validation_line(int64_t step, double loss, bool is_best, double best_loss);
std::string hellaswag_line(int64_t step, const Accuracy& scores);
// "./train_gpt2_fp8 --resume checkpoints_fp8/RUN"; "--max_lr 3e-4" at its end where it is to go on with half the rate.
// With the launcher of as many ranks as this process is one of.
std::string resume_command(const std::string& checkpoint, const Options& options = {},
                           std::optional<double> max_lr = std::nullopt);
std::string closing_lines(const Session& session); // steps and tokens; the loss where the last step was evaluated

std::string reason_of(Verdict skipped); // "its loss is an outlier (--skip_loss_z)"

} // namespace gpt2
