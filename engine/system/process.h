// Process setup: standard streams, stop signals, and crashes for lack of memory.
#pragma once

#include <csignal>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"

namespace gpt2 {

// Call first in main. Opens closed standard streams on /dev/null, so that no log or checkpoint gets their numbers.
// Turns a file-size limit and a closed pipe into write errors instead of signals. Installs a handler for crashes
// InsideHdf5 after a failed malloc: exit_out_of_memory(). Unblocks the stop signals that a launcher has blocked.
void prepare_process();

// Ends the process where an exception cannot propagate: a thread's end, a signal handler, a child before exec, before
// main. `line` with its line break goes to stderr. Allocates nothing.
[[noreturn]] void exit_with_line(ExitCode code, std::string_view line);
// With exit code 6. A terminate handler, installed when the library is loaded, calls it.
[[noreturn]] void exit_out_of_memory();

// Scope of libhdf5 calls. After a failed malloc the library dereferences null, frees twice or recurses until the stack
// overflows: a crash of this thread with errno ENOMEM is reported as out of memory.
class InsideHdf5 {
 public:
  InsideHdf5();
  ~InsideHdf5();
  InsideHdf5(const InsideHdf5&) = delete;
  InsideHdf5& operator=(const InsideHdf5&) = delete;

 private:
  const bool outermost_;
};

std::string program_as_called(); // "./train_gpt2_fp8": argv[0]
std::string host_name();         // "localhost" if unknown

// Printed on stop signals: each one line, with its line break.
struct StopMessages {
  const char* at_once = "stopped\n";
  const char* later = "stopping; Ctrl-C again to quit now\n";
  const char* again = "stopped at once\n";
};

// SIGHUP: the terminal is lost. SIGUSR1: a job manager's warning before its time limit.
inline constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

// Handles kStopSignals. By default a signal ends the process with a line on stderr and exit code 75. After defer() it
// only sets requested(): the loop finishes its step, saves and returns. answer_at_once() undoes defer(). The same
// signal again ends the process immediately with 75, except within 100 ms: a terminal, mpirun and `timeout` signal both
// the process and its group. Instances nest: the outermost handles the signals. After its destructor the program is
// about to end, and a first signal has no effect.
class StopSignal {
 public:
  explicit StopSignal(const StopMessages& words = {});
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;

  void defer() const;
  void answer_at_once() const; // also to a signal since defer()
  bool requested() const;

 private:
  const bool outermost_;
};

// Folders of a run that stay only if the run uses them. Notes which of them and of their parents are missing, and
// creates none. The destructor removes those that were missing and are empty now. So does a signal that ends the
// process at once (StopSignal), after it has removed their .lock files. One instance at a time.
class UnusedFolders {
 public:
  explicit UnusedFolders(const std::vector<std::string>& folders);
  ~UnusedFolders();
  UnusedFolders(const UnusedFolders&) = delete;
  UnusedFolders& operator=(const UnusedFolders&) = delete;

 private:
  std::vector<std::string> paths_; // of each missing folder: its .lock, the folder, its missing parents
};

} // namespace gpt2
