// One rank's share of a model whose every number is known from its name, and checkpoints of it that need no ranks.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/model/model_state.h"
#include "engine/system/content_hash.h"
#include "tests/checkpoint_testing.h"

namespace gpt2::testing {

// 24 channels: pieces of multiples of 256 elements begin and end inside rows.
inline GPT2Config odd_config() {
  return {.name = "odd", .layers = 2, .heads = 2, .channels = 24, .seq_len = 20, .vocab = 500, .padded_vocab = 512};
}

// Every element of the flat layout of one rank has a value of its own; layouts of other numbers of ranks differ in
// padding only, so a value is named by tensor and element.
inline float value_of(const std::string& tensor, int64_t element, int buffer) {
  return static_cast<float>(xxh64(std::as_bytes(std::span(tensor))) % 1000) + static_cast<float>(element) / 65536.0f +
         2000.0f * static_cast<float>(buffer);
}

// One rank's share of a model.
class ShardedModel : public StatefulModel {
 public:
  static constexpr int kHistory = 4; // amaxes per tensor
  ShardedModel(int rank, int ranks, bool empty, GPT2Config config = odd_config())
      : config_(config), table_(config, ranks), slices_(table_.shard(rank)), state_(table_, slices_) {
    state_.recipe.emplace(Fp8Options{.amax_history = kHistory, .bf16_layers = {}}, config_.layers);
    if (empty) return;
    for_each([](float& value, const std::string& tensor, int64_t element, int buffer) {
      value = value_of(tensor, element, buffer);
    });
    state_.guard.adam_step = 7;
    state_.guard.losses[3] = 1.5f;
    state_.gemm_plans = "plans";
    for (int id = 0; id < fp8_tensor_count(config_.layers); ++id) {
      if (state_.recipe->delayed(id)) state_.recipe->calibrate(id, amax_of(id));
    }
    state_.recipe->end_calibration();
  }

  const GPT2Config& config() const override { return config_; }
  std::unique_ptr<StateSnapshot> snapshot() override { return std::make_unique<FlatSnapshot>(state_); }
  void load_weights(StateReader&) override {}
  void load_state(StateReader& reader) override {
    load_tensors(reader, table_, slices_, state_.spans());
    state_.guard = load_guard(reader);
    state_.recipe->load(reader);
    state_.gemm_plans = reader.read_text("matmul_plans");
  }

  bool is_whole() {
    bool whole = state_.guard.adam_step == 7 && state_.guard.losses[3] == 1.5f && state_.gemm_plans == "plans" &&
                 !state_.recipe->calibration_due();
    for (int id = 0; id < fp8_tensor_count(config_.layers); ++id) {
      if (!state_.recipe->delayed(id)) continue;
      const auto history = state_.recipe->histories().subspan(static_cast<size_t>(id) * kHistory, kHistory);
      whole &= std::ranges::max(history) == amax_of(id) &&
               state_.recipe->scale(id) == state_.recipe->current_scale(id, amax_of(id));
    }
    for_each([&](float& value, const std::string& tensor, int64_t element, int buffer) {
      whole &= value == value_of(tensor, element, buffer);
    });
    return whole;
  }
  bool is_untouched() {
    bool zero = true;
    for_each([&](float& value, const std::string&, int64_t, int) { zero &= value == 0; });
    return zero;
  }
  int64_t elements() {
    int64_t count = 0;
    for_each([&](float&, const std::string&, int64_t, int) { count += 1; });
    return count;
  }

 private:
  static float amax_of(int id) { return 1.0f + static_cast<float>(id) / 64; }

  // Independent of how FlatSnapshot finds its pieces: element by element.
  void for_each(const std::function<void(float&, const std::string&, int64_t, int)>& visit) {
    const FlatState spans = state_.spans();
    const std::span<float> buffers[] = {spans.params, spans.adam_m, spans.adam_v};
    for (const ParameterTensor& tensor : table_.tensors()) {
      for (const OwnedSlice& slice : slices_) {
        for (int64_t i = 0; i < slice.count; ++i) {
          const int64_t element = slice.offset + i - tensor.offset;
          if (element < 0 || element >= tensor.count()) continue;
          for (int buffer = 0; buffer < 3; ++buffer)
            visit(buffers[buffer][static_cast<size_t>(slice.at + i)], tensor.name, element, buffer);
        }
      }
    }
  }

  GPT2Config config_;
  ParameterTable table_;
  std::vector<OwnedSlice> slices_;
  FlatSnapshot state_;
};

inline void write_all(const std::string& folder, int ranks, GPT2Config config = odd_config()) {
  std::filesystem::create_directories(folder);
  for (int rank = 0; rank < ranks; ++rank) {
    ShardedModel model(rank, ranks, false, config);
    write_rank_file(folder, rank, ranks, config, state_of(1000), *model.snapshot());
  }
  std::ofstream(folder + "/options.toml") << state_of(1000).options_toml;
  seal(folder, 1000, ranks);
}

} // namespace gpt2::testing
