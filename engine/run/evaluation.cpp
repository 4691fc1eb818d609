#include "engine/run/evaluation.h"

#include <cmath>

#include "engine/base/formatted.h"
#include "engine/checkpoint/search.h"
#include "engine/ranks/agreement.h"
#include "engine/run/multi_rank.h"
#include "engine/run/option_notes.h"
#include "engine/run/session.h"

namespace gpt2 {

std::optional<double> mean_loss(EvaluableModel& model, const std::vector<HostBatch>& batches, RankGroup& group,
                                const StopSignal& stop) {
  double total[2] = {0, 0}; // nats, tokens
  for (size_t i = 0; i < batches.size(); ++i) {
    if (agree_to_stop(group, i, stop.requested())) return std::nullopt;
    const LossSum sum = evaluate(model, batches[i].view());
    total[0] += sum.sum;
    total[1] += static_cast<double>(sum.tokens);
  }
  group.sum(total);
  return total[0] / total[1];
}

ExitCode evaluate_only(const RunSettings& settings, const DeviceChoice& device, Backend& backend, RankGroup& group,
                       Console& console) {
  const GPT2Config config = resolve_config(settings.options, device.gpu);
  const RunData data = open_run_data(settings.options, config);
  if (!data.validation) throw Error(ExitCode::usage, "--eval_only needs validation data", "use --val_data GLOB");
  RunPlan plan = agree_on_plan(settings, config, device.precision, *data.train, data.validation.get(), backend, group);
  plan.model.purpose = Purpose::inference;
  // A checkpoint of an FP8 run keeps its BF16 start: one saved before FP8 began is evaluated in BF16, as trained.
  const auto& point = settings.resumed;
  if (!point || point->precision != to_string(Precision::fp8)) plan.model = steady_state(plan.model);
  const std::unique_ptr<Model> model = backend.make_model(plan.model); // unsharded on each rank
  int64_t step = 0;
  const auto load = [&] { step = load_checkpoint(point->checkpoint, *model).step; };
  if (const auto error = point ? first_error(group, attempt(load)) : std::nullopt) throw_agreed(group, *error);
  if (settings.weights) model->load_weights(*settings.weights);
  const std::vector<HostBatch> batches =
      validation_batches(*data.validation, plan.eval_sequences, plan.batch.batch_size, group.rank(), group.ranks());
  const StopSignal stop;
  const std::optional<double> evaluated = mean_loss(*model, batches, group, stop);
  if (!evaluated) return ExitCode::stopped_early;
  const double loss = *evaluated;

  std::vector<std::string> notes = settings.notes;
  append_notes(notes, device.notes);
  append_notes(notes, notes_on_flags_without_effect_on_evaluation(settings));
  for (const std::string& note : notes) console.line("note: " + note);
  const std::string what = point              ? point->checkpoint
                           : settings.weights ? settings.weights->path()
                                              : "the initial " + config.name;
  console.line("evaluated " + what + " on " +
               counted(std::min(plan.eval_sequences, data.validation->sequences()), "sequence") + " of " +
               (data.built_in ? "the " : "") + data.validation_from + ", in " + model->step_label());
  console.line(
      formatted("step %lld | val loss: %.6f | perplexity: %.2f", static_cast<long long>(step), loss, std::exp(loss)));
  if (!std::isfinite(loss))
    throw AgreedError(ExitCode::numerics, "the loss of " + what + " is not finite",
                      point ? "choose another: --list_checkpoints" : "");
  return ExitCode::done;
}

} // namespace gpt2
