#include "engine/system/content_hash.h"

#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h> // the same functions with the widest vectors that the machine has
#else
#include <xxhash.h>
#endif

#include <algorithm>
#include <cstdio>

namespace gpt2 {
namespace {

std::string hex(XXH128_hash_t hash) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text;
}

constexpr size_t kPiece = 1 << 20; // bytes that are read, and hashed while they are in the core's cache

} // namespace

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
    const auto piece = out.first(std::min(out.size(), kPiece));
    file_.read_at(at_, piece);
    XXH3_128bits_update(state_.get(), piece.data(), piece.size());
    at_ += static_cast<int64_t>(piece.size());
    out = out.subspan(piece.size());
  }
}

void HashingReader::skip(int64_t count) {
  skipped_.resize(std::max(skipped_.size(), std::min(static_cast<size_t>(count), kPiece)));
  while (count > 0) {
    const auto piece = std::span(skipped_).first(std::min(static_cast<size_t>(count), kPiece));
    read(piece);
    count -= static_cast<int64_t>(piece.size());
  }
}

std::string HashingReader::hash() const { return hex(XXH3_128bits_digest(state_.get())); }

} // namespace gpt2
