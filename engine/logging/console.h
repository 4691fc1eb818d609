// Output for the user: lines and, on a terminal, a progress bar below them. Lines are wrapped or cut to the terminal's
// width; a file gets them unchanged.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "engine/system/terminal.h"

namespace gpt2 {

enum class Style { plain, strong, good, warning }; // visible only with color

struct TableSection {
  std::string title;
  std::vector<std::pair<std::string, std::string>> rows; // name, value
};

class Console {
 public:
  Console(std::ostream& out, bool terminal, bool color = false, std::function<int()> columns = terminal_columns)
      : out_(out), terminal_(terminal), color_(color), columns_(std::move(columns)) {}
  ~Console() { clear_progress(); }

  bool is_terminal() const { return terminal_; }

  // Each prints above the progress bar.
  void line(const std::string& text, Style style = Style::plain);                  // wrapped
  void fields(const std::vector<std::string>& fields, Style style = Style::plain); // a | b | c; the last are dropped
  void command(const std::string& text);                                           // never cut: users copy it
  void table(const std::vector<TableSection>& sections);

  // Redraws the bar "[====    ]  50%  step 5/10  eta 1m 00s"; no effect in a file. Notes beyond the width are dropped.
  void progress(double share, const std::vector<std::string>& notes);
  void clear_progress();

 private:
  size_t columns() const;
  void print(const std::string& text, Style style);
  void draw_bar();

  std::ostream& out_;
  bool terminal_, color_;
  std::function<int()> columns_;
  std::string bar_;
};

} // namespace gpt2
