#include "engine/text/pretokenize.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>

#include "engine/base/error.h"

namespace gpt2 {
namespace {

// W replaces the \s of GPT-2's pattern. PCRE2's \s also matches U+180E, which lost the White_Space property in
// Unicode 6.3; Python's regex and tiktoken do not match it.
#define W R"(\p{Z}\x{9}-\x{d}\x{85})"
constexpr char kPattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" W "\\p{L}\\p{N}]+|[" W "]+(?![^" W "])|[" W "]+";
#undef W

enum Class : uint8_t { letter, digit, space, other, beyond_ascii };

constexpr std::array<Class, 256> kClass = [] {
  std::array<Class, 256> classes{};
  for (int c = 0; c < 256; c++) {
    const bool alpha = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    classes[c] = c >= 128                          ? beyond_ascii
                 : alpha                           ? letter
                 : c >= '0' && c <= '9'            ? digit
                 : c == ' ' || (c >= 9 && c <= 13) ? space
                                                   : other;
  }
  return classes;
}();

Class class_at(std::string_view text, size_t i) { return kClass[static_cast<uint8_t>(text[i])]; }

size_t contraction(std::string_view text, size_t begin) {
  const std::string_view rest = text.substr(begin + 1, 2);
  if (rest.empty()) return 0;
  if (rest[0] == 's' || rest[0] == 't' || rest[0] == 'm' || rest[0] == 'd') return begin + 2;
  return rest == "re" || rest == "ve" || rest == "ll" ? begin + 3 : 0;
}

[[noreturn]] void fail(int code) {
  char message[256] = "";
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof message);
  throw Error(ExitCode::data, std::string("PCRE2: ") + message, "install a PCRE2 library built with Unicode support");
}

} // namespace

Splitter::Splitter()
    : pattern_(nullptr, [](void* code) { pcre2_code_free(static_cast<pcre2_code*>(code)); }),
      match_(pcre2_match_data_create(1, nullptr),
             [](void* match) { pcre2_match_data_free(static_cast<pcre2_match_data*>(match)); }) {
  if (!match_) throw std::bad_alloc();
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                   &error, &offset, nullptr);
  if (!code) fail(error);
  pattern_.reset(code);
  // Without a JIT for this machine pcre2_match interprets: slower, same result.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

size_t Splitter::next_by_pattern(std::string_view text, size_t begin) const {
  auto* match = static_cast<pcre2_match_data*>(match_.get());
  const int rc = pcre2_match(static_cast<const pcre2_code*>(pattern_.get()), reinterpret_cast<PCRE2_SPTR>(text.data()),
                             text.size(), begin, PCRE2_NO_UTF_CHECK, match, nullptr);
  if (rc < 0) fail(rc);
  // Every character matches some alternative, so the match starts at `begin` and is not empty.
  return pcre2_get_ovector_pointer(match)[1];
}

size_t Splitter::next_ascii(std::string_view text, size_t begin) {
  const size_t size = text.size();
  if (text[begin] == '\'') {
    if (const size_t end = contraction(text, begin)) return end;
  }
  const bool leading_space = text[begin] == ' ' && begin + 1 < size && class_at(text, begin + 1) != space;
  size_t end = begin + leading_space;
  const Class kind = class_at(text, end);
  if (kind == beyond_ascii) return 0;
  do end++;
  while (end < size && class_at(text, end) == kind);
  if (end == size) return end;
  if (class_at(text, end) == beyond_ascii) return 0;
  // \s+(?!\S): white space of two or more characters leaves its last one to the next word.
  return kind == space && end - begin > 1 ? end - 1 : end;
}

} // namespace gpt2
