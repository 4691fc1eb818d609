// Writes one step of a small model for comparison with PyTorch: FOLDER/manifest.txt names the arrays (name, type,
// shape) in the order in which FOLDER/values.bin holds them, 4 bytes a value.
//
//   dump_gradients FOLDER
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/rng.h"
#include "engine/model/model.h"

namespace {

using namespace gpt2;

constexpr int kBatch = 3, kSeqLen = 24;

class Dump {
 public:
  explicit Dump(const std::filesystem::path& folder)
      : manifest_(folder / "manifest.txt"), values_(folder / "values.bin", std::ios::binary) {}

  template <class T>
  void add(const std::string& name, const char* type, std::span<const T> values, const std::vector<int64_t>& shape) {
    static_assert(sizeof(T) == 4);
    manifest_ << name << ' ' << type;
    for (const int64_t extent : shape) manifest_ << ' ' << extent;
    manifest_ << '\n';
    values_.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size_bytes()));
  }

  void finish() {
    manifest_.flush();
    values_.flush();
    if (!manifest_ || !values_)
      throw Error(ExitCode::disk, "cannot write the dump", "name a folder that can be written");
  }

 private:
  std::ofstream manifest_, values_;
};

void dump(const std::filesystem::path& folder) {
  ModelOptions options;
  options.config = {
      .name = "parity", .layers = 3, .heads = 4, .channels = 64, .seq_len = 32, .vocab = 211, .padded_vocab = 256};
  options.batch_size = kBatch;
  options.seq_len = kSeqLen;
  const auto model = make_cpu_model(options);

  std::vector<int32_t> inputs(kBatch * kSeqLen), targets(inputs.size());
  const Rng rng(2024);
  for (size_t i = 0; i < inputs.size(); ++i) {
    inputs[i] = static_cast<int32_t>(rng.bits(2 * i) % 211);
    targets[i] = i % 7 == 3 ? kIgnoredTarget : static_cast<int32_t>(rng.bits(2 * i + 1) % 211);
  }
  const Batch batch = {.batch_size = kBatch, .seq_len = kSeqLen, .inputs = inputs, .targets = targets};

  // A few steps first, so that biases and LayerNorms are no longer at their trivial initial values.
  UpdateSettings update;
  update.adamw.lr = 3e-3f;
  for (int step = 0; step < 8; ++step) {
    model->micro_step(batch, 0, 1);
    model->update(update);
  }
  model->micro_step(batch, 0, 1);

  Dump out(folder);
  out.add<int32_t>("inputs", "i4", inputs, {kBatch, kSeqLen});
  out.add<int32_t>("targets", "i4", targets, {kBatch, kSeqLen});
  for (const ParameterTensor& tensor : model->parameters().tensors()) {
    const NamedTensor weight = model->read_tensor(tensor, TensorKind::weight);
    const NamedTensor gradient = model->read_tensor(tensor, TensorKind::gradient);
    out.add<float>("weight/" + tensor.name, "f4", weight.values, weight.shape);
    out.add<float>("gradient/" + tensor.name, "f4", gradient.values, gradient.shape);
  }
  const float loss_sum = static_cast<float>(model->evaluate(batch).sum);
  out.add<float>("loss_sum", "f4", std::span(&loss_sum, 1), {1});
  std::vector<float> logits(211);
  for (int length = 1; length <= kSeqLen; ++length) {
    model->next_token_logits(std::span(inputs).first(static_cast<size_t>(length)), logits);
    out.add<float>("logits/" + std::to_string(length - 1), "f4", logits, {211});
  }
  out.finish();
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: dump_gradients FOLDER\n");
    return 2;
  }
  try {
    dump(argv[1]);
    return 0;
  } catch (const gpt2::Error& error) {
    std::fprintf(stderr, "dump_gradients: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
