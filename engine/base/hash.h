// XXH64, after the public xxHash specification: finds damaged bytes in shards and checkpoints at memory speed.
// Not for security.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpt2 {

uint64_t xxh64(std::span<const std::byte> bytes, uint64_t seed = 0);

} // namespace gpt2
