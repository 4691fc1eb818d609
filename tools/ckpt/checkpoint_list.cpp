#include "tools/ckpt/checkpoint_list.h"

#include <algorithm>
#include <filesystem>

#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/checkpoint/search.h"

namespace gpt2 {
namespace {

std::filesystem::path parent_of(const std::string& path) { return std::filesystem::path(path).parent_path(); }

// "-" without a loss of a known step; a loss of another step names that step.
std::string loss_text(const CheckpointInfo& info) {
  if (!(info.val_loss < kNoLoss) || info.val_step < 0) return "        -";
  const std::string loss = formatted("%9.6f", info.val_loss);
  return info.val_step == info.step ? loss : loss + (" at step " + std::to_string(info.val_step));
}

std::string model_text(const CheckpointInfo& info) { return info.is_damaged() ? "" : " | " + info.model; }

} // namespace

std::string describe_checkpoints(const std::vector<std::string>& checkpoint_dirs) {
  const auto checkpoints = list_checkpoints(checkpoint_dirs);
  if (checkpoints.empty()) return "no checkpoints in " + listed(checkpoint_dirs, ", ", " or ") + "\n";
  size_t width = 0;
  int ranks = 1;
  for (const CheckpointInfo& info : checkpoints) {
    width = std::max(width, loss_text(info).size());
    ranks = std::max(ranks, info.ranks);
  }
  std::string out;
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    const CheckpointInfo& info = checkpoints[i];
    if (i == 0 || parent_of(info.path) != parent_of(checkpoints[i - 1].path))
      out += (info.run.empty() ? "without a run folder" : "run " + info.run) + model_text(info) + "\n";
    const std::string written_by = ranks > 1 ? formatted(" | ranks %5d", info.ranks) : "";
    out += formatted("step %8lld | val loss %-*s | %-4s%s | %9s | %s", static_cast<long long>(info.step),
                     static_cast<int>(width), loss_text(info).c_str(), info.precision.c_str(), written_by.c_str(),
                     format_bytes(static_cast<double>(info.bytes)).c_str(), info.written.c_str()) +
           " | " + info.path + (info.latest ? " (latest)" : "") + (info.best ? " (best)" : "") + "\n";
  }
  return out;
}

} // namespace gpt2
