#include "engine/dist/communicator.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "engine/base/error.h"
#include "tests/expect_error.h"

using namespace gpt2;

namespace {

constexpr const char* kVariables[] = {
    "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK", "WORLD_SIZE", "RANK",
    "SLURM_NTASKS",         "SLURM_PROCID"};

// No launcher's variables, whatever started this test.
struct CleanEnvironment {
  CleanEnvironment() { clear(); }
  ~CleanEnvironment() { clear(); }
  static void clear() {
    for (const char* name : kVariables) unsetenv(name);
  }
};

void check_refused(const std::string& size_variable, const std::string& rank_variable) {
  CAPTURE(size_variable);
  CleanEnvironment clean;
  setenv(size_variable.c_str(), "2", 1);
  setenv(rank_variable.c_str(), "0", 1);
  const Error error = expect_error([] { make_communicator(); });
  CHECK(error.code() == ExitCode::communication);
  CHECK(mentions(error, size_variable + "=2"));
  CHECK_FALSE(error.hint().empty());
}

} // namespace

TEST_CASE("one process by itself") {
  CleanEnvironment clean;
  const auto communicator = make_communicator();
  CHECK(communicator->rank() == 0);
  CHECK(communicator->ranks() == 1);
  CHECK(communicator->is_root());
}

TEST_CASE("each launcher's second rank is refused") {
  check_refused("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK");
  check_refused("PMI_SIZE", "PMI_RANK");
  check_refused("WORLD_SIZE", "RANK");
  check_refused("SLURM_NTASKS", "SLURM_PROCID");
}

TEST_CASE("a launcher with one rank is fine") {
  CleanEnvironment clean;
  setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
  setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  CHECK(make_communicator()->ranks() == 1);
}

TEST_CASE("a size without a rank is a batch job's variable, not a launcher's") {
  CleanEnvironment clean;
  setenv("SLURM_NTASKS", "8", 1);
  setenv("WORLD_SIZE", "8", 1);
  CHECK(make_communicator()->ranks() == 1);
}
