// One table of words per enum: what a user types, what the help lists, what files and messages say. The table stands
// beside the enum, or beside what reads the words, as a function that these find by the enum's type:
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
  throw std::logic_error("an enum's table of names lacks a value");
}

template <class Enum>
std::optional<Enum> value_named(std::string_view name) {
  for (const auto& entry : names_of(Enum{})) {
    if (entry.name == name) return entry.value;
  }
  return std::nullopt;
}

} // namespace gpt2
