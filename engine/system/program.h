// What every program's main() is: settle with the operating system, run, turn what was thrown into one line and an exit
// code.
#pragma once

#include <functional>

#include "engine/base/error.h"

namespace gpt2 {

void print_error(const Error& error); // "error: what (hint)", one line on stderr

// `body` returns the exit code or throws. An Error is printed as "error: what (hint)" and gives its own code, running
// out of memory or threads ExitCode::device, a file system that fails ExitCode::disk, anything else 1. Who was done but
// could not print it all says so, with ExitCode::disk; where a reader has closed its pipe (`| head`), it wanted no
// more.
int run_program(const std::function<ExitCode()>& body);

} // namespace gpt2
