// What a check says: one line, how bad it is, and what to do about it.
#pragma once

#include <functional>
#include <new>
#include <string>
#include <vector>

#include "engine/base/error.h"

namespace gpt2 {

enum class Level {
  ok,   // green
  warn, // yellow: a run will work, but not as well as it could, or not all of it was looked at
  fail, // red: a run would end with `code`
};

struct Finding {
  std::string name; // "GPU 0", "checkpoints": the part of the machine or of the run
  Level level = Level::ok;
  std::string what;
  std::string advice = {};
  ExitCode code = ExitCode::done; // of a failure: what a run would end with
};

using Report = std::function<void(const Finding&)>; // told each finding as soon as it is known

// A check that cannot be made is a finding, too: what was thrown becomes a failure.
inline void check(const Report& report, const std::string& name, const std::function<void()>& look) {
  try {
    look();
  } catch (const Error& error) {
    report({name, Level::fail, error.what(), error.hint(), error.code()});
  } catch (const std::bad_alloc&) {
    report({name, Level::fail, "out of memory", "use a smaller --batch_size or --model", ExitCode::device});
  }
}

} // namespace gpt2
