// Who keeps the others waiting: the rule, without clocks and sockets of its own. Rank 0 judges by it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/network/sockets.h"

namespace gpt2 {

// What a rank's main thread is at. `waiting`: for other ranks, or for a device that does. `busy`: with what others need
// not do, however long it takes.
enum class Activity : uint8_t { computing, waiting, busy };

class Watch {
 public:
  Watch(int ranks, Clock::duration limit, Clock::time_point now);

  void hear(int rank, Activity activity, Clock::duration for_how_long, Clock::time_point now);
  void hear(int rank, Clock::time_point now); // anything: a long message is a sign of life too
  void leave(int rank);                       // it has said goodbye
  void forgive(Clock::time_point now); // the judge itself stood still, and maybe all did: everything counts from now

  struct Verdict {
    std::optional<int> rank; // none: all wait for one another
    Clock::duration for_how_long;
  };
  // A rank that has been silent longer than the limit: its whole process stands still, or its host is gone.
  std::optional<Verdict> silent(Clock::time_point now) const;
  // Somebody waits longer than the limit, and there is a rank that for as long has neither waited nor been busy; or all
  // wait.
  std::optional<Verdict> stalled(Clock::time_point now) const;

 private:
  struct Sighting {
    Clock::time_point heard, since; // since: of its activity
    Activity activity = Activity::computing;
    bool gone = false;
  };
  const Clock::duration limit_;
  Clock::time_point forgiven_;
  std::vector<Sighting> ranks_;
};

} // namespace gpt2
