// --gpus N: this process becomes the launcher of N ranks on this host.
#pragma once

#include <chrono>

namespace gpt2 {

// Starts this program `count` times with the same arguments, as ranks of one job (launcher.h: GPT2_RANK, ...), and
// returns the worst of their exit codes when all have ended: an error other than 7, else 7 (another rank failed), else
// 75 (stopped early), else 0. Forwards SIGINT, SIGTERM, SIGHUP and SIGUSR1; each rank has its own process group, so
// that Ctrl-C reaches it once, through this process. No rank outlives this process. After an error of one rank the
// others get SIGTERM after `patience`, and SIGKILL after twice that. Throws Error(communication) if a process cannot be
// started.
int run_ranks(int count, char** argv, std::chrono::seconds patience = std::chrono::seconds(10));

} // namespace gpt2
