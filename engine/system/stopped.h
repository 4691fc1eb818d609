// Thrown by work that was asked to stop on its way, to whoever asked: no Error, nobody prints it.
#pragma once

namespace gpt2 {

struct Stopped {};

} // namespace gpt2
