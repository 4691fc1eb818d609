// What a launcher demands of its arguments, a line each. A shape that a user can choose is refused earlier and in the
// user's words; what fails here is a mistake of ours, and says which.
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
