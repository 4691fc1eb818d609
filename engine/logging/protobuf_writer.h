// Protocol-buffer wire format, the part that event files need: each field is a key (number << 3 | wire type)
// followed by a varint, 4 or 8 little-endian bytes, or a length and that many bytes.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gpt2 {

static_assert(std::endian::native == std::endian::little, "fixed-width fields are copied from memory");

class ProtobufWriter {
 public:
  ProtobufWriter& integer(int field, int64_t value) { // int32, int64, bool, enum
    key(field, 0);
    varint(static_cast<uint64_t>(value));
    return *this;
  }
  ProtobufWriter& real(int field, double value) {
    key(field, 1);
    raw(&value, sizeof value);
    return *this;
  }
  ProtobufWriter& real(int field, float value) {
    key(field, 5);
    raw(&value, sizeof value);
    return *this;
  }
  ProtobufWriter& text(int field, std::string_view value) { // string, bytes
    key(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  ProtobufWriter& message(int field, const ProtobufWriter& value) { return text(field, value.bytes_); }
  ProtobufWriter& packed(int field, std::span<const double> values) {
    return text(field, {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
  }

  const std::string& bytes() const { return bytes_; }

 private:
  void key(int field, int wire_type) { varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire_type)); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  void raw(const void* data, size_t size) { bytes_.append(static_cast<const char*>(data), size); }

  std::string bytes_;
};

} // namespace gpt2
