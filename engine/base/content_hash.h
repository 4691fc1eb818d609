// XXH3-128 as 32 hexadecimal digits, what xxh128sum prints: the hash that manifests of checkpoints and data sets hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "engine/base/files.h"

namespace gpt2 {

std::string hash_of(std::span<const std::byte> bytes);
std::string hash_of_range(const File& file, int64_t begin, int64_t count); // without holding it in memory

} // namespace gpt2
