// Another program, run for what it prints.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace gpt2 {

// Its standard output is read while it runs; its standard error is kept, for the one line that tells why it failed.
// A child whose reader has gone is ended by the closed pipe.
class ChildProcess {
 public:
  enum class Signals {
    shared,   // Ctrl-C in the terminal reaches it too
    shielded, // it has a process group of its own: it ends when we let go of its output
  };
  // arguments[0] is looked up on PATH. Throws Error(data) if it cannot be started, Error(disk) without room for its
  // errors.
  explicit ChildProcess(const std::vector<std::string>& arguments, Signals signals = Signals::shared);
  ChildProcess(const ChildProcess&) = delete;
  ~ChildProcess();

  std::FILE* output() { return output_; }
  void send(int signal) const; // nothing, once it has been waited for

  struct Ending {
    int status;             // exit code, or 128 + the signal that ended it
    std::string last_words; // the last line of its standard error, may be empty
  };
  Ending wait(); // once, at the end of its output

 private:
  std::FILE* output_ = nullptr;
  std::FILE* errors_ = nullptr; // a nameless temporary file
  int process_ = -1;
};

} // namespace gpt2
