#include "tools/common/shell_words.h"

#include <utility>

#include "engine/base/error.h"

namespace gpt2 {
namespace {

class Reader {
 public:
  Reader(std::string_view text, const std::string& origin) : rest_(text), origin_(origin) {}

  std::vector<std::string> words() {
    while (!rest_.empty()) {
      const char c = take();
      if (c == ' ' || c == '\t' || c == '\n')
        end_word();
      else if (c == '\'')
        take_until_quote();
      else if (c == '"')
        take_until_double_quote();
      else if (c == '\\')
        take_escaped();
      else
        add(c);
    }
    end_word();
    return std::move(words_);
  }

 private:
  char take() {
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }
  void add(char c) { in_word_ = true, word_ += c; }
  void end_word() {
    if (in_word_) words_.push_back(word_);
    in_word_ = false;
    word_.clear();
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ExitCode::usage, origin_ + ": " + what, "close it, or write a backslash in front of it");
  }

  void take_until_quote() {
    in_word_ = true; // '' is a word
    const size_t end = rest_.find('\'');
    if (end == std::string_view::npos) fail("a ' is not closed");
    word_ += rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
  }

  void take_until_double_quote() {
    in_word_ = true;
    for (;;) {
      if (rest_.empty()) fail("a \" is not closed");
      const char c = take();
      if (c == '"') return;
      const bool escapes = c == '\\' && !rest_.empty() && std::string_view("\\\"$`\n").find(rest_[0]) != rest_.npos;
      if (escapes)
        take_escaped();
      else
        add(c);
    }
  }

  void take_escaped() {
    if (rest_.empty()) throw Error(ExitCode::usage, origin_ + ": it ends in a backslash", "leave it out, or write two");
    const char c = take();
    if (c != '\n') add(c); // a continued line
  }

  std::string_view rest_;
  const std::string& origin_;
  std::vector<std::string> words_;
  std::string word_;
  bool in_word_ = false;
};

} // namespace

std::vector<std::string> shell_words(std::string_view text, const std::string& origin) {
  return Reader(text, origin).words();
}

} // namespace gpt2
