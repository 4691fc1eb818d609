// The loss on held-out data: between the steps of a run, or on its own (--eval_only).
#pragma once

#include <optional>
#include <vector>

#include "engine/base/error.h"
#include "engine/data/loader.h"
#include "engine/logging/console.h"
#include "engine/model/model.h"
#include "engine/ranks/rank_group.h"
#include "engine/run/run_settings.h"
#include "engine/system/process.h"

namespace gpt2 {

// Nats per token over the batches of all ranks; nullopt if any rank was asked to stop meanwhile.
std::optional<double> mean_loss(EvaluableModel& model, const std::vector<HostBatch>& batches, RankGroup& group,
                                const StopSignal& stop);

// Prints loss and perplexity of the --resume checkpoint, or of the initial model, on the validation data. Read-only: no
// folder, log or checkpoint is written. Throws Error(usage) without validation data.
ExitCode evaluate_only(const RunSettings& settings, const DeviceChoice& device, Backend& backend, RankGroup& group,
                       Console& console);

} // namespace gpt2
