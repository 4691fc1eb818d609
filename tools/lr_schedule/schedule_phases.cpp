#include "tools/lr_schedule/schedule_phases.h"

#include <algorithm>

namespace gpt2 {

std::vector<SchedulePhase> phases_of(const Schedule& s) {
  std::vector<SchedulePhase> phases;
  int64_t done = 0;
  const auto add = [&](const char* name, int64_t last) {
    if (last > done) phases.push_back({name, done + 1, last});
    done = std::max(done, last);
  };
  add("warm-up", std::min(s.warmup_steps, s.max_steps));
  if (s.decay == Decay::wsd) add("constant", s.max_steps - std::min(cooling_steps(s), s.max_steps));
  add(s.decay == Decay::constant ? "constant"
      : s.decay == Decay::cosine ? "cosine decay"
                                 : "linear decay",
      s.max_steps);
  return phases;
}

} // namespace gpt2
