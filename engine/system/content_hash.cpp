#include "engine/system/content_hash.h"

#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h> // the same functions with the machine's widest vectors
#else
#include <xxhash.h>
#endif

#include <algorithm>

#include "engine/base/formatted.h"

namespace gpt2 {
namespace {

std::string hex(XXH128_hash_t hash) {
  return formatted("%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                   static_cast<unsigned long long>(hash.low64));
}

constexpr size_t kChunk = 1 << 20; // bytes: read, then hashed from the core's cache

} // namespace

uint64_t xxh64(std::span<const std::byte> bytes, uint64_t seed) { return XXH64(bytes.data(), bytes.size(), seed); }

std::string hash_of(std::span<const std::byte> bytes) { return hex(XXH3_128bits(bytes.data(), bytes.size())); }

std::string hash_of_range(const File& file, int64_t begin, int64_t count) {
  HashingReader reader(file, begin);
  reader.skip(count);
  return reader.hash();
}

HashingReader::HashingReader(const File& file, int64_t begin)
    : file_(file), at_(begin), state_(XXH3_createState(), [](XXH3_state_t* state) { XXH3_freeState(state); }) {
  XXH3_128bits_reset(state_.get());
}

void HashingReader::read(std::span<std::byte> out) {
  while (!out.empty()) {
    const auto chunk = out.first(std::min(out.size(), kChunk));
    file_.read_at(at_, chunk);
    XXH3_128bits_update(state_.get(), chunk.data(), chunk.size());
    at_ += static_cast<int64_t>(chunk.size());
    out = out.subspan(chunk.size());
  }
}

void HashingReader::skip(int64_t count) {
  skipped_.resize(std::max(skipped_.size(), std::min(static_cast<size_t>(count), kChunk)));
  while (count > 0) {
    const auto chunk = std::span(skipped_).first(std::min(static_cast<size_t>(count), kChunk));
    read(chunk);
    count -= static_cast<int64_t>(chunk.size());
  }
}

std::string HashingReader::hash() const { return hex(XXH3_128bits_digest(state_.get())); }

} // namespace gpt2
