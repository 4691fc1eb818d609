// The secret of a job: keys, HMAC-SHA256 and random bytes, by libsodium.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace gpt2 {

using Key = std::array<unsigned char, 32>;
constexpr size_t kMacBytes = 32;

std::string random_bytes(size_t count); // from the kernel
Key random_key();

// HMAC-SHA256 of all parts, each preceded by its length: the encoding is injective.
std::string hmac(const Key& key, std::initializer_list<std::string_view> parts);
Key derived_key(const Key& key, std::initializer_list<std::string_view> parts);
bool same_in_constant_time(std::string_view a, std::string_view b);

std::string to_hex(const Key& key);
std::optional<Key> key_of_hex(std::string_view hex);

} // namespace gpt2
