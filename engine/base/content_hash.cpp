#include "engine/base/content_hash.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

namespace gpt2 {
namespace {

std::string hex(XXH128_hash_t hash) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

} // namespace

std::string hash_of(std::span<const std::byte> bytes) { return hex(XXH3_128bits(bytes.data(), bytes.size())); }

std::string hash_of_range(const File& file, int64_t begin, int64_t count) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  XXH3_128bits_reset(state.get());
  std::vector<std::byte> buffer(static_cast<size_t>(std::min<int64_t>(count, 1 << 20))); // stays in the core's cache
  for (int64_t at = begin; at < begin + count;) {
    const auto part = std::span(buffer).first(static_cast<size_t>(std::min<int64_t>(begin + count - at, 1 << 20)));
    file.read_at(at, part);
    XXH3_128bits_update(state.get(), part.data(), part.size());
    at += static_cast<int64_t>(part.size());
  }
  return hex(XXH3_128bits_digest(state.get()));
}

} // namespace gpt2
