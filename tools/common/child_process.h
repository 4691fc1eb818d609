// A child process whose standard output is read.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace gpt2 {

// The caller reads the child's standard output while it runs. Its standard error goes to a temporary file: the last
// line explains a failure. If the reader goes away, the closed pipe ends the child.
class ChildProcess {
 public:
  enum class Signals {
    shared,   // Ctrl-C in the terminal reaches the child too
    shielded, // the child has its own process group and ends when its output pipe closes
  };
  // arguments[0] is looked up on PATH. Throws Error(data) if it cannot start, Error(disk) if the temporary file for its
  // standard error cannot be created.
  explicit ChildProcess(const std::vector<std::string>& arguments, Signals signals = Signals::shared);
  ChildProcess(const ChildProcess&) = delete;
  ~ChildProcess();

  std::FILE* output() { return output_; }
  bool next_line(std::string& line); // of its output; false at the end
  void send(int signal) const;       // does nothing after wait()

  struct Ending {
    int status;             // exit code, or 128 + the signal that ended it
    std::string error_line; // the last line of its standard error; may be empty
  };
  Ending wait(); // call once, at the end of its output

 private:
  std::FILE* output_ = nullptr;
  std::FILE* errors_ = nullptr; // an unnamed temporary file
  int process_ = -1;
};

// The path of "tools/NAME.py": next to this program or in its source tree. Throws Error(data).
std::string find_script(const std::string& name, const std::string& what_it_does);

// run_program() prints "error: " itself, before the message that this program passes on.
std::string without_error_prefix(const std::string& line);

} // namespace gpt2
