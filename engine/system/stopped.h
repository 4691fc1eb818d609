// Thrown by work that was asked to stop, and caught by the caller that asked. Not an Error: it is not printed.
#pragma once

namespace gpt2 {

struct Stopped {};

} // namespace gpt2
