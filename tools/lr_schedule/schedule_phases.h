// The phases of a learning-rate schedule.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/options/lr_schedule.h"

namespace gpt2 {

// In order, none empty: "warm-up", then "constant" or the name of the decay. Steps count from 1, as in logs; first and
// last are inclusive.
struct SchedulePhase {
  std::string name;
  int64_t first, last;
};
std::vector<SchedulePhase> phases_of(const Schedule& schedule);

} // namespace gpt2
