// Which launcher started this process, from what it left in the environment, and who trains with it.
#include "engine/rendezvous/launcher.h"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "engine/ranks/rank_group.h"
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
    CHECK(launch->local_ranks == (program == "srun" ? std::nullopt : std::optional(4)));
  };
  check("--gpus", {{"GPT2_RANKS", "8"},
                   {"GPT2_RANK", "5"},
                   {"GPT2_LOCAL_RANK", "1"},
                   {"GPT2_LOCAL_RANKS", "4"},
                   {"GPT2_JOB", "x"}});
  check("mpirun", {{"OMPI_COMM_WORLD_SIZE", "8"},
                   {"OMPI_COMM_WORLD_RANK", "5"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  check("mpiexec", {{"PMI_SIZE", "8"}, {"PMI_RANK", "5"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}});
  check("torchrun", {{"WORLD_SIZE", "8"}, {"RANK", "5"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}});
  check("srun", {{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "5"}, {"SLURM_LOCALID", "1"}});
}

TEST_CASE("the first launcher that is found decides: one rank inside a larger allocation trains alone") {
  const Variables allocation{
      {"SLURM_STEP_ID", "3"}, {"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}};
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

  Variables own = mpirun;
  own["GPT2_RANKS"] = "2", own["GPT2_RANK"] = "1";
  CHECK(find_launch(of(own))->program == "--gpus");
}

TEST_CASE("a batch script of Slurm is one process; what srun starts is not") {
  Variables script{{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_JOB_ID", "77"}};
  CHECK_FALSE(find_launch(of(script)).has_value());
  for (const char* step : {"4294967291", "4294967290", "batch", "", "interactive"}) {
    CAPTURE(step);
    script["SLURM_STEP_ID"] = step;
    CHECK_FALSE(find_launch(of(script)).has_value());
  }
  script["SLURM_STEP_ID"] = "12";
  CHECK(find_launch(of(script))->ranks == 8);
}

TEST_CASE("the job's name is the same on all its ranks, and another for every other job") {
  const auto job = [](Variables variables, const std::string& rank_variable, int rank) {
    variables[rank_variable] = std::to_string(rank);
    return find_launch(of(variables))->job;
  };
  const auto check = [&](const Variables& variables, const std::string& rank_variable,
                         const std::vector<std::string>& distinguishing) {
    CHECK(job(variables, rank_variable, 0) == job(variables, rank_variable, 1));
    for (const std::string& variable : distinguishing) {
      CAPTURE(variable);
      Variables other = variables;
      other[variable] = "7";
      CHECK(job(variables, rank_variable, 0) != job(other, rank_variable, 0));
    }
  };
  check({{"GPT2_RANKS", "2"}, {"GPT2_JOB", "a"}}, "GPT2_RANK", {"GPT2_JOB"});
  check({{"OMPI_COMM_WORLD_SIZE", "2"}}, "OMPI_COMM_WORLD_RANK", {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
  check({{"PMI_SIZE", "2"}}, "PMI_RANK", {"PMI_JOBID", "SLURM_JOB_ID"});
  check({{"WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "none"}}, "RANK",
        {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"});
  check({{"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}}, "SLURM_PROCID", {"SLURM_JOB_ID", "SLURM_STEP_ID"});
}

TEST_CASE("where rank 0 is") {
  const auto find = [](const Variables& variables) { return *find_launch(of(variables)); };
  Variables mpirun{{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
  CHECK(find(mpirun).master.empty()); // all on this host
  mpirun["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  CHECK(find(mpirun).master == "mpi:"); // only MPI knows
  mpirun["MASTER_ADDR"] = "node1";
  CHECK(find(mpirun).master == "node1");
  mpirun["MASTER_PORT"] = "4000";
  CHECK(find(mpirun).master == "node1:4000");
  CHECK(find(mpirun).avoid_port == 0);

  Variables torchrun{{"WORLD_SIZE", "4"}, {"RANK", "1"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}};
  CHECK(find(torchrun).master == "node1:29500"); // set by hand: meant for us
  torchrun["TORCHELASTIC_RUN_ID"] = "none";
  CHECK(find(torchrun).master == "node1"); // its agent holds the port
  CHECK(find(torchrun).avoid_port == 29500);
  torchrun["MASTER_PORT"] = "x";
  CHECK(contains(refusal(torchrun), "MASTER_PORT=x"));

  Variables srun{{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "1"}};
  CHECK(find(srun).master.empty());
  srun["SLURM_JOB_NODELIST"] = "node[003-007,9],x";
  CHECK(find(srun).master == "node003");
  srun["SLURM_STEP_NODELIST"] = "node[005-006]"; // the step uses two of them
  CHECK(find(srun).master == "node005");
  srun["MASTER_ADDR"] = "10.0.0.1";
  CHECK(find(srun).master == "10.0.0.1");
  srun.erase("MASTER_ADDR");
  srun["SLURM_STEP_NUM_NODES"] = "1";
  CHECK(find(srun).master.empty());
  CHECK(find(srun).local_ranks == 4);

  Variables pmi_of_srun{
      {"SLURM_STEP_ID", "0"}, {"PMI_SIZE", "4"}, {"PMI_RANK", "1"}, {"SLURM_STEP_NODELIST", "a[1-2]"}};
  CHECK(find(pmi_of_srun).master == "a1");
}

TEST_CASE("all on one host, by the launcher's count or by rank 0's address; a name proves nothing") {
  const auto one_host = [](const std::string& master, std::optional<int> local_ranks = std::nullopt) {
    return on_one_host({.program = "", .rank = 0, .ranks = 4, .local_ranks = local_ranks, .master = master});
  };
  for (const char* master : {"", "localhost", "localhost:4000", "127.0.0.1", "127.0.1.1:4000", "::1", "[::1]:4000"}) {
    CAPTURE(master);
    CHECK(one_host(master));
  }
  for (const char* master : {"node1", "node1:4000", "10.0.0.1", "127.example.org", "fe80::1", "mpi:", "file:/x"}) {
    CAPTURE(master);
    CHECK_FALSE(one_host(master));
    CHECK_FALSE(one_host(master, 2));
    CHECK(one_host(master, 4));
  }
}

TEST_CASE("the first host of Slurm's list of nodes") {
  CHECK(first_host("node[003-007,9],x") == "node003");
  CHECK(first_host("gpu-[01-02]-rack3") == "gpu-01-rack3");
  CHECK(first_host("n[1,3]x[2-4]") == "n1x2");
  CHECK(first_host("a-1,b-[2-3]") == "a-1");
  CHECK(first_host("login1") == "login1");
  CHECK(first_host("c[7]") == "c7");
  CHECK(first_host("") == "");
  CHECK(first_host("broken[12") == "broken12");
}

TEST_CASE("ranks by hand") {
  const Launch launch = explicit_launch(4, 3, "node1:4000");
  CHECK(launch.program == "--ranks");
  CHECK(launch.rank == 3);
  CHECK(launch.ranks == 4);
  CHECK(launch.master == "node1:4000");
  CHECK(launch.job == explicit_launch(4, 0, "node1:4000").job);
  CHECK(launch.job != explicit_launch(4, 3, "node2:4000").job);
  for (const auto& [ranks, rank] : {std::pair{2, 2}, {2, -1}}) {
    const Error error = expect_error([&] { explicit_launch(ranks, rank, ""); });
    CHECK(error.code() == ExitCode::usage);
  }
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
  CHECK(contains(torchrun("0", "0"), "WORLD_SIZE=0 (torchrun): must be at least 1"));
  CHECK(contains(torchrun("2", "2"), "RANK=2 (torchrun): must be 0 to 1 | "));
  CHECK(contains(torchrun("2", "2"), "unset WORLD_SIZE and RANK"));
  CHECK(
      contains(refusal({{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "x"}}),
               "SLURM_LOCALID=x"));
}
