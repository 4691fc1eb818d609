#include "engine/run/checkpoint_cost.h"

#include <algorithm>
#include <numeric>

#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/checkpoint/format.h"

namespace gpt2 {
namespace {

struct DueSaves {
  int64_t all, removed; // at the end of the run
};

// Counts the checkpoints at multiples of --checkpoint_freq and at the last step, and those of them that
// steps_to_remove() removes. Closed form: there may be billions.
DueSaves due_saves(const Options& o, int64_t done, int64_t end) {
  const int64_t freq = o.checkpoint_freq;
  const int64_t all = std::max<int64_t>(0, multiples_in(done, end - 1, freq)) + 1;
  const KeepRule rule = keep_rule(o);
  const int64_t old = rule.newest > 0 ? std::max<int64_t>(0, all - rule.newest) : 0;
  if (old == 0 || rule.every == 0) return {all, old};
  // Step k * freq is a multiple of --keep_every iff k is a multiple of --keep_every / gcd.
  const int64_t before = done / freq;
  return {all, old - multiples_in(before, before + old, rule.every / std::gcd(freq, rule.every))};
}

} // namespace

CheckpointCost checkpoint_cost(const RunPlan& plan, int64_t done, bool evaluates) {
  const Options& o = plan.options;
  const auto [all, removed] = due_saves(o, done, plan.max_steps);
  CheckpointCost cost;
  cost.bytes_each = checkpoint_bytes(ParameterTable(plan.model.config).size());
  const int64_t best = evaluates && o.save_best ? 1 : 0; // worst case: in addition to the others
  const int64_t start = keep_rule(o).before_cooldown;
  const int64_t extendable = start > done && start < plan.max_steps ? 1 : 0; // likewise
  cost.kept = all - removed + best + extendable;
  cost.most = cost.kept + (removed > 0 || best > 0 ? 1 : 0); // the old one is removed after the new one is verified
  return cost;
}

std::string checkpoint_space_warning(const CheckpointCost& cost, const std::string& folder, int64_t free_bytes) {
  if (cost.bytes() <= free_bytes) return "";
  const auto text = [](int64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  return "the disk of " + folder + " will be full before the run ends: " + counted(cost.most, "checkpoint") + " of " +
         text(cost.bytes_each) + " need " + text(cost.bytes()) + ", and " + text(free_bytes) + " are free, " +
         text(cost.bytes() - free_bytes) + " short (free some disk space; --keep_checkpoints N keeps fewer)";
}

} // namespace gpt2
