// What a program settles with the operating system: its standard streams, and the signals that ask it to stop.
#pragma once

#include <csignal>
#include <string>

namespace gpt2 {

// Before anything else. Standard input, output and error are open, if only on /dev/null, so that no log or checkpoint
// ever gets their numbers; a file-size limit and a closed pipe are write errors with a message, not a death by signal.
void prepare_process();

std::string program_as_called(); // "./train_gpt2_fp8": argv[0]
std::string host_name();         // "localhost" where the system does not tell

// Ctrl-C, SIGTERM, a lost terminal (SIGHUP) and SIGUSR1 (a job manager's warning that time is running out) ask a loop
// to finish its step, save and leave, and say so on stderr at once; the second Ctrl-C ends the process. Handles the
// signals while it lives. They nest: the outermost one handles, all are asked.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;

  bool requested() const;

 private:
  const bool outermost_;
  struct sigaction old_interrupt_, old_terminate_, old_hangup_, old_user_;
};

} // namespace gpt2
