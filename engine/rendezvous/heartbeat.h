// Finds silent and stalled ranks from their heartbeats. Pure logic: the caller passes the time. Rank 0 runs it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/network/sockets.h"

namespace gpt2 {

// State of a rank's main thread. `waiting`: for other ranks, or for a device that waits for them. `busy`: work of this
// rank alone, without a time limit.
enum class Activity : uint8_t { computing, waiting, busy };

class Watchdog {
 public:
  Watchdog(int ranks, Clock::duration limit, Clock::time_point now);

  void heard_from(int rank, Activity activity, Clock::duration duration, Clock::time_point now);
  void heard_from(int rank, Clock::time_point now); // any bytes, such as part of a long message
  void leave(int rank);                             // goodbye received
  void reset_timers(Clock::time_point now);         // after a stop of this process: all times count from now

  struct Stall {
    std::optional<int> rank; // nullopt: all ranks wait for one another
    Clock::duration duration;
  };
  // A rank without any bytes for longer than the limit: its process is stopped, or its host is down.
  std::optional<Stall> find_silent(Clock::time_point now) const;
  // Some rank has waited longer than the limit, and another has computed longer than the limit; or all wait.
  std::optional<Stall> find_stalled(Clock::time_point now) const;

 private:
  struct Status {
    Clock::time_point heard, since; // since: start of the activity
    Activity activity = Activity::computing;
    bool gone = false;
  };
  const Clock::duration limit_;
  Clock::time_point reset_at_;
  std::vector<Status> ranks_;
};

} // namespace gpt2
