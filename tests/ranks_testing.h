// Ranks of one job, played by threads of this process or by forked children.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/ranks/rank_group.h"
#include "engine/rendezvous/launcher.h"

namespace gpt2 {

inline std::string new_job() {
  static std::atomic<int> jobs = 0;
  return "test " + std::to_string(::getpid()) + " " + std::to_string(++jobs);
}

inline Launch rank_of_job(int rank, int ranks, const std::string& job, const std::string& master = "") {
  return {.program = "test", .rank = rank, .ranks = ranks, .job = job, .master = master};
}

// Plenty on a loaded machine. A stuck thread of a test is told by the test itself, never by the end of the process.
inline JoinOptions patient() {
  return {.deadline = std::chrono::seconds(60),
          .stall = std::chrono::seconds(60),
          .grace = std::chrono::seconds(60),
          .end_process = [](const std::string&) {}};
}

struct Outcome {
  std::optional<Error> error; // of each rank, if it threw
  std::string what() const { return error ? error->what() : ""; }
};

// body(rank) in a thread each; what each threw, by rank.
inline std::vector<Outcome> run_threads(int ranks, const std::function<void(int rank)>& body) {
  std::vector<Outcome> outcomes(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const Error& error) {
        outcomes[static_cast<size_t>(rank)].error = error;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// A group of `ranks` in threads. No error is expected unless the caller looks at the outcomes.
inline std::vector<Outcome> run_group(int ranks, const JoinOptions& options,
                                      const std::function<void(RankGroup& group)>& body) {
  const std::string job = new_job();
  return run_threads(ranks, [&](int rank) {
    const auto group = RankGroup::join(rank_of_job(rank, ranks, job), options);
    body(*group);
  });
}

inline void run_group_without_error(int ranks, const std::function<void(RankGroup& group)>& body) {
  for (const Outcome& outcome : run_group(ranks, patient(), body)) CHECK(outcome.what() == "");
}

} // namespace gpt2
