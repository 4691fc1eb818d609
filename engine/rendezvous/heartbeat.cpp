#include "engine/rendezvous/heartbeat.h"

#include <algorithm>

namespace gpt2 {

Watchdog::Watchdog(int ranks, Clock::duration limit, Clock::time_point now)
    : limit_(limit), reset_at_(now), ranks_(static_cast<size_t>(ranks), {.heard = now, .since = now}) {}

void Watchdog::heard_from(int rank, Activity activity, Clock::duration duration, Clock::time_point now) {
  Status& status = ranks_[static_cast<size_t>(rank)];
  status.heard = now;
  status.activity = activity;
  status.since = now - duration;
}

void Watchdog::heard_from(int rank, Clock::time_point now) { ranks_[static_cast<size_t>(rank)].heard = now; }

void Watchdog::leave(int rank) { ranks_[static_cast<size_t>(rank)].gone = true; }

void Watchdog::reset_timers(Clock::time_point now) {
  reset_at_ = now;
  for (Status& status : ranks_) status.heard = now;
}

std::optional<Watchdog::Stall> Watchdog::find_silent(Clock::time_point now) const {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Status& status = ranks_[rank];
    if (!status.gone && now - status.heard > limit_) return Stall{static_cast<int>(rank), now - status.heard};
  }
  return std::nullopt;
}

std::optional<Watchdog::Stall> Watchdog::find_stalled(Clock::time_point now) const {
  bool any_waits = false, all_wait = true;
  Clock::duration shortest_wait = Clock::duration::max();
  std::optional<Stall> slowest;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Status& status = ranks_[rank];
    if (status.gone) continue;
    const Clock::duration lasts = now - std::max(status.since, reset_at_);
    const bool waits_too_long = status.activity == Activity::waiting && lasts > limit_;
    any_waits |= waits_too_long;
    all_wait &= waits_too_long;
    if (waits_too_long) shortest_wait = std::min(shortest_wait, lasts);
    if (status.activity == Activity::computing && lasts > limit_ && (!slowest || lasts > slowest->duration)) {
      slowest = Stall{static_cast<int>(rank), lasts};
    }
  }
  if (!any_waits) return std::nullopt;
  return all_wait ? Stall{std::nullopt, shortest_wait} : slowest;
}

} // namespace gpt2
