// One table of names per enum, for options, help, files and messages. The table is a function next to the enum, found
// by argument-dependent lookup:
//
//   constexpr auto names_of(Decay) {
//     return std::to_array<EnumName<Decay>>({{Decay::cosine, "cosine"}, {Decay::linear, "linear"}});
//   }
#pragma once

#include <array>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace gpt2 {

template <class Enum>
struct EnumName {
  Enum value;
  std::string_view name;
};

template <class Enum>
std::string name_of(Enum value) {
  for (const auto& entry : names_of(Enum{})) {
    if (entry.value == value) return std::string(entry.name);
  }
  throw std::logic_error("names_of() of an enum lacks a value");
}

template <class Enum>
std::optional<Enum> value_named(std::string_view name) {
  for (const auto& entry : names_of(Enum{})) {
    if (entry.name == name) return entry.value;
  }
  return std::nullopt;
}

} // namespace gpt2
