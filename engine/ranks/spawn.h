// --gpus N: this process becomes the launcher of N ranks on this host.
#pragma once

#include <chrono>
#include <span>

namespace gpt2 {

// Starts this very program `count` times with the same arguments, as ranks of one job (launch.h: GPT2_RANK, ...), and
// returns when all have ended, with the worst exit code. SIGINT, SIGTERM, SIGHUP and SIGUSR1 are passed on to them;
// each is in a process group of its own, so that a terminal's Ctrl-C comes to them once, through here. None outlives
// this process. Once one has ended by an error and the others do not end by themselves, they are asked to after
// `patience`, and killed after twice that. Throws Error(communication) if a process cannot be started.
int run_ranks(int count, char** argv, std::chrono::seconds patience = std::chrono::seconds(10));

// What a launcher says of its ranks' exit codes, in the order in which they ended: the first error of a rank's own
// (neither 0, 7 nor 75) before 7 (a rank that suffered from another one's end), before 75 (stopped early), before 0.
int worst_exit_code(std::span<const int> codes);

} // namespace gpt2
