// Preconditions of a launcher, one line each. Shapes that a user can choose are checked earlier, with a message to the
// user; a failure here is a bug, and the message names it.
#pragma once

#include <string>

#include "engine/base/error.h"

namespace gpt2 {

class Requirements {
 public:
  explicit Requirements(const char* operation) : operation_(operation) {}

  // require(p.cols % 8 == 0, "cols is a multiple of 8")
  void operator()(bool holds, const char* constraint) const {
    if (!holds) throw Error(ExitCode::device, std::string(operation_) + " requires that " + constraint);
  }

 private:
  const char* operation_;
};

} // namespace gpt2
