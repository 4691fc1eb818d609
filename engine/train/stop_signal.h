// Ctrl-C, SIGTERM and a lost terminal (SIGHUP) ask the loop to finish its step, save and leave; the second Ctrl-C ends
// the process at once.
#pragma once

#include <csignal>

namespace gpt2 {

// Handles the signals while it lives. One at a time.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;

  bool requested() const;

 private:
  struct sigaction old_interrupt_, old_terminate_, old_hangup_;
};

} // namespace gpt2
