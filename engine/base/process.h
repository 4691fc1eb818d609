// What a program settles with the operating system: its standard streams, and the signals that ask it to stop.
#pragma once

#include <csignal>

namespace gpt2 {

// Before anything else. Standard input, output and error are open, if only on /dev/null, so that no log or checkpoint
// ever gets their numbers; a file-size limit and a closed pipe are write errors with a message, not a death by signal.
void prepare_process();

// Ctrl-C, SIGTERM and a lost terminal (SIGHUP) ask a loop to finish its step, save and leave; the second Ctrl-C ends
// the process at once. Handles the signals while it lives. One at a time.
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
