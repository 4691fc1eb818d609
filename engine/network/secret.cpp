#include "engine/network/secret.h"

#include <sodium.h>

#include <cstdint>
#include <stdexcept>

namespace gpt2 {
namespace {

static_assert(crypto_auth_hmacsha256_KEYBYTES == std::tuple_size_v<Key>);
static_assert(crypto_auth_hmacsha256_BYTES == kMacBytes);

void initialize_libsodium() {
  static const int status = ::sodium_init();
  if (status < 0) throw std::runtime_error("libsodium has no source of random bytes");
}

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

} // namespace

std::string random_bytes(size_t count) {
  initialize_libsodium();
  std::string bytes(count, '\0');
  ::randombytes_buf(bytes.data(), bytes.size());
  return bytes;
}

Key random_key() {
  initialize_libsodium();
  Key key;
  ::randombytes_buf(key.data(), key.size());
  return key;
}

Key derived_key(const Key& key, std::initializer_list<std::string_view> parts) {
  initialize_libsodium();
  crypto_auth_hmacsha256_state state;
  ::crypto_auth_hmacsha256_init(&state, key.data(), key.size());
  for (const std::string_view part : parts) {
    const uint64_t size = part.size();
    ::crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(&size), sizeof size);
    ::crypto_auth_hmacsha256_update(&state, bytes_of(part), part.size());
  }
  Key mac;
  ::crypto_auth_hmacsha256_final(&state, mac.data());
  return mac;
}

std::string hmac(const Key& key, std::initializer_list<std::string_view> parts) {
  const Key mac = derived_key(key, parts);
  return {mac.begin(), mac.end()};
}

bool same_in_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string to_hex(const Key& key) {
  char text[2 * std::tuple_size_v<Key> + 1];
  return ::sodium_bin2hex(text, sizeof text, key.data(), key.size());
}

std::optional<Key> key_of_hex(std::string_view hex) {
  Key key;
  size_t size = 0;
  const char* end = nullptr;
  const int status = ::sodium_hex2bin(key.data(), key.size(), hex.data(), hex.size(), nullptr, &size, &end);
  if (status != 0 || size != key.size() || end != hex.data() + hex.size()) return std::nullopt;
  return key;
}

} // namespace gpt2
