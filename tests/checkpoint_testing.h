// What the tests of checkpoints share: a model that is nothing but its state, and a run that saves it.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/rng.h"
#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/search.h"
#include "engine/hdf5/manifest.h"
#include "engine/hdf5/state_reader.h"
#include "tests/temporary_folder.h"

namespace gpt2::testing {

inline GPT2Config small_config() { return {.name = "small", .layers = 2, .heads = 2, .channels = 16, .seq_len = 8}; }

// A model that is nothing but its state.
class StateOnlyModel : public StatefulModel {
 public:
  explicit StateOnlyModel(uint64_t seed, GPT2Config config = small_config()) : config_(config) {
    weights_.resize(2000 * 16); // 128 KB: larger than the limits that the tests set on files
    for (size_t i = 0; i < weights_.size(); ++i) weights_[i] = static_cast<float>(Rng(seed).normal(i));
    weights_[0] = std::numeric_limits<float>::denorm_min();
    weights_[1] = -0.0f;
    weights_[2] = std::numeric_limits<float>::max();
    weights_[3] = std::numeric_limits<float>::lowest();
    adam_step_ = static_cast<int64_t>(seed);
  }

  std::unique_ptr<StateSnapshot> snapshot() override;
  void load_weights(StateReader&) override {}
  void load_state(StateReader& reader) override {
    CHECK(reader.has("params/wte.weight"));
    CHECK_FALSE(reader.has("params/nothing"));
    CHECK_FALSE(reader.has("nowhere/at/all"));
    CHECK(reader.shape("params/wte.weight") == std::vector<int64_t>{2000, 16});
    reader.read_floats("params/wte.weight", weights_);
    reader.read_floats("params/ln_f.bias", bias_);
    adam_step_ = reader.read_int("adam_step");
    recipe_ = reader.read_text("fp8/recipe");
    CHECK(reader.read_text("fp8/empty") == "");
  }
  bool same_bits(const StateOnlyModel& other) const {
    return std::memcmp(weights_.data(), other.weights_.data(), weights_.size() * sizeof(float)) == 0 &&
           bias_ == other.bias_ && adam_step_ == other.adam_step_ && recipe_ == other.recipe_;
  }

  const GPT2Config& config() const override { return config_; }
  bool fail_while_saving = false;

 private:
  struct Copy;

  GPT2Config config_;
  std::vector<float> weights_, bias_{1, 2, 3};
  int64_t adam_step_ = 0;
  std::string recipe_ = "hybrid \xC3\xA4";
};

struct StateOnlyModel::Copy : StateSnapshot {
  explicit Copy(const StateOnlyModel& model) : model(model) {}
  void write_own(StateWriter& writer) const override {
    const int64_t matrix[] = {2000, 16}, vector[] = {3};
    writer.write_floats("params/wte.weight", matrix, model.weights_);
    writer.write_floats("params/ln_f.bias", vector, model.bias_);
  }
  void write_common(StateWriter& writer) const override {
    writer.write_int("adam_step", model.adam_step_);
    writer.write_text("fp8/recipe", model.recipe_);
    writer.write_text("fp8/empty", "");
    if (model.fail_while_saving) throw Error(ExitCode::device, "the device fell off the bus");
  }
  StateOnlyModel model;
};

inline std::unique_ptr<StateSnapshot> StateOnlyModel::snapshot() { return std::make_unique<Copy>(*this); }

inline TrainState state_of(int64_t step, double val_loss = 1e30) {
  TrainState state;
  state.step = step;
  state.loader_position = 123456789012345;
  state.seed = 0xFEDCBA9876543210ull;
  state.best_val_loss = 3.25 + 1e-15;
  state.last_val_loss = val_loss;
  state.last_val_step = std::max<int64_t>(step - 7, -1);
  state.tokens = int64_t{1} << 40;
  state.run_name = "test-run";
  state.options_toml = "[model]\nmodel = \"small\"\n";
  state.precision = "fp32";
  return state;
}

inline std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

inline std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

inline bool holds(const std::string& checkpoint, uint64_t seed) {
  StateOnlyModel loaded(999), expected(seed);
  load_checkpoint(checkpoint, loaded);
  return loaded.same_bits(expected);
}

// Hashes as of now: for tests that change a file and want to see what its reader says.
inline void seal(const std::string& checkpoint, int64_t step, int ranks = 1) {
  std::vector<std::string> entries;
  for (int rank = 0; rank < ranks; ++rank) entries.push_back(manifest_entry(rank_file(checkpoint, rank)));
  write_manifest(checkpoint, step, entries);
}

// A state file with hashes as of now.
inline Hdf5StateFile open_state_file(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return Hdf5StateFile(VerifiedFile(folder, hash_file(path), std::make_shared<BlockCache>(1)));
}

// One process that saves as one run.
class Run {
 public:
  explicit Run(std::string checkpoint_dir, std::string name = "test-run")
      : checkpoint_dir_(std::move(checkpoint_dir)), name_(std::move(name)), folder_(checkpoint_dir_, name_) {}

  std::string path() const { return folder_.path(); }
  std::string save(StatefulModel& model, const TrainState& state, bool is_best) {
    RankGroup alone;
    return folder_.save(model, state, is_best, alone);
  }
  std::string find(const std::string& which) const { return find_checkpoint({checkpoint_dir_}, name_, which); }
  std::vector<CheckpointInfo> list() const { return list_run(path()); }

 private:
  std::string checkpoint_dir_, name_;
  CheckpointFolder folder_;
};

} // namespace gpt2::testing
