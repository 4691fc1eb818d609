// Serialization of messages between ranks: little-endian numbers, texts preceded by their length.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace gpt2 {

static_assert(std::endian::native == std::endian::little, "numbers are sent as they are in memory");

class Packer {
 public:
  template <class Number>
  Packer& put(Number number) {
    static_assert(std::is_arithmetic_v<Number>);
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);
    return *this;
  }
  Packer& put_text(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Bytes may come from an unauthenticated peer: beyond the end take() returns zero or empty, and complete() is false.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : left_(bytes) {}
  explicit Unpacker(std::string&& temporary) = delete;

  template <class Number>
  Number take() {
    static_assert(std::is_arithmetic_v<Number>);
    Number number = 0;
    if (const std::string_view bytes = cut(sizeof number); !bytes.empty()) {
      std::memcpy(&number, bytes.data(), sizeof number);
    }
    return number;
  }
  std::string take_text() { return std::string(cut(take<uint32_t>())); }
  bool complete() const { return !overrun_ && left_.empty(); }

 private:
  std::string_view cut(size_t size) {
    if (size > left_.size()) {
      overrun_ = true;
      size = 0;
    }
    const std::string_view part = left_.substr(0, size);
    left_.remove_prefix(size);
    return part;
  }

  std::string_view left_;
  bool overrun_ = false;
};

} // namespace gpt2
