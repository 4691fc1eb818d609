#include "engine/base/shell_quote.h"
#include "tools/common/shell_words.h"

#include <doctest/doctest.h>

#include "tests/expect_error.h"

using namespace gpt2;
using Words = std::vector<std::string>;

TEST_CASE("words are those of a POSIX shell, with nothing expanded") {
  const auto words = [](const std::string& text) { return shell_words(text, "--set"); };
  CHECK(words("") == Words{});
  CHECK(words(" \t\n ") == Words{});
  CHECK(words("  --a  b\tc\n") == Words{"--a", "b", "c"});
  CHECK(words("'my data/*.bin' \"$HOME `x`\" a\\ b") == Words{"my data/*.bin", "$HOME `x`", "a b"});
  CHECK(words("--a='b c'd\"e f\"") == Words{"--a=b cde f"});
  CHECK(words("'' \"\" x") == Words{"", "", "x"});
  CHECK(words(R"('a\b' "a\b" "a\"b" "a\\b" a\\b a\'b)") ==
        Words{R"(a\b)", R"(a\b)", "a\"b", R"(a\b)", R"(a\b)", "a'b"});
  CHECK(words("a\\\nb") == Words{"ab"});
  for (const char* text : {"it's", "a \"b", "\"a\\\"", "a\\"}) {
    const Error error = expect_error([&] { words(text); });
    CHECK(error.code() == ExitCode::usage);
    CHECK(mentions(error, "--set: "));
    CHECK_FALSE(error.hint().empty());
  }
}

TEST_CASE("a word that is written is the word that is read") {
  for (const std::string& word : {std::string(), std::string("runs/a-b_1.toml"), std::string("my runs"),
                                  std::string("it's"), std::string("$x \"y\" \\z *"), std::string("a\nb")})
    CHECK(shell_words(shell_quote(word), "") == Words{word});
  CHECK(shell_quote("runs/a-b_1.toml") == "runs/a-b_1.toml");
}
