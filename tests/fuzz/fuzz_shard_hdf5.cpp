// HDF5 shards: opened, every token read, every hash compared.
#include <vector>

#include "engine/data/shard.h"
#include "tests/fuzz/fuzz_input.h"
#include "tools/common/verify_data.h"

using namespace gpt2;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string path = fuzz::folder().write("shard.h5", fuzz::text_of(bytes, size));
  fuzz::expect_answer([&] {
    const auto shard = open_shard(path);
    std::vector<uint16_t> tokens(static_cast<size_t>(shard->tokens()));
    shard->read(0, tokens);
  });
  fuzz::expect_answer([&] { verify_hdf5_shard(path); });
  return 0;
}
