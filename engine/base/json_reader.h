// The only way in for JSON. Size and depth of a text are bounded before nlohmann's parser reads it: values are copied,
// compared, printed and destroyed recursively, so a file of 100,000 brackets would overflow the stack.
// tests/test_json_sources.py finds any other call of a parser. A header alone: engine/base stays without nlohmann.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace gpt2 {

struct JsonLimits {
  size_t bytes = size_t{256} << 20;
  int depth = 64;           // of arrays and objects in each other
  bool unique_keys = false; // refuse an object that has a key twice; otherwise the last one counts
};

// Brackets outside of strings that are open at the same time, counted up to limit + 1. Before the first error in the
// text this is what a parser sees; it does not read on behind the error.
inline int json_depth(std::string_view text, int limit) {
  int depth = 0, deepest = 0;
  for (size_t i = 0; i < text.size() && deepest <= limit; ++i) {
    switch (text[i]) {
      case '"':
        for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\' ? 1 : 0;
        break;
      case '[':
      case '{':
        deepest = std::max(deepest, ++depth);
        break;
      case ']':
      case '}':
        --depth;
        break;
      default:
        break;
    }
  }
  return deepest;
}

// A callback for the parser that notes a key which an object has twice.
template <class Json>
typename Json::parser_callback_t note_repeated_key(std::string& repeated) {
  return [&repeated, keys = std::vector<std::set<std::string>>()](int, typename Json::parse_event_t event,
                                                                  Json& value) mutable {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.template get<std::string>()).second)
      repeated = value.template get<std::string>();
    return true;
  };
}

// The value, or a discarded one (is_discarded(), of no type) and in `why` the reason.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text, const JsonLimits& limits = {}, std::string* why = nullptr) {
  const auto refuse = [&](const std::string& reason) {
    if (why) *why = reason;
    return Json(Json::value_t::discarded);
  };
  if (text.size() > limits.bytes) return refuse("it is longer than " + std::to_string(limits.bytes) + " bytes");
  if (json_depth(text, limits.depth) > limits.depth)
    return refuse("it is nested more than " + std::to_string(limits.depth) + " deep");
  try {
    if (!limits.unique_keys) return Json::parse(text);
    std::string repeated;
    Json value = Json::parse(text, note_repeated_key<Json>(repeated));
    return repeated.empty() ? value : refuse("it has \"" + repeated + "\" twice");
  } catch (const typename Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 3: ...; last read: '(any length of the text)'"
    const std::string what = error.what();
    const size_t begin = what.starts_with('[') ? what.find("] ") + 2 : 0;
    return refuse("it is not JSON: " + what.substr(begin, std::min(what.find("; last read"), begin + 120) - begin));
  }
}

} // namespace gpt2
