// The body of every main(): process setup, and exceptions to one line and an exit code.
#pragma once

#include <functional>

#include "engine/base/error.h"

namespace gpt2 {

void print_error(const Error& error); // "error: what (hint)", one line on stderr; on a terminal wrapped, and red

// `body` returns the exit code or throws. An Error is printed as "error: what (hint)" and returns its code; out of
// memory or threads: ExitCode::device; a file system error: ExitCode::disk; any other exception: 1. If standard output
// could not be written, returns ExitCode::disk, unless its reader closed the pipe (`| head`).
int run_program(const std::function<ExitCode()>& body);

} // namespace gpt2
