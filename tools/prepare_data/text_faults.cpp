#include "tools/prepare_data/text_faults.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "engine/base/formatted.h"
#include "engine/base/shell_quote.h"
#include "engine/base/utf8.h"

namespace gpt2 {
namespace {

int64_t count_invalid_utf8(std::string_view text) {
  int64_t invalid = 0;
  for (size_t at = valid_utf8_prefix(text); at < text.size(); at += valid_utf8_prefix(text.substr(at))) {
    ++invalid;
    ++at;
  }
  return invalid;
}

int64_t change_line_ends(std::string& text) {
  size_t from = text.find("\r\n");
  if (from == std::string::npos) return 0;
  const size_t before = text.size();
  size_t to = from;
  while (from < before) { // at a CR to drop
    const size_t next = std::min(text.find("\r\n", from + 1), before);
    std::copy(text.begin() + static_cast<ptrdiff_t>(from) + 1, text.begin() + static_cast<ptrdiff_t>(next),
              text.begin() + static_cast<ptrdiff_t>(to));
    to += next - from - 1;
    from = next;
  }
  text.resize(to);
  return static_cast<int64_t>(before - to);
}

std::string share_text(int64_t count, int64_t of) {
  const double percent = 100 * static_cast<double>(count) / static_cast<double>(std::max<int64_t>(1, of));
  return std::to_string(count) + " of " + counted(of, "byte") +
         (percent < 0.1 ? " (below 0.1%)" : formatted(" (%.1f%%)", percent));
}

} // namespace

void TextFaults::add(const TextFaults& other) {
  bytes += other.bytes;
  invalid_utf8 += other.invalid_utf8;
  nul += other.nul;
  utf8_marks += other.utf8_marks;
  utf16_marks += other.utf16_marks;
  crlf += other.crlf;
}

TextFaults clean_text(std::string& text, bool first) {
  TextFaults faults;
  faults.bytes = static_cast<int64_t>(text.size());
  faults.invalid_utf8 = count_invalid_utf8(text);
  faults.nul = std::ranges::count(text, '\0');
  faults.utf8_marks = first && text.starts_with("\xEF\xBB\xBF");
  faults.utf16_marks = first && (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"));
  faults.crlf = change_line_ends(text);
  return faults;
}

std::string describe(const TextFaults& faults) {
  std::vector<std::string> parts;
  if (faults.utf16_marks > 0) parts.emplace_back("a UTF-16 byte-order mark");
  if (faults.utf8_marks > 0) parts.emplace_back("a UTF-8 byte-order mark");
  if (faults.invalid_utf8 > 0) parts.push_back(share_text(faults.invalid_utf8, faults.bytes) + " not valid UTF-8");
  if (faults.nul > 0) parts.push_back(share_text(faults.nul, faults.bytes) + " NUL");
  return listed(parts);
}

std::string remedy(const TextFaults& faults, const std::string& path) {
  const std::string file = path == "-" ? "FILE" : shell_quote(path);
  const auto convert = [&](const std::string& from) { return "iconv -f " + from + " -t UTF-8 " + file; };
  if (faults.utf16_marks > 0 || faults.nul > faults.bytes / 10) return "if it is UTF-16: " + convert("UTF-16");
  if (faults.invalid_utf8 > 0) return "if it is Latin-1: " + convert("LATIN1");
  return faults.nul > 0 ? "remove them: tr -d '\\000' < " + file : "remove it: sed '1s/^\\xEF\\xBB\\xBF//' " + file;
}

} // namespace gpt2
