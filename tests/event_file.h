// TensorBoard's event files, read back by a few lines of our own: records, and the protobuf messages in them.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "engine/logging/crc32c.h"

namespace gpt2::testing {

inline std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

template <typename Value>
Value read_as(std::string_view bytes) {
  REQUIRE(bytes.size() >= sizeof(Value));
  Value value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// The whole records of a file; a torn last one is left out, a wrong CRC fails the test.
inline std::vector<std::string> read_records(const std::string& path) {
  const std::string bytes = read_file(path);
  std::vector<std::string> records;
  for (std::string_view rest = bytes; rest.size() >= 12;) {
    const auto length = read_as<uint64_t>(rest);
    CHECK(read_as<uint32_t>(rest.substr(8)) == masked_crc32c(rest.substr(0, 8)));
    if (rest.size() < 16 + length) break;
    records.emplace_back(rest.substr(12, length));
    CHECK(read_as<uint32_t>(rest.substr(12 + length)) == masked_crc32c(records.back()));
    rest.remove_prefix(16 + length);
  }
  return records;
}

struct Field {
  int number;
  uint64_t integer;  // varint
  std::string bytes; // everything else
};

inline uint64_t take_varint(std::string_view& rest) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = read_as<uint8_t>(rest);
    rest.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
}

inline std::vector<Field> parse(std::string_view rest) {
  std::vector<Field> fields;
  while (!rest.empty()) {
    const uint64_t key = take_varint(rest);
    Field field{static_cast<int>(key >> 3), 0, ""};
    if ((key & 7) == 0) {
      field.integer = take_varint(rest);
    } else {
      const size_t size = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : take_varint(rest);
      REQUIRE(size <= rest.size());
      field.bytes = rest.substr(0, size);
      rest.remove_prefix(size);
    }
    fields.push_back(field);
  }
  return fields;
}

inline Field find(std::string_view message, int number) {
  for (const Field& field : parse(message)) {
    if (field.number == number) return field;
  }
  FAIL("field ", number, " is not there");
  return {};
}

inline std::vector<std::string> event_files(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

inline std::vector<double> doubles(const std::string& bytes) {
  std::vector<double> values(bytes.size() / sizeof(double));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

} // namespace gpt2::testing
