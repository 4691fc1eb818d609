#include "engine/rendezvous/heartbeat.h"

#include <algorithm>

namespace gpt2 {

Watch::Watch(int ranks, Clock::duration limit, Clock::time_point now)
    : limit_(limit), forgiven_(now), ranks_(static_cast<size_t>(ranks), {.heard = now, .since = now}) {}

void Watch::hear(int rank, Activity activity, Clock::duration for_how_long, Clock::time_point now) {
  Sighting& sighting = ranks_[static_cast<size_t>(rank)];
  sighting.heard = now;
  sighting.activity = activity;
  sighting.since = now - for_how_long;
}

void Watch::hear(int rank, Clock::time_point now) { ranks_[static_cast<size_t>(rank)].heard = now; }

void Watch::leave(int rank) { ranks_[static_cast<size_t>(rank)].gone = true; }

void Watch::forgive(Clock::time_point now) {
  forgiven_ = now;
  for (Sighting& sighting : ranks_) sighting.heard = now;
}

std::optional<Watch::Verdict> Watch::silent(Clock::time_point now) const {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Sighting& sighting = ranks_[rank];
    if (!sighting.gone && now - sighting.heard > limit_) return Verdict{static_cast<int>(rank), now - sighting.heard};
  }
  return std::nullopt;
}

std::optional<Watch::Verdict> Watch::stalled(Clock::time_point now) const {
  bool somebody_waits = false, all_wait = true;
  Clock::duration shortest_wait = Clock::duration::max();
  std::optional<Verdict> slowest;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Sighting& sighting = ranks_[rank];
    if (sighting.gone) continue;
    const Clock::duration lasts = now - std::max(sighting.since, forgiven_);
    const bool waits_too_long = sighting.activity == Activity::waiting && lasts > limit_;
    somebody_waits |= waits_too_long;
    all_wait &= waits_too_long;
    if (waits_too_long) shortest_wait = std::min(shortest_wait, lasts);
    if (sighting.activity == Activity::computing && lasts > limit_ && (!slowest || lasts > slowest->for_how_long)) {
      slowest = Verdict{static_cast<int>(rank), lasts};
    }
  }
  if (!somebody_waits) return std::nullopt;
  return all_wait ? Verdict{std::nullopt, shortest_wait} : slowest;
}

} // namespace gpt2
