// A checkpoint of one rank, an HDF5 file. Its manifest is made anew for each input, so that mutations pass the hashes
// and reach the parsers behind them.
#include <vector>

#include "engine/checkpoint/format.h"
#include "engine/hdf5/manifest.h"
#include "tests/fuzz/fuzz_input.h"

using namespace gpt2;

namespace {

// Takes what a model takes: whole tensors, ranges of them, numbers and texts.
class AnyModel : public StatefulModel {
 public:
  std::unique_ptr<StateSnapshot> snapshot() override { return nullptr; }
  void load_weights(StateReader&) override {}
  void load_state(StateReader& reader) override {
    reader.read_floats("params/wte.weight", weights_);
    reader.read_range("params/wte.weight", 16, std::span(weights_).first(16));
    reader.read_floats("params/ln_f.bias", bias_);
    reader.read_int("adam_step");
    if (reader.has("fp8/recipe")) reader.read_text("fp8/recipe");
  }
  const GPT2Config& config() const override { return config_; }

 private:
  GPT2Config config_{.name = "small", .layers = 1, .heads = 1, .channels = 8, .seq_len = 8};
  std::vector<float> weights_ = std::vector<float>(32 * 8), bias_ = std::vector<float>(8);
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string& folder = fuzz::folder().path();
  fuzz::folder().write("state.h5", fuzz::text_of(bytes, size));
  fuzz::folder().write("options.toml", "");
  write_manifest(folder, 1, {manifest_entry(folder + "/state.h5")});
  fuzz::expect_answer([&] { read_state_header(folder); });
  fuzz::expect_answer([&] { read_train_state(folder); });
  fuzz::expect_answer([&] {
    AnyModel model;
    load_state(folder, model);
  });
  return 0;
}
