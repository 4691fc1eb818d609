// What a program settles with the operating system: its standard streams, and the signals that ask it to stop.
#pragma once

#include <csignal>
#include <string>

namespace gpt2 {

// Before anything else. Standard input, output and error are open, if only on /dev/null, so that no log or checkpoint
// ever gets their numbers; a file-size limit and a closed pipe are write errors with a message, not a death by signal;
// a crash InsideHdf5 because malloc failed ends the program as end_without_memory() does;
// signals to stop that a launcher held back until this program could answer them come now.
void prepare_process();

// Memory that ran out where no exception can pass (a thread's end, a parallel loop, before main): one line on stderr
// and exit code 6 instead of an abort. Installed when the library is loaded.
[[noreturn]] void end_without_memory();

// Around calls of libhdf5, which is not ready for malloc to fail: it follows a null pointer, frees twice, or calls
// itself until the stack is full. If errno says so, such a crash of this thread is memory that ran out.
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
std::string host_name();         // "localhost" where the system does not tell

// What a program says when it is asked to stop: each a line, with its line break.
struct StopWords {
  const char* at_once = "stopped\n";
  const char* later = "stopping; again to quit now\n";
  const char* again = "stopped at once\n";
};

// Ctrl-C, SIGTERM, a lost terminal (SIGHUP) and SIGUSR1 (a job manager's warning that time is running out) ask a
// program to stop. While nothing is to be saved the answer comes at once: a line on stderr and exit code 75. After
// defer() a loop asks requested(), finishes its step, saves and leaves; or what was begun is finished, and
// answer_at_once() takes defer() back. The same signal again ends the process on the spot, with 75 too; unless it comes
// so soon that it is the same blow: a terminal, mpirun and `timeout` signal both the process and its group. They nest:
// the outermost one handles, all are asked. Once it is gone, the program is about to end: a first signal changes
// nothing.
class StopSignal {
 public:
  explicit StopSignal(const StopWords& words = {});
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;

  void defer() const;
  void answer_at_once() const; // also to what was asked meanwhile
  bool requested() const;

 private:
  const bool outermost_;
};

} // namespace gpt2
