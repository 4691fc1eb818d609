// What ranks settle besides the steps, with real groups in threads.
#include "engine/run/multi_rank.h"
#include "engine/run/rank_start.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <utility>

#include "engine/run/summary.h"
#include "tests/contains.h"
#include "tests/ranks_testing.h"

using namespace gpt2;

namespace {

void with_groups(int ranks, const std::function<void(RankGroup&)>& body) {
  const std::string job = new_job();
  const std::vector<Outcome> outcomes = run_threads(ranks, [&](int rank) {
    const auto group = RankGroup::join(rank_of_job(rank, ranks, job), patient());
    body(*group);
    group->barrier();
  });
  for (const Outcome& outcome : outcomes) CHECK(outcome.what() == "");
}

Environment of(const std::string& name, const std::string& value) {
  return [=](const char* asked) -> const char* { return name == asked ? value.c_str() : nullptr; };
}

} // namespace

TEST_CASE("a difference is refused with both sides, by all ranks alike") {
  std::vector<std::string> said(3);
  const std::string job = new_job();
  run_threads(3, [&](int rank) {
    const auto group = RankGroup::join(rank_of_job(rank, 3, job), patient());
    check_agreement(*group, {{"--max_lr", "0.0006"}, {"training data", "4 shards"}});
    try {
      check_agreement(*group, {{"--max_lr", rank == 2 ? "0.001" : "0.0006"}, {"training data", "4 shards"}});
    } catch (const AgreedError& error) {
      CHECK(error.code() == ExitCode::communication);
      said[static_cast<size_t>(rank)] = error.what();
    }
    group->barrier();
  });
  CHECK(contains(said[0], "--max_lr is 0.001 on rank 2 ("));
  CHECK(contains(said[0], "and 0.0006 on rank 0"));
  CHECK(said[1] == said[0]);
  CHECK(said[2] == said[0]);
}

TEST_CASE("facts that cannot be read are a difference") {
  for (const std::string& facts :
       {std::string("no tab"), std::string("\n\n"), std::string(100000, '\t'), std::string("a\tb")}) {
    std::vector<std::string> said(2);
    const std::string job = new_job();
    run_threads(2, [&](int rank) {
      const auto group = RankGroup::join(rank_of_job(rank, 2, job), patient());
      if (rank == 1) return (void)group->all_gather(facts);
      try {
        check_agreement(*group, {{"--max_lr", "0.0006"}});
      } catch (const AgreedError& error) {
        said[0] = error.what();
      }
    });
    CHECK(contains(said[0], "the ranks do not run the same"));
  }
}

TEST_CASE("shares of FP8 are those of all ranks") {
  with_groups(2, [](RankGroup& group) {
    Fp8TensorStats mine{.tensor = {.layer = 0, .site = Fp8Site::qkv, .role = Fp8Role::act}, .format = Fp8Format::e4m3};
    mine.amax = 3;
    mine.saturated = group.rank() == 0 ? 0.0 : 0.5;
    mine.flushed = group.rank() == 0 ? 0.25 : 0.75;
    const std::vector<Fp8TensorStats> all = average_over_ranks(group, {mine});
    CHECK(all[0].saturated == 0.25);
    CHECK(all[0].flushed == 0.5);
    CHECK(all[0].amax == 3);
  });
}

TEST_CASE("a rank that is slow again and again is named once; one slow step is nobody's fault") {
  with_groups(3, [](RankGroup& group) {
    StragglerWatch watch;
    int lines = 0;
    const auto step = [&](double slow) {
      const auto line = watch.check(group, group.rank() == 1 ? slow : 1.0);
      if (!line) return;
      lines += 1;
      CHECK(group.leads());
      CHECK(contains(*line, "rank 1 ("));
      CHECK(contains(*line, "1500 ms"));
    };
    for (const double seconds : {1.5, 1.0, 1.5, 1.5, 1.0, 1.1}) step(seconds);
    CHECK(lines == 0);
    for (int i = 0; i < 5; ++i) step(1.5);
    CHECK(lines == (group.leads() ? 1 : 0));
  });
}

TEST_CASE("one process settles everything with itself") {
  RankGroup alone;
  check_agreement(alone, {{"x", "1"}});
  CHECK_FALSE(StragglerWatch().check(alone, 1.0));
  CHECK(join_ranks({}, of("", ""))->alone());
}

TEST_CASE("--gpus starts ranks, unless this process is one of them") {
  Options options;
  CHECK(ranks_to_start(options, of("", "")) == 0);
  options.gpus = "4";
  CHECK(ranks_to_start(options, of("", "")) == 4);
  const Environment child = [](const char* name) -> const char* {
    const std::string asked = name;
    return asked == "GPT2_RANKS" ? "4" : asked == "GPT2_RANK" ? "1" : nullptr;
  };
  CHECK(ranks_to_start(options, child) == 0);
  for (const char* bad : {"0", "-1", "four", "4x"}) {
    options.gpus = bad;
    CHECK_THROWS_AS(ranks_to_start(options, of("", "")), Error);
  }
}

TEST_CASE("mpirun's terminal is not the user's") {
  CHECK_FALSE(behind_launcher(of("", "")));
  const Environment mpirun = [](const char* name) -> const char* {
    const std::string asked = name;
    return asked == "OMPI_COMM_WORLD_SIZE" ? "1" : asked == "OMPI_COMM_WORLD_RANK" ? "0" : nullptr;
  };
  CHECK(behind_launcher(mpirun));
}

TEST_CASE("the command that resumes a run starts as many ranks") {
  struct Variables {
    std::vector<std::pair<std::string, std::string>> set;
    explicit Variables(std::vector<std::pair<std::string, std::string>> variables) : set(std::move(variables)) {
      for (const auto& [name, value] : set) setenv(name.c_str(), value.c_str(), 1);
    }
    ~Variables() {
      for (const auto& [name, value] : set) unsetenv(name.c_str());
    }
  };
  const auto command = [](const Options& options = {}) { return resume_command("c/run", options); };
  const std::string one = command();
  CHECK(one.ends_with(" --resume c/run"));
  {
    const Variables gpus({{"GPT2_RANKS", "2"}, {"GPT2_RANK", "0"}});
    CHECK(command() == one + " --gpus 2");
    Options shared;
    shared.share_gpu = true; // of one start, as --gpus is
    CHECK(command(shared) == one + " --gpus 2 --share_gpu");
  }
  {
    const Variables mpirun({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "0"}});
    CHECK(command() == "mpirun -np 4 " + one);
  }
  {
    const Variables alone({{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}});
    CHECK(command() == one);
  }
  {
    const Variables torchrun({{"WORLD_SIZE", "8"}, {"RANK", "3"}, {"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", "4"}});
    CHECK(command() == "torchrun --no-python --nnodes=2 --nproc_per_node=4 " + one);
  }
  Options ranks;
  ranks.ranks = 3, ranks.rank = 1, ranks.master = "node1:7000";
  CHECK(command(ranks) == one + " --ranks 3 --rank RANK --master node1:7000");
}

TEST_CASE("what rank 0 answers, all have, and its error too") {
  with_groups(3, [](RankGroup& group) {
    const std::vector<std::string> sent{"a", "", "two\nlines", "c"};
    CHECK(from_rank_0(group, [&] { return sent; }) == sent);
    CHECK(from_rank_0(group, [] { return std::vector<std::string>{}; }).empty());
    CHECK_THROWS_AS(
        from_rank_0(group, []() -> std::vector<std::string> { throw Error(ExitCode::checkpoint, "nothing there"); }),
        AgreedError);
  });
}
