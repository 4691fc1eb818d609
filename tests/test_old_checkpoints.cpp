// Checkpoints that commit 89c92d7 wrote (format version 3, manifest version 1), kept in tests/data/old_checkpoints:
// ranks_1 and ranks_3 are what write_all() of tests/sharded_model.h gave for kept_config().
#include <doctest/doctest.h>

#include "tests/sharded_model.h"

using namespace gpt2;
using namespace gpt2::testing;

namespace {

const std::string kFolder = "tests/data/old_checkpoints/";

GPT2Config kept_config() {
  return {.name = "kept", .layers = 1, .heads = 1, .channels = 8, .seq_len = 8, .vocab = 120, .padded_vocab = 128};
}

} // namespace

TEST_CASE("checkpoints of format version 3 and manifest version 1 are read bit for bit, by any number of ranks") {
  for (const int writers : {1, 3}) {
    const std::string folder = kFolder + "ranks_" + std::to_string(writers) + "/step_00001000";
    CHECK(read_summary(folder).ranks == writers);
    for (const int readers : {1, 2, 3}) {
      CAPTURE(writers);
      CAPTURE(readers);
      for (int rank = 0; rank < readers; ++rank) {
        ShardedModel model(rank, readers, true, kept_config());
        const TrainState state = load_checkpoint(folder, model), expected = state_of(1000);
        CHECK(model.is_whole());
        CHECK(state.step == 1000);
        CHECK(state.loader_position == expected.loader_position);
        CHECK(state.seed == expected.seed);
        CHECK(state.best_val_loss == expected.best_val_loss);
        CHECK(state.last_val_loss == expected.last_val_loss);
        CHECK(state.last_val_step == expected.last_val_step);
        CHECK(state.tokens == expected.tokens);
        CHECK(state.options_toml == expected.options_toml);
      }
    }
  }
}
