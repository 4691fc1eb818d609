#include "engine/base/hash.h"

#include <bit>
#include <cstring>

namespace gpt2 {

namespace {

static_assert(std::endian::native == std::endian::little, "lanes are read as little-endian words");

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87ull;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Full;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9ull;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63ull;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5ull;
constexpr size_t kStripe = 32; // four lanes of eight bytes

template <class Word>
uint64_t load(const std::byte* at) {
  Word word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

uint64_t absorb(uint64_t lane, uint64_t word) { return std::rotl(lane + word * kPrime2, 31) * kPrime1; }

// Steps 1 to 3 of the specification: four independent lanes over whole stripes, then one value.
uint64_t digest_stripes(const std::byte*& at, size_t stripes, uint64_t seed) {
  uint64_t lanes[4] = {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
  for (; stripes > 0; --stripes, at += kStripe) {
    for (int i = 0; i < 4; ++i) lanes[i] = absorb(lanes[i], load<uint64_t>(at + 8 * i));
  }
  uint64_t hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
  for (const uint64_t lane : lanes) hash = (hash ^ absorb(0, lane)) * kPrime1 + kPrime4;
  return hash;
}

// Step 5: what is left after the stripes, fewer than 32 bytes.
uint64_t digest_tail(uint64_t hash, const std::byte* at, size_t left) {
  for (; left >= 8; left -= 8, at += 8) {
    hash = std::rotl(hash ^ absorb(0, load<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (left >= 4) {
    hash = std::rotl(hash ^ (load<uint32_t>(at) * kPrime1), 23) * kPrime2 + kPrime3;
    left -= 4, at += 4;
  }
  for (; left > 0; --left, ++at) hash = std::rotl(hash ^ (load<uint8_t>(at) * kPrime5), 11) * kPrime1;
  return hash;
}

uint64_t avalanche(uint64_t hash) {
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

} // namespace

uint64_t xxh64(std::span<const std::byte> bytes, uint64_t seed) {
  const std::byte* at = bytes.data();
  const size_t stripes = bytes.size() / kStripe;
  uint64_t hash = stripes > 0 ? digest_stripes(at, stripes, seed) : seed + kPrime5;
  hash += bytes.size();
  return avalanche(digest_tail(hash, at, bytes.size() % kStripe));
}

} // namespace gpt2
