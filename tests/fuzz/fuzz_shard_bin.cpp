// llm.c's token files: whatever the header claims, no token is read from outside the file.
#include <vector>

#include "engine/data/shard.h"
#include "tests/fuzz/fuzz_input.h"

using namespace gpt2;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  // The header is mostly zeros: the input's first 12 bytes are its front, the rest are tokens.
  std::string file(fuzz::text_of(bytes, size));
  if (size > 12 && bytes[0] != 0x89) file.insert(12, 1012, '\0');
  const std::string path = fuzz::folder().write("shard", file);
  fuzz::expect_answer([&] {
    const auto shard = open_shard(path);
    std::vector<uint16_t> tokens(static_cast<size_t>(shard->tokens()));
    shard->read(0, tokens);
  });
  return 0;
}
