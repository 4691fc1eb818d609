// All JSON is parsed here. Bounds the size and depth of a text before nlohmann's parser reads it: nlohmann copies,
// compares, prints and destroys values recursively, so 100,000 nested brackets would overflow the stack.
// tests/test_json_sources.py finds other calls of a parser. Header only: engine/base does not link nlohmann.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace gpt2 {

struct JsonLimits {
  size_t bytes = size_t{256} << 20;
  int depth = 64;           // of nested arrays and objects
  bool unique_keys = false; // refuse duplicate keys; otherwise the last one wins
};

// An ordered object finds a key in linear time, so n keys take n^2. Our files have at most 20 keys per object, the
// config.json of a model about 50.
constexpr size_t kMostOrderedKeys = 200;

// Nesting depth of brackets outside of strings, counted up to limit + 1. Correct up to the first syntax error, where a
// parser stops.
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

// Checks the keys in O(n log n). nlohmann's parser callback would search the parent at the end of each object.
class JsonKeys : public nlohmann::json_sax<nlohmann::json> {
 public:
  JsonKeys(bool unique, size_t most) : unique_(unique), most_(most) {}
  const std::string& problem() const { return problem_; } // "": none, or invalid JSON

  bool start_object(size_t) override {
    keys_.emplace_back();
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    return true;
  }
  bool key(std::string& name) override {
    auto& [count, names] = keys_.back();
    if (++count > most_) problem_ = "it has an object of more than " + std::to_string(most_) + " keys";
    if (unique_ && !names.insert(name).second) problem_ = "it has \"" + name + "\" twice";
    return problem_.empty();
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) override { return false; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(nlohmann::json::binary_t&) override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }

 private:
  struct Object {
    size_t count = 0;
    std::set<std::string> names; // only if unique_
  };
  bool unique_;
  size_t most_; // keys per object
  std::vector<Object> keys_;
  std::string problem_;
};

// The value; on failure a discarded one (is_discarded()) and the reason in `why`.
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
    constexpr bool ordered = std::is_same_v<Json, nlohmann::ordered_json>;
    if (ordered || limits.unique_keys) {
      JsonKeys keys(limits.unique_keys, ordered ? kMostOrderedKeys : SIZE_MAX);
      nlohmann::json::sax_parse(text, &keys);
      if (!keys.problem().empty()) return refuse(keys.problem());
    }
    return Json::parse(text);
  } catch (const typename Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 3: ...; last read: '(any length of the text)'"
    const std::string what = error.what();
    const size_t begin = what.starts_with('[') ? what.find("] ") + 2 : 0;
    return refuse("it is not JSON: " + what.substr(begin, std::min(what.find("; last read"), begin + 120) - begin));
  }
}

} // namespace gpt2
