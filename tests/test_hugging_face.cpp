// Weights of Hugging Face's: which file a tensor is taken from, and what is refused. tests/e2e/test_exchange.py loads
// real ones.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "engine/pretrained/safetensors.h"
#include "engine/pretrained/weight_source.h"
#include "engine/system/files.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"
#include "tools/export_hf/export_hf.h"
#include "tools/export_hf/safetensors_writer.h"

using namespace gpt2;

namespace {

class Ones : public WeightSource {
 public:
  Ones() : WeightSource("ones") {
    config_ = with_shape(config_by_name("nano"), 1, 1, 8);
    config_.seq_len = 16;
  }

 protected:
  void fetch(const std::string&, int64_t, std::span<float> values) override { std::ranges::fill(values, 1.0f); }
};

const std::string kIndex = "model.safetensors.index.json";

// A model of one block, in one file or in two.
struct Model {
  TemporaryFolder folder;
  std::string path = folder / "model";

  explicit Model(bool two_files, WeightType type = WeightType::f32) {
    Ones ones;
    export_hugging_face(ones, {.output = path,
                               .overwrite = false,
                               .type = type,
                               .tokenizer = "",
                               .file_bytes = two_files ? 0 : 1 << 30}); // each tensor has its own file
  }

  std::string file_of(const std::string& tensor) const {
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      const std::string file = entry.path().string();
      if (file.ends_with(".safetensors") && SafetensorsFile(file).tensors().contains(tensor)) return file;
    }
    FAIL("no file has " << tensor);
    return "";
  }
  void put(const std::string& tensor, const std::string& bytes) const {
    const std::string file = file_of(tensor);
    const int64_t begin = SafetensorsFile(file).tensors().at(tensor).begin;
    std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
    stream.seekp(begin + static_cast<int64_t>(bytes.size())); // the second element
    stream << bytes;
  }
  void replace_in_index(const std::string& from, const std::string& to) const {
    std::string text = read_text_file(path + "/" + kIndex);
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    write_file_atomic(path + "/" + kIndex, text.replace(at, from.size(), to));
  }
  Error refusal() const {
    const Error error = expect_error([&] { read_all(); });
    CHECK(error.code() == ExitCode::checkpoint);
    return error;
  }
  void read_all() const {
    const auto weights = open_hugging_face(path);
    for (const char* name : {"wte.weight", "wpe.weight", "h.0.ln_1.weight", "h.0.attn.c_attn.weight", "ln_f.bias"}) {
      std::vector<float> values(1);
      for (const int64_t extent : weights->shape(std::string("params/") + name)) values.resize(values.size() * extent);
      weights->read_floats(std::string("params/") + name, values);
    }
  }
};

std::string bytes_of(float value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }

} // namespace

TEST_CASE("NaN and infinity are refused with file and tensor") {
  for (const float bad : {std::nanf(""), -std::nanf(""), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const char* name : {"wte.weight", "h.0.ln_1.weight", "h.0.attn.c_attn.weight"}) {
      for (const bool two_files : {false, true}) {
        const Model model(two_files);
        CHECK_NOTHROW(model.read_all());
        model.put(std::string("transformer.") + name, bytes_of(bad));
        const Error error = model.refusal();
        CAPTURE(error.what());
        CHECK(mentions(error, model.file_of(std::string("transformer.") + name) + ": " + name));
        CHECK(mentions(error, "not finite"));
      }
    }
  }
  const Model half(false, WeightType::bf16);
  half.put("transformer.wpe.weight", {"\x80\xff", 2}); // minus infinity
  CHECK(mentions(half.refusal(), "wpe.weight holds values that are not finite"));
}

TEST_CASE("the index says which file a tensor is in, and must be right") {
  const Model model(true);
  const std::string first = std::filesystem::path(model.file_of("transformer.wte.weight")).filename().string();
  const std::string second = std::filesystem::path(model.file_of("transformer.wpe.weight")).filename().string();
  REQUIRE(first != second);
  model.replace_in_index("\"transformer.wpe.weight\": \"" + second, "\"transformer.wpe.weight\": \"" + first);
  CHECK(mentions(model.refusal(), "it lists transformer.wpe.weight in " + first));

  const Model outside(true);
  outside.replace_in_index("\"" + second, "\"../" + second);
  CHECK(mentions(outside.refusal(), "is in no file of that folder"));

  const Model twice(true);
  twice.replace_in_index("\"transformer.wpe.weight\"", "\"transformer.wte.weight\"");
  CHECK(mentions(twice.refusal(), "\"transformer.wte.weight\" twice"));
}

TEST_CASE("a tensor that two files have is refused, whichever the index names") {
  const Model model(true);
  const std::string file = model.file_of("transformer.ln_f.bias"), other = model.file_of("transformer.wpe.weight");
  const SafetensorsFile stored(other);
  std::vector<NewTensor> tensors = {{"transformer.wpe.weight", stored.tensors().at("transformer.wpe.weight").shape},
                                    {"transformer.ln_f.bias", {8}}};
  SafetensorsWriter writer(other, tensors, WeightType::f32); // the index still says that the bias is in `file`
  writer.append(std::vector<float>(SafetensorsWriter::data_bytes(tensors, WeightType::f32) / 4, 2.0f));
  writer.close();
  const Error error = model.refusal();
  CAPTURE(error.what());
  CHECK(mentions(error, "ln_f.bias occurs twice"));
  CHECK(mentions(error, file));
  CHECK(mentions(error, other));
}
