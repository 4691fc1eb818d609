// The result of a check: one line, a level, advice. As text and as JSON.
#pragma once

#include <functional>
#include <new>
#include <string>
#include <vector>

#include "engine/base/error.h"

namespace gpt2 {

enum class Level {
  ok,   // green
  warn, // yellow: a run works, but not at its best, or something could not be checked
  fail, // red: a run would exit with `code`
};

struct Finding {
  std::string name; // "GPU 0", "checkpoints": the part of the machine or of the run
  Level level = Level::ok;
  std::string what;
  std::string advice = {};
  ExitCode code = ExitCode::done; // for Level::fail: the exit code of such a run
};

using Report = std::function<void(const Finding&)>; // called with each finding immediately

// Runs a check. An exception becomes a finding of Level::fail.
inline void check(const Report& report, const std::string& name, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    report({name, Level::fail, error.what(), error.hint(), error.code()});
  } catch (const std::bad_alloc&) {
    report({name, Level::fail, "out of memory", "use a smaller --batch_size or --model", ExitCode::device});
  }
}

// " ok   GPU 0        NVIDIA H200, ...", with the advice on the next line.
std::string finding_text(const Finding& finding, bool color, size_t columns);
std::string summary_text(const std::vector<Finding>& findings, double seconds, bool color); // "12 ok, 1 warning"
std::string findings_json(const std::vector<Finding>& findings);                            // one line

// 0, or the exit code of the first failure.
ExitCode exit_code_of(const std::vector<Finding>& findings);

} // namespace gpt2
