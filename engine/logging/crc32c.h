// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), and the masked form that TFRecord files store.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace gpt2 {

constexpr std::array<uint32_t, 256> make_crc32c_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0u);
    table[byte] = crc;
  }
  return table;
}

constexpr uint32_t crc32c(std::string_view bytes) {
  constexpr auto table = make_crc32c_table();
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = (crc >> 8) ^ table[(crc ^ static_cast<uint8_t>(c)) & 0xFF];
  return ~crc;
}

// A CRC computed over data that embeds its own CRC is degenerate; TFRecord rotates and offsets it.
constexpr uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

} // namespace gpt2
