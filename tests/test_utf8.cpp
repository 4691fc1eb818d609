#include "engine/base/utf8.h"

#include <doctest/doctest.h>

#include <string>

using namespace gpt2;

TEST_CASE("valid UTF-8 is told from what is not") {
  const std::string good = "plain ascii, é, 語, 🙂, \U0010FFFF, \u07FF\uFFFD";
  CHECK(valid_utf8_prefix(good) == good.size());
  for (const char* bad : {"\x80", "\xC0\xAF", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
                          "\xF4\x90\x80\x80", "\xF5", "\xC3", "\xE2\x82", "\xF0\x9F\x99"}) {
    CHECK(valid_utf8_prefix(bad) == 0);
    CHECK(valid_utf8_prefix(good + bad) == good.size());
    CHECK(valid_utf8_prefix(good + bad + "tail") == good.size());
  }
}

TEST_CASE("text that is not UTF-8 is repaired, the rest is left alone") {
  CHECK(to_valid_utf8("plain \xC3\xA4 \xE2\x82\xAC \xF0\x9F\x99\x82") ==
        "plain \xC3\xA4 \xE2\x82\xAC \xF0\x9F\x99\x82");
  CHECK(to_valid_utf8("a\xFF"
                      "b") ==
        "a\xEF\xBF\xBD"
        "b");
  CHECK(to_valid_utf8("\xC3") == "\xEF\xBF\xBD");                                 // cut short
  CHECK(to_valid_utf8("\xC0\xAF") == "\xEF\xBF\xBD\xEF\xBF\xBD");                 // overlong
  CHECK(to_valid_utf8("\xED\xA0\x80") == "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"); // surrogate
  CHECK(to_valid_utf8("\xF4\x90\x80\x80").size() == 12);                          // above U+10FFFF
}
