// What the user sees: lines, and on a terminal a progress bar below them.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

namespace gpt2 {

std::string progress_bar(int64_t step, int64_t steps, double eta_seconds);

using TableRows = std::vector<std::pair<std::string, std::string>>;
std::string format_table(const TableRows& rows); // names in one column, values in the next

class Console {
 public:
  Console(std::ostream& out, bool terminal) : out_(out), terminal_(terminal) {}
  ~Console() { clear_progress(); }

  void line(const std::string& text);         // above the progress bar, if there is one
  void progress(const std::string& bar_text); // replaces the bar; nothing in a file
  void clear_progress();

 private:
  std::ostream& out_;
  bool terminal_;
  std::string bar_;
};

} // namespace gpt2
