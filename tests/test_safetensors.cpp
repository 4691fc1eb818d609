// Hugging Face's file format: what is written is read, what is damaged is refused.
#include "engine/pretrained/safetensors.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "tests/expect_error.h"
#include "tests/temporary_folder.h"
#include "tools/export_hf/safetensors_writer.h"

using namespace gpt2;

namespace {

std::vector<float> numbers(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) / 7 - 3;
  return values;
}

void write_raw(const std::string& path, const std::string& header, const std::string& data) {
  std::ofstream file(path, std::ios::binary);
  const uint64_t length = header.size();
  file.write(reinterpret_cast<const char*>(&length), 8);
  file << header << data;
}

std::string refusal(const std::string& path) {
  const Error error = expect_error([&] { SafetensorsFile file(path); });
  CHECK(error.code() == ExitCode::checkpoint);
  CHECK(mentions(error, path));
  return error.what();
}

} // namespace

TEST_CASE("tensors come back, bit for bit in FP32 and rounded in BF16; ranges too") {
  TemporaryFolder folder;
  const std::vector<NewTensor> tensors = {{"a", {3, 5}}, {"b", {7}}};
  const std::vector<float> values = numbers(22);
  for (const WeightType type : {WeightType::f32, WeightType::bf16}) {
    SafetensorsWriter writer(folder / "x.safetensors", tensors, type);
    writer.append(std::span(values).first(4)); // in parts as it comes
    writer.append(std::span(values).subspan(4));
    writer.close();
    const SafetensorsFile file(folder / "x.safetensors");
    REQUIRE(file.tensors().size() == 2);
    CHECK(file.tensors().at("a").shape == std::vector<int64_t>{3, 5});
    std::vector<float> a(15), part(4);
    file.read("a", 0, a);
    file.read("b", 2, part);
    const double tolerance = type == WeightType::f32 ? 0 : 1.0 / 256;
    for (size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - values[i]) <= tolerance * std::abs(values[i]));
    for (size_t i = 0; i < part.size(); ++i)
      CHECK(std::abs(part[i] - values[17 + i]) <= tolerance * std::abs(values[17 + i]));
  }
}

TEST_CASE("FP16 is read: normal and subnormal numbers, infinities") {
  TemporaryFolder folder;
  const uint16_t codes[] = {0x3C00, 0xC000, 0x0001, 0x8000, 0x7C00, 0x3555};
  write_raw(folder / "h", R"({"h":{"dtype":"F16","shape":[6],"data_offsets":[0,12]}})",
            {reinterpret_cast<const char*>(codes), sizeof codes});
  std::vector<float> values(6);
  SafetensorsFile(folder / "h").read("h", 0, values);
  CHECK(values[0] == 1);
  CHECK(values[1] == -2);
  CHECK(values[2] == 0x1p-24f);
  CHECK((values[3] == 0 && std::signbit(values[3])));
  CHECK(values[4] == std::numeric_limits<float>::infinity());
  CHECK(values[5] == doctest::Approx(1.0 / 3).epsilon(1e-3));
}

TEST_CASE("what is not a whole safetensors file is refused, with the reason") {
  TemporaryFolder folder;
  const std::string path = folder / "bad";
  const auto refuses = [&](const std::string& header, const std::string& data, const std::string& words) {
    write_raw(path, header, data);
    CHECK(contains(refusal(path), words));
  };
  std::ofstream(path) << "short";
  CHECK(contains(refusal(path), "too short"));
  std::ofstream(path, std::ios::binary) << std::string(8, '\xff') << "no header of that length";
  CHECK(contains(refusal(path), "not a safetensors file"));
  refuses("[1, 2]", "", "not a JSON object");
  refuses("{\"a\":", "", "not JSON");
  refuses(R"({"a":{"dtype":"F32","shape":[2]}})", "", "no type, shape and offsets for a");
  refuses(R"({"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", "12345678", "of type I64");
  refuses(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "1234", "is out of range"); // cut short
  refuses(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "1234", "4 bytes, not 8");
  refuses(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "12345678", "is out of range");
  refuses(R"({"a":{"dtype":"F32","shape":[1099511627776,1099511627776],"data_offsets":[0,8]}})", "12345678",
          "too many elements");
  refuses(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
      "123456", "overlap");
  refuses(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
      "12345678", "\"a\" twice");
}
