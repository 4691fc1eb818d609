#include "engine/dist/secret.h"

#include <sodium.h>
#include <sys/stat.h>

#include <cstdint>
#include <stdexcept>

#include "engine/base/error.h"
#include "engine/base/files.h"

namespace gpt2 {
namespace {

static_assert(crypto_auth_hmacsha256_KEYBYTES == std::tuple_size_v<Key>);
static_assert(crypto_auth_hmacsha256_BYTES == kMacBytes);

constexpr size_t kShortestToken = 16; // bytes: whoever records a handshake can try shorter ones
constexpr size_t kLongestTokenFile = 4096;
constexpr const char* kTokenHint = "export GPT2_JOB_TOKEN=$(openssl rand -hex 32), the same for all ranks";

void initialize_libsodium() {
  static const int status = ::sodium_init();
  if (status < 0) throw std::runtime_error("libsodium has no source of random bytes");
}

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

std::string text_of(const char* variable, const Environment& environment) {
  const char* const text = environment(variable);
  return text ? text : "";
}

std::string text_of_token_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw_system_error(ExitCode::usage, "open", path, errno);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ExitCode::usage, "GPT2_JOB_TOKEN_FILE=" + path + " is not a regular file", kTokenHint);
  }
  if ((status.st_mode & 077) != 0) {
    throw Error(ExitCode::usage, "GPT2_JOB_TOKEN_FILE=" + path + ": other users may read or write the file",
                "chmod 600 " + path);
  }
  return read_text_file(path, ExitCode::usage, kLongestTokenFile);
}

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

std::optional<Key> key_of_token(const Launch& launch, const Environment& environment) {
  std::string token = text_of("GPT2_JOB_TOKEN", environment), source = "GPT2_JOB_TOKEN";
  if (token.empty()) {
    const std::string file = text_of("GPT2_JOB_TOKEN_FILE", environment);
    if (file.empty()) return std::nullopt;
    token = text_of_token_file(file), source = "GPT2_JOB_TOKEN_FILE=" + file;
  }
  token.erase(token.find_last_not_of(" \r\n") + 1);
  if (token.size() < kShortestToken) {
    throw Error(ExitCode::usage,
                source + ": the token has fewer than " + std::to_string(kShortestToken) + " characters", kTokenHint);
  }
  return derived_key(derived_key({}, {"gpt2 token", token}), {launch.job});
}

} // namespace gpt2
