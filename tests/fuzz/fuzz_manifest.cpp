// manifest.json, as it is and with its own hash made anew, so that mutations reach the parser behind it; what the
// parser takes reads back to the same text.
#include <nlohmann/json.hpp>

#include "engine/hdf5/manifest.h"
#include "tests/fuzz/fuzz_input.h"

using namespace gpt2;

namespace {

void read(const std::string& text) {
  fuzz::expect_answer([&] { fuzz::require(to_text(parse_manifest(text, "manifest.json")) == text); });
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string text(fuzz::text_of(bytes, size));
  read(text);
  auto json = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!json.is_object()) return 0;
  json.erase("xxh3_128");
  const std::string hashed = json.dump(1);
  json["xxh3_128"] = hash_of(std::as_bytes(std::span(hashed)));
  read(json.dump(1) + "\n");
  return 0;
}
