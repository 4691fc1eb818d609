// llm.c's gpt2_124M.bin (FP32, version 3) and gpt2_124M_bf16.bin (version 5): 256 int32 of header, then the tensors,
// each kind for all layers, matrices (out, in).
#include <algorithm>
#include <array>
#include <map>

#include "engine/base/error.h"
#include "engine/base/float_formats.h"
#include "engine/model/parameters.h"
#include "engine/pretrained/weight_source.h"
#include "engine/system/files.h"

namespace gpt2 {
namespace {

constexpr int32_t kMagic = 20240326, kFp32 = 3, kBf16 = 5;
constexpr int64_t kHeaderBytes = 1024;

// Order in the file; "L": one tensor per layer, in order.
constexpr const char* kOrder[] = {
    "wte.weight",           "wpe.weight",         "L ln_1.weight",        "L ln_1.bias",
    "L attn.c_attn.weight", "L attn.c_attn.bias", "L attn.c_proj.weight", "L attn.c_proj.bias",
    "L ln_2.weight",        "L ln_2.bias",        "L mlp.c_fc.weight",    "L mlp.c_fc.bias",
    "L mlp.c_proj.weight",  "L mlp.c_proj.bias",  "ln_f.weight",          "ln_f.bias"};

class LlmcWeights : public WeightSource {
 public:
  explicit LlmcWeights(const std::string& path) : WeightSource(path), file_(File::open(path, ExitCode::checkpoint)) {
    const auto refuse = [&](const std::string& why) {
      throw Error(ExitCode::checkpoint, "cannot use " + path + ": " + why,
                  "give a checkpoint of llm.c's train_gpt2.py or train_gpt2 (version 3 or 5)");
    };
    if (file_.size() < kHeaderBytes) refuse("it is too short for llm.c's header");
    std::array<int32_t, 256> header{};
    file_.read_at(0, std::as_writable_bytes(std::span(header)));
    if (header[0] != kMagic) refuse("it lacks the magic number of an llm.c checkpoint");
    if (header[1] != kFp32 && header[1] != kBf16) refuse("its version is " + std::to_string(header[1]));
    is_bf16_ = header[1] == kBf16;
    config_ = {.name = "llm.c",
               .layers = header[4],
               .heads = header[5],
               .channels = header[6],
               .seq_len = header[2],
               .vocab = header[3],
               .padded_vocab = header[7]};
    try {
      validate(config_);
    } catch (const Error& error) {
      refuse(error.what());
    }
    const int64_t expected = lay_out();
    if (file_.size() != expected)
      refuse("it has " + std::to_string(file_.size()) + " bytes, a model of this shape has " +
             std::to_string(expected));
  }

 private:
  int64_t width() const { return is_bf16_ ? 2 : 4; }

  // Fills begins_; returns the size of the file.
  int64_t lay_out() {
    const ParameterTable table(config_);
    int64_t at = kHeaderBytes;
    const auto add = [&](const std::string& name) {
      begins_[name] = at;
      at += table.find(name).count() * width();
    };
    for (const std::string name : kOrder) {
      if (!name.starts_with("L ")) {
        add(name);
        continue;
      }
      for (int layer = 0; layer < config_.layers; ++layer) add("h." + std::to_string(layer) + "." + name.substr(2));
    }
    return at;
  }

  void fetch(const std::string& name, int64_t begin, std::span<float> values) override {
    const int64_t at = begins_.at(name) + begin * width();
    if (!is_bf16_) return file_.read_at(at, std::as_writable_bytes(values));
    std::vector<uint16_t> bf16(values.size());
    file_.read_at(at, std::as_writable_bytes(std::span(bf16)));
    std::ranges::transform(bf16, values.begin(), bf16_decode);
  }

  File file_;
  bool is_bf16_ = false;
  std::map<std::string, int64_t> begins_; // byte offsets
};

} // namespace

std::unique_ptr<WeightSource> open_llmc(const std::string& file) { return std::make_unique<LlmcWeights>(file); }

} // namespace gpt2
