// The Error that an action must throw, to look at its code and words.
#pragma once

#include <doctest/doctest.h>

#include <string>

#include "engine/base/error.h"
#include "tests/contains.h"

namespace gpt2 {

template <class Action>
Error expect_error(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  FAIL("no error was thrown");
  return Error(ExitCode::done, "");
}

inline bool mentions(const Error& error, const std::string& words) { return contains(error.what(), words); }

} // namespace gpt2
