// A program for test_spawn.py, test_mpi.py and e2e/test_slurm.py: starts as many ranks as it has arguments, and each
// does what its argument says. Started by another launcher, each rank does what the first argument says.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "engine/ranks/rank_group.h"
#include "engine/ranks/spawn.h"
#include "engine/rendezvous/launcher.h"
#include "engine/system/program.h"

namespace {

volatile sig_atomic_t signals_seen = 0;

extern "C" void count_signal(int) { signals_seen = signals_seen + 1; }

void say(const gpt2::Launch& launch, const std::string& what) {
  std::printf("rank %d of %d process %d: %s\n", launch.rank, launch.ranks, static_cast<int>(::getpid()), what.c_str());
  std::fflush(stdout);
}

std::string seconds_now() {
  return std::to_string(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
}

int act(const gpt2::Launch& launch, const std::string& what) {
  const int number = std::atoi(what.substr(what.find('=') + 1).c_str());
  if (what.starts_with("exit=")) {
    say(launch, "started");
    return number;
  }
  if (what.starts_with("signal=")) return ::raise(number);
  if (what == "group") { // finds the others by what the launcher left
    const std::string began = seconds_now();
    const auto group = gpt2::RankGroup::join(launch, {.deadline = std::chrono::seconds(30)});
    const std::string met = seconds_now();
    say(launch, "local " + std::to_string(group->local_rank()) + " of " + std::to_string(group->local_ranks()) + ", " +
                    std::to_string(group->all_gather("x").size()) + " together, began " + began + " met " + met);
    return 0;
  }
  if (what == "sleep") {
    say(launch, "sleeps");
    for (;;) ::pause();
  }
  // "catch=N": sleeps until N signals have come, a while longer, and tells how many it saw.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) ::signal(signal, count_signal);
  say(launch, "ready");
  while (signals_seen < number) ::usleep(1000);
  ::usleep(300000);
  say(launch, "saw " + std::to_string(signals_seen));
  return 75;
}

} // namespace

int main(int argc, char** argv) {
  const auto launch = gpt2::find_launch(gpt2::process_environment());
  if (launch) {
    const char* const action = argv[launch->program == "--gpus" ? 1 + launch->rank : 1];
    return gpt2::run_program([&] { return static_cast<gpt2::ExitCode>(act(*launch, action)); });
  }
  return gpt2::run_ranks(argc - 1, argv, std::chrono::seconds(1));
}
