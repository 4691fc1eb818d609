// Option files: TOML and YAML. What was read can be written, and reads back the same.
#include "engine/base/toml.h"
#include "tests/fuzz/fuzz_input.h"

using namespace gpt2;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string text(fuzz::text_of(bytes, size));
  fuzz::expect_answer([&] {
    for (const TomlLine& line : read_toml(text, "input.toml")) {
      const std::vector<TomlLine> again = read_toml("x = " + toml_string(line.value), "again.toml");
      fuzz::require(again.size() == 1 && again.front().value == line.value);
    }
  });
  fuzz::expect_answer([&] { read_yaml(text, "input.yaml"); });
  return 0;
}
