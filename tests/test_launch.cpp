// Which launcher started this process, from what it left in the environment, and who trains with it.
#include "engine/dist/launch.h"

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "engine/dist/rank_group.h"
#include "tests/expect_error.h"

using namespace gpt2;

namespace {

using Variables = std::map<std::string, std::string>;

Environment of(const Variables& variables) {
  return [&variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

std::string refusal(const Variables& variables) { // "what | hint"
  const Error error = expect_error([&] { find_launch(of(variables)); });
  CHECK(error.code() == ExitCode::communication);
  return std::string(error.what()) + " | " + error.hint();
}

} // namespace

TEST_CASE("one process by itself") {
  CHECK_FALSE(find_launch(of({})).has_value());
  const RankGroup alone;
  CHECK(alone.rank() == 0);
  CHECK(alone.ranks() == 1);
}

TEST_CASE("each launcher is known by its own words") {
  const auto check = [](const std::string& program, const Variables& variables) {
    CAPTURE(program);
    const auto launch = find_launch(of(variables));
    REQUIRE(launch.has_value());
    CHECK(launch->program == program);
    CHECK(launch->rank == 5);
    CHECK(launch->ranks == 8);
    CHECK(launch->local_rank == 1);
  };
  check("mpirun", {{"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
  check("mpiexec", {{"PMI_SIZE", "8"}, {"PMI_RANK", "5"}, {"MPI_LOCALRANKID", "1"}});
  check("torchrun", {{"WORLD_SIZE", "8"}, {"RANK", "5"}, {"LOCAL_RANK", "1"}});
  check("srun", {{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "5"}, {"SLURM_LOCALID", "1"}});
}

TEST_CASE("the first launcher that is found decides: one rank inside a larger allocation trains alone") {
  const Variables allocation{{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}};
  CHECK(find_launch(of(allocation))->ranks == 8);

  Variables mpirun = allocation;
  mpirun["OMPI_COMM_WORLD_SIZE"] = "1", mpirun["OMPI_COMM_WORLD_RANK"] = "0";
  CHECK(find_launch(of(mpirun))->program == "mpirun");
  CHECK(find_launch(of(mpirun))->ranks == 1);

  Variables torchrun = allocation;
  torchrun["WORLD_SIZE"] = "1", torchrun["RANK"] = "0";
  CHECK(find_launch(of(torchrun))->program == "torchrun");
  CHECK_FALSE(find_launch(of(torchrun))->local_rank.has_value()); // Slurm's is not torchrun's
  CHECK(find_launch(of(torchrun))->ranks == 1);
}

TEST_CASE("a size without a rank is a batch job's variable, not a launcher's") {
  const Variables batch_job{{"SLURM_NTASKS", "8"}, {"WORLD_SIZE", "8"}};
  CHECK_FALSE(find_launch(of(batch_job)).has_value());
}

TEST_CASE("sizes and ranks that make no sense are refused, naming the variable") {
  const auto torchrun = [](const std::string& size, const std::string& rank) {
    return refusal({{"WORLD_SIZE", size}, {"RANK", rank}});
  };
  for (const char* bad : {"abc", "", "2x", "1.5", "-1", " 2", "99999999999"}) {
    CAPTURE(bad);
    CHECK(contains(torchrun(bad, "0"), std::string("WORLD_SIZE=") + bad));
    CHECK(contains(torchrun("2", bad), std::string("RANK=") + bad));
  }
  CHECK(contains(torchrun("0", "0"), "WORLD_SIZE=0 (torchrun): there is at least one rank"));
  CHECK(contains(torchrun("2", "2"), "RANK=2 (torchrun): ranks are 0 to 1 | "));
  CHECK(contains(torchrun("2", "2"), "unset WORLD_SIZE and RANK"));
  CHECK(contains(refusal({{"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "x"}}), "SLURM_LOCALID=x"));
}
