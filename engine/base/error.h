// The exception type for errors of users and machines: message, hint and exit code. Printed once, in main.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace gpt2 {

// Stable: scripts and job managers depend on these numbers (docs/troubleshooting.md, "Exit codes").
enum class ExitCode : int {
  done = 0,
  usage = 2,          // a flag, a value or a config key is wrong
  data = 3,           // a shard is missing, truncated, foreign, or cannot be read
  checkpoint = 4,     // no checkpoint to resume from, or it cannot be used
  numerics = 5,       // too many non-finite or anomalous steps in a row, or at the end of the run
  device = 6,         // no usable GPU, out of device memory, a CUDA error
  communication = 7,  // ranks cannot reach each other
  disk = 8,           // an output cannot be written
  stopped_early = 75, // Ctrl-C or another signal: saved, resume later (EX_TEMPFAIL)
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& what, std::string hint = "")
      : std::runtime_error(what), code_(code), hint_(std::move(hint)) {}

  ExitCode code() const { return code_; }
  const std::string& hint() const { return hint_; } // one imperative sentence, may be empty

 private:
  ExitCode code_;
  std::string hint_;
};

// All ranks of a job throw the same AgreedError; only rank 0 prints it.
class AgreedError : public Error {
 public:
  using Error::Error;
};

} // namespace gpt2
