#include "engine/dist/communicator.h"

#include <string>

#include "engine/base/error.h"

namespace gpt2 {
namespace {

class SingleProcess : public Communicator {
 public:
  int rank() const override { return 0; }
  int ranks() const override { return 1; }
};

} // namespace

std::unique_ptr<Communicator> make_communicator(const Environment& environment) {
  const std::optional<Launch> launch = find_launch(environment);
  if (launch && launch->ranks > 1) {
    throw Error(ExitCode::communication,
                "started by " + launch->program + " as rank " + std::to_string(launch->rank) + " of " +
                    std::to_string(launch->ranks) + ", but this build trains in one process",
                "start one process, without " + launch->program);
  }
  return std::make_unique<SingleProcess>();
}

} // namespace gpt2
