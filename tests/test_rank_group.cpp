// Messages between ranks, and the watch over those that die, stall or fail.
#include "engine/ranks/rank_group.h"

#include <dirent.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>

#include <cstring>
#include <random>

#include "engine/ranks/agreement.h"
#include "engine/rendezvous/heartbeat.h"
#include "engine/rendezvous/rendezvous.h"
#include "tests/expect_error.h"
#include "tests/ranks_testing.h"

using namespace gpt2;
using namespace std::chrono_literals;

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Rank `rank` of a job as a process of its own. It ends by _exit: no test framework, no leak checker.
class RankProcess {
 public:
  RankProcess(int rank, int ranks, const std::string& job, const JoinOptions& options,
              const std::function<void(RankGroup&)>& body) {
    process_ = ::fork();
    if (process_ != 0) return;
    int code = 0;
    try {
      const auto group = RankGroup::join(rank_of_job(rank, ranks, job), options);
      body(*group);
    } catch (const Error& error) {
      code = static_cast<int>(error.code());
    }
    ::_exit(code);
  }
  ~RankProcess() {
    if (process_ > 0) ::kill(process_, SIGKILL), wait();
  }
  RankProcess(const RankProcess&) = delete;

  int id() const { return process_; }
  void signal(int number) const { ::kill(process_, number); }
  int wait() { // exit code, or 128 + signal
    int status = 0;
    ::waitpid(std::exchange(process_, -1), &status, 0);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  pid_t process_;
};

// Rounds without end: what a training loop is to the group.
void work_for_ever(RankGroup& group) {
  for (;;) {
    group.barrier();
    std::this_thread::sleep_for(5ms);
  }
}

int open_descriptors() {
  int count = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (::readdir(folder)) ++count;
  ::closedir(folder);
  return count;
}

JoinOptions strict(std::chrono::milliseconds stall) {
  JoinOptions options = patient();
  options.stall = stall;
  return options;
}

} // namespace

TEST_CASE("one process needs nobody") {
  RankGroup group;
  CHECK(group.alone());
  CHECK(group.leads());
  CHECK(group.local_rank() == 0);
  CHECK(group.local_ranks() == 1);
  CHECK(group.name_of(0) == "rank 0");
  CHECK(group.gather("a") == std::vector<std::string>{"a"});
  CHECK(group.all_gather("a") == std::vector<std::string>{"a"});
  CHECK(group.broadcast("b") == "b");
  double value = 0.1;
  group.sum({&value, 1});
  CHECK(value == 0.1);
  group.barrier();
  group.check();
  { const auto waiting = group.waiting(), busy = group.busy(); }
  group.announce_failure("nobody hears it");
  CHECK(group.mesh().empty());
  CHECK(RankGroup::join(rank_of_job(0, 1, "one"), {})->alone());
}

TEST_CASE("messages of 2, 3 and 5 ranks") {
  for (const int ranks : {2, 3, 5}) {
    CAPTURE(ranks);
    run_group_without_error(ranks, [&](RankGroup& group) {
      CHECK(group.ranks() == ranks);
      CHECK(group.local_rank() == group.rank()); // all on one host
      CHECK(group.local_ranks() == ranks);
      CHECK(contains(group.name_of(ranks - 1), "rank " + std::to_string(ranks - 1) + " ("));
      CHECK(contains(group.name_of(0), ", process " + std::to_string(::getpid()) + ")"));
      std::vector<std::string> all;
      for (int rank = 0; rank < ranks; ++rank) all.push_back("from " + std::to_string(rank));
      for (int round = 0; round < 20; ++round) {
        const std::string mine = "from " + std::to_string(group.rank());
        CHECK(group.gather(mine) == (group.leads() ? all : std::vector<std::string>{}));
        CHECK(group.all_gather(mine) == all);
        CHECK(group.broadcast(mine) == "from 0");
        group.barrier();
        group.check();
      }
      const std::string large(5 << 20, static_cast<char>('a' + group.rank())); // more than sockets hold
      CHECK(group.broadcast(large) == std::string(5 << 20, 'a'));
      CHECK(group.all_gather(large).back() == std::string(5 << 20, static_cast<char>('a' + ranks - 1)));
      CHECK(group.all_gather("") == std::vector<std::string>(static_cast<size_t>(ranks)));
    });
  }
}

TEST_CASE("sums are added in the order of ranks: the same bits everywhere and every time") {
  for (const int ranks : {2, 3, 5}) {
    std::vector<std::vector<double>> parts;
    std::mt19937_64 random(7);
    for (int rank = 0; rank < ranks; ++rank) {
      parts.emplace_back(100);
      for (double& value : parts.back())
        value = std::ldexp(static_cast<double>(random()) - 0x1p63, static_cast<int>(random() % 80) - 100);
    }
    std::vector<double> expected = parts[0];
    for (size_t rank = 1; rank < parts.size(); ++rank) {
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += parts[rank][i];
    }
    run_group_without_error(ranks, [&](RankGroup& group) {
      for (int round = 0; round < 10; ++round) {
        std::vector<double> values = parts[static_cast<size_t>(group.rank())];
        group.sum(values);
        CHECK(std::memcmp(values.data(), expected.data(), values.size() * sizeof(double)) == 0);
      }
    });
  }
}

TEST_CASE("the launcher's word on local ranks counts") {
  const std::string job = new_job();
  const auto outcomes = run_threads(2, [&](int rank) {
    Launch launch = rank_of_job(rank, 2, job);
    launch.local_rank = 0, launch.local_ranks = 1; // as on two nodes
    const auto group = RankGroup::join(launch, patient());
    CHECK(group->local_rank() == 0);
    CHECK(group->local_ranks() == 1);
  });
  for (const Outcome& outcome : outcomes) CHECK(outcome.what() == "");
}

TEST_CASE("a normal end is silent, in any order, and leaves nothing behind") {
  const int before = open_descriptors();
  for (int last = 0; last < 3; ++last) {
    const auto start = std::chrono::steady_clock::now();
    run_group_without_error(3, [&](RankGroup& group) {
      group.barrier();
      if (group.rank() == last) std::this_thread::sleep_for(300ms);
      group.check();
    });
    CHECK(seconds_since(start) < 4); // nobody waited for a goodbye that did not come
  }
  run_group_without_error(3, [](RankGroup& group) { // rank 0 still reads when the others have left
    if (group.leads()) std::this_thread::sleep_for(200ms);
    CHECK(group.gather("last words").size() == (group.leads() ? 3 : 0));
  });
  run_group_without_error(3, [](RankGroup& group) { // and the others what rank 0 said before it left
    if (!group.leads()) std::this_thread::sleep_for(200ms);
    CHECK(group.broadcast("last words") == "last words");
  });
  CHECK(open_descriptors() == before);
}

TEST_CASE("a rank that ends while others still wait for it is named") {
  const auto outcomes = run_group(3, patient(), [](RankGroup& group) {
    if (group.rank() != 2) group.barrier();
  });
  CHECK(contains(outcomes[0].what(), "rank 2 ("));
  CHECK(contains(outcomes[0].what(), ") ended while rank 0 ("));
  CHECK(outcomes[1].what() == outcomes[0].what());
  CHECK(outcomes[2].what() == "");
}

TEST_CASE("ranks that make different calls are stopped") {
  const auto outcomes = run_group(2, patient(), [](RankGroup& group) {
    if (group.leads()) {
      group.gather("x");
    } else {
      double value = 1;
      group.sum({&value, 1});
    }
  });
  for (const Outcome& outcome : outcomes) CHECK(contains(outcome.what(), "is at a different point than rank 0"));
}

TEST_CASE("frames and messages that cannot be read end the group, and name their sender") {
  const auto check = [](int sender, FrameType type, const std::string& body, const std::string& expected) {
    CAPTURE(expected);
    const std::string job = new_job();
    const auto outcomes = run_threads(2, [&](int rank) {
      if (rank == sender) { // one of the job, and yet it sends this
        Rendezvous meeting = rendezvous(rank_of_job(rank, 2, job), 60s);
        Connection& connection = meeting.connections[static_cast<size_t>(1 - rank)];
        connection.queue(type, body);
        while (wait_for_frame(connection, Clock::now() + 10s)) {
        }
        return;
      }
      const auto group = RankGroup::join(rank_of_job(rank, 2, job), patient());
      double value = 1;
      body.starts_with('s') ? group->sum({&value, 1}) : group->barrier();
    });
    CHECK(contains(outcomes[static_cast<size_t>(1 - sender)].what(), "rank " + std::to_string(sender) + " ("));
    CHECK(contains(outcomes[static_cast<size_t>(1 - sender)].what(), expected));
  };
  const std::string for_ages = std::string(1, '\1') + std::string(8, '\x7F'), unknown = '\7' + std::string(8, '\0');
  for (const int sender : {0, 1}) {
    for (const std::string& heartbeat : {std::string(), unknown, for_ages, unknown + unknown}) {
      check(sender, FrameType::heartbeat, heartbeat, ") sent a frame that cannot be read");
    }
    check(sender, FrameType::hello, "", ") sent a frame that cannot be read");
    check(sender, FrameType::message, "s123", ") sums a different number of values than ");
  }
  check(0, FrameType::message, "a\xFF\xFF\xFF\xFF", ") sent a message that cannot be read");
  check(0, FrameType::message, "a", ") sent a message that cannot be read");
}

TEST_CASE("an error that cannot be read is one all the same") {
  const std::string job = new_job();
  run_threads(2, [&](int rank) {
    const auto group = RankGroup::join(rank_of_job(rank, 2, job), patient());
    if (rank == 1) {
      group->all_gather("no error");
    } else {
      const auto error = agree(*group, std::nullopt);
      REQUIRE(error.has_value());
      CHECK(error->code() == ExitCode::communication);
      CHECK(contains(error->what(), ": sent an error that cannot be read"));
    }
    group->barrier();
    const auto told = agree(*group, rank == 1 ? std::optional(Error(ExitCode::disk, "full", "free it")) : std::nullopt);
    REQUIRE(told.has_value());
    CHECK(told->code() == ExitCode::disk);
    CHECK(contains(told->what(), ": full"));
    CHECK(told->hint() == "free it");
  });
}

TEST_CASE("a failure that a rank announces is told by all, with its reason") {
  for (int failing = 0; failing < 3; ++failing) {
    CAPTURE(failing);
    const auto outcomes = run_group(3, patient(), [&](RankGroup& group) {
      group.barrier();
      if (group.rank() == failing) return group.announce_failure("no space left");
      work_for_ever(group);
    });
    for (int rank = 0; rank < 3; ++rank) {
      const Outcome& outcome = outcomes[static_cast<size_t>(rank)];
      if (rank == failing) {
        CHECK(outcome.what() == "");
        continue;
      }
      REQUIRE(outcome.error.has_value());
      CHECK(outcome.error->code() == ExitCode::communication);
      CHECK(contains(outcome.what(), "rank " + std::to_string(failing) + " ("));
      CHECK(contains(outcome.what(), ") failed: no space left"));
      CHECK_FALSE(outcome.error->hint().empty());
    }
  }
}

TEST_CASE("an exception that passes through a group is a failure, not a goodbye") {
  const auto outcomes = run_group(3, patient(), [](RankGroup& group) {
    group.barrier();
    if (group.rank() == 1) throw Error(ExitCode::data, "bad shard");
    work_for_ever(group);
  });
  CHECK(outcomes[1].what() == "bad shard");
  for (const size_t rank : {0, 2}) CHECK(contains(outcomes[rank].what(), ") failed: it ended with an error"));
}

TEST_CASE("the death of a process is named by all survivors at once") {
  for (const bool killed : {false, true}) {
    for (int victim = 0; victim < 3; ++victim) {
      CAPTURE(victim);
      const std::string job = new_job();
      std::optional<RankProcess> process;
      process.emplace(victim, 3, job, patient(), [&](RankGroup& group) {
        group.barrier();
        if (!killed) ::_exit(0); // an end without goodbye, whatever its code
        work_for_ever(group);
      });
      std::atomic<double> told_after = 0;
      std::atomic<int> joined = 0;
      std::vector<Outcome> outcomes = run_threads(3, [&](int rank) {
        if (rank == victim) {
          while (killed && joined < 2) std::this_thread::sleep_for(1ms);
          if (killed) process->signal(SIGKILL);
          return;
        }
        const auto group = RankGroup::join(rank_of_job(rank, 3, job), patient());
        group->barrier();
        ++joined;
        const auto start = std::chrono::steady_clock::now();
        try {
          work_for_ever(*group);
        } catch (const Error&) {
          told_after = std::max(told_after.load(), seconds_since(start));
          throw;
        }
      });
      CHECK(told_after < 5);
      for (int rank = 0; rank < 3; ++rank) {
        if (rank == victim) continue;
        const Outcome& outcome = outcomes[static_cast<size_t>(rank)];
        CHECK(contains(outcome.what(), "rank " + std::to_string(victim) + " ("));
        CHECK(contains(outcome.what(), ", process " + std::to_string(process->id()) + ") died"));
      }
    }
  }
}

TEST_CASE("a stopped process has stalled, rank 0 too") {
  for (int victim = 0; victim < 3; ++victim) {
    CAPTURE(victim);
    const std::string job = new_job();
    RankProcess process(victim, 3, job, strict(1500ms), work_for_ever);
    std::atomic<int> joined = 0;
    const auto outcomes = run_threads(3, [&](int rank) {
      if (rank == victim) {
        while (joined < 2) std::this_thread::sleep_for(1ms);
        return process.signal(SIGSTOP);
      }
      const auto group = RankGroup::join(rank_of_job(rank, 3, job), strict(1500ms));
      group->barrier();
      ++joined;
      work_for_ever(*group);
    });
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      const Outcome& outcome = outcomes[static_cast<size_t>(rank)];
      CHECK(contains(outcome.what(), "rank " + std::to_string(victim) + " ("));
      CHECK(contains(outcome.what(), ") has stalled for "));
    }
    process.signal(SIGCONT); // it learns that it was given up
    CHECK(process.wait() == 7);
  }
}

TEST_CASE("a rank that computes for too long while others wait has stalled; a busy one has not") {
  const auto outcomes = run_group(3, strict(1000ms), [](RankGroup& group) {
    group.barrier();
    if (group.rank() == 1) {
      const auto busy = group.busy();
      std::this_thread::sleep_for(2s);
    }
    group.barrier(); // all have waited longer than the limit, and nobody minds
    if (group.rank() != 2) group.barrier();
    while (true) std::this_thread::sleep_for(10ms), group.check(); // an endless loop that never waits
  });
  for (const Outcome& outcome : outcomes) {
    CHECK(contains(outcome.what(), "rank 2 ("));
    CHECK(contains(outcome.what(), ") has stalled for "));
  }
}

TEST_CASE("ranks that all wait for one another are told so") {
  const auto outcomes = run_group(2, strict(600ms), [](RankGroup& group) {
    const auto waiting = group.waiting();
    while (true) std::this_thread::sleep_for(10ms), group.check();
  });
  for (const Outcome& outcome : outcomes) CHECK(contains(outcome.what(), "all ranks have waited for one another for "));
}

TEST_CASE("a main thread that does not leave after a failure is ended, once, with the line") {
  std::atomic<int> ends = 0;
  JoinOptions options = patient();
  options.grace = 300ms;
  options.end_process = [&](const std::string& line) {
    CHECK(line.starts_with("error: rank 1 ("));
    CHECK(contains(line, ") failed: out of luck ("));
    ++ends;
  };
  std::atomic<int> stuck = 0;
  const auto outcomes = run_group(3, options, [&](RankGroup& group) {
    if (group.rank() == 1) {
      while (stuck < 2) std::this_thread::sleep_for(1ms);
      return group.announce_failure("out of luck");
    }
    ++stuck;
    std::this_thread::sleep_for(2500ms); // stuck in a device
  });
  for (const Outcome& outcome : outcomes) CHECK(outcome.what() == "");
  CHECK(ends == 2);
}

TEST_CASE("by default the process ends with exit code 7") {
  const std::string job = new_job();
  JoinOptions options = patient();
  options.grace = 100ms, options.end_process = nullptr;
  RankProcess stuck(1, 2, job, options, [](RankGroup& group) {
    group.barrier();
    const int null = ::open("/dev/null", O_WRONLY);
    ::dup2(null, STDERR_FILENO);
    std::this_thread::sleep_for(60s);
  });
  {
    const auto group = RankGroup::join(rank_of_job(0, 2, job), patient());
    group->barrier();
    group->announce_failure("enough");
  }
  CHECK(stuck.wait() == 7);
}

TEST_CASE("the mesh connects every pair, and is made once") {
  for (const int ranks : {2, 4}) {
    run_group_without_error(ranks, [&](RankGroup& group) {
      const auto sockets = group.mesh();
      REQUIRE(sockets.size() == static_cast<size_t>(ranks));
      CHECK(group.mesh().data() == sockets.data());
      for (int other = 0; other < ranks; ++other)
        CHECK(sockets[static_cast<size_t>(other)].is_open() == (other != group.rank()));
    });
  }
}

TEST_CASE("the rule of the watch") {
  using std::chrono::seconds;
  const Clock::time_point start = Clock::now();
  const auto at = [&](int second) { return start + seconds(second); };
  const auto hear = [&](Watchdog& watch, int rank, Activity activity, int since, int now) {
    watch.heard_from(rank, activity, seconds(now - since), at(now));
  };
  SUBCASE("silence") {
    Watchdog watch(3, seconds(10), start);
    hear(watch, 0, Activity::computing, 0, 9);
    hear(watch, 1, Activity::computing, 0, 9);
    CHECK_FALSE(watch.find_silent(at(10)).has_value());
    CHECK(watch.find_silent(at(11))->rank == 2);
    watch.reset_timers(at(11));
    CHECK_FALSE(watch.find_silent(at(21)).has_value());
    CHECK(watch.find_silent(at(22))->rank == 0);
    watch.heard_from(0, at(22));
    CHECK(watch.find_silent(at(22))->rank == 1);
    for (const int rank : {0, 1, 2}) watch.leave(rank);
    CHECK_FALSE(watch.find_silent(at(100)).has_value());
  }
  SUBCASE("nobody waits: computing may take as long as it likes") {
    Watchdog watch(2, seconds(10), start);
    for (const int rank : {0, 1}) hear(watch, rank, Activity::computing, 0, 100);
    CHECK_FALSE(watch.find_stalled(at(100)).has_value());
  }
  SUBCASE("one waits, one computes") {
    Watchdog watch(3, seconds(10), start);
    hear(watch, 0, Activity::waiting, 5, 20);
    hear(watch, 1, Activity::computing, 8, 20);
    hear(watch, 2, Activity::waiting, 6, 20);
    CHECK(watch.find_stalled(at(20))->rank == 1);
    hear(watch, 1, Activity::computing, 12, 20); // it has begun later: not its fault
    CHECK_FALSE(watch.find_stalled(at(20)).has_value());
    hear(watch, 1, Activity::busy, 0, 20);
    CHECK_FALSE(watch.find_stalled(at(20)).has_value());
    hear(watch, 1, Activity::waiting, 19, 20);
    CHECK_FALSE(watch.find_stalled(at(20)).has_value());
    hear(watch, 1, Activity::waiting, 8, 20);
    CHECK_FALSE(watch.find_stalled(at(20))->rank.has_value()); // all wait
    CHECK(watch.find_stalled(at(20))->duration == seconds(12));
    watch.reset_timers(at(20)); // all were suspended
    CHECK_FALSE(watch.find_stalled(at(30)).has_value());
    CHECK(watch.find_stalled(at(31)).has_value());
  }
}
