#include "tools/report/terminal_curve.h"
#include "tools/report/terminal_screen.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "engine/system/folder_lock.h"
#include "engine/system/terminal.h"
#include "tests/contains.h"
#include "tests/metrics_lines.h"
#include "tests/temporary_folder.h"

using namespace gpt2;

namespace {

std::vector<std::string> lines_of(const TemporaryFolder& root, const std::string& text, const ScreenSize& size) {
  std::ofstream(root / "metrics.jsonl") << text;
  const std::vector<std::string> lines = terminal_screen(RunReader(root.path()), size);
  CHECK(lines.size() <= size.rows);
  if (!size.color)
    for (const std::string& line : lines) CHECK(text_width(line) <= size.columns);
  return lines;
}

std::string screen_of(const TemporaryFolder& root, const std::string& text, const ScreenSize& size = {}) {
  std::string out;
  for (const std::string& line : lines_of(root, text, size)) out += line + "\n";
  return out;
}

std::string fifty_steps() {
  std::string lines = run_line();
  for (int step = 1; step <= 50; ++step) lines += step_line(step, step, formatted("%g", 10.0 / step));
  return lines;
}

} // namespace

TEST_CASE("a curve of Braille dots goes from the top to the bottom, without gaps") {
  CHECK(braille_curve({1, 0}, 0, 1, 1, 1) ==
        std::vector<std::string>{"⢱"}); // dot 1; then 4, 5, 6 and 8 down to the ground
  CHECK(braille_curve({0, 0, 0, 0}, 0, 1, 2, 2) == std::vector<std::string>{"  ", "⣀⣀"});
  CHECK(braille_curve({9, 9}, 0, 1, 1, 1) == std::vector<std::string>{"⠉"}); // beyond the axis: at its edge
  CHECK(braille_curve({std::nan(""), 0}, 0, 1, 1, 1) == std::vector<std::string>{"⢀"});
  CHECK(braille_curve({}, 0, 1, 2, 1) == std::vector<std::string>{"  "});
}

TEST_CASE("a sparkline stands on zero") {
  CHECK(sparkline({0, 1, 2}) == "▁▅█");
  CHECK(sparkline({0, std::nan("")}) == "▁ ");
  CHECK(binned({1, 3, 2, 8}, 2) == std::vector<double>{2, 5});
  CHECK(binned({1, 3, 2, 8}, 2, Bin::max) == std::vector<double>{3, 8});
}

TEST_CASE("a run on one screen") {
  TemporaryFolder root;
  CHECK(contains(screen_of(root, run_line()), "no step yet"));
  std::string lines = fifty_steps();
  lines += line("validation", 50, 50, "\"val_loss\":0.5,\"best\":true");
  lines += line("fp8", 50, 50, "\"worst_saturated\":0.01,\"worst_flushed\":0,\"blocks_in_bf16\":2");
  lines += line("device", 50, 50, "\"gpu_power_watts\":690,\"gpu_throttled\":1");
  lines += line("event", 50, 50, "\"event\":\"skip\",\"text\":\"\\u001b[2Jwhy\"");
  const FolderLock training(root.path(), "--run_name");
  const std::string screen = screen_of(root, lines);
  CHECK(contains(screen, "running  FP32 on CPU"));
  CHECK(contains(screen, "step 50 of 100 (50.0 %)  12.8K tokens  50.0s elapsed  about 12.8s left"));
  CHECK(contains(screen, "train loss 0.2521 (mean of the last 20 steps)")); // of 10 / 31 ... 10 / 50
  CHECK(contains(screen, "validation loss 0.5000 at step 50  best 0.5000 at step 50"));
  CHECK(contains(screen, "worst tensor: 1 % saturated, 0 % flushed to zero, blocks in BF16: 2"));
  CHECK(contains(screen, "690 W  throttled"));
  CHECK(contains(screen, "step skipped:  [2Jwhy")); // no escape sequence from a file reaches the terminal
  screen_of(root, lines, {.columns = 40, .rows = 15, .color = false});
}

TEST_CASE("the screen fills its size: the curve takes the rows that remain") {
  TemporaryFolder root;
  for (const ScreenSize size : {ScreenSize{80, 23, false}, ScreenSize{120, 39, false}, ScreenSize{200, 59, false}}) {
    const std::vector<std::string> lines = lines_of(root, fifty_steps(), size);
    CHECK(lines.size() == size.rows);
    size_t widest = 0, curve = 0;
    for (const std::string& line : lines) {
      widest = std::max(widest, text_width(line));
      curve += contains(line, "│") ? 1 : 0;
    }
    CHECK(widest == size.columns);
    CHECK(curve >= size.rows / 2);
  }
}

TEST_CASE("colors of a terminal: the state, a warning; none without color") {
  TemporaryFolder root;
  const ScreenSize colored{.columns = 80, .rows = 23, .color = true};
  CHECK(contains(screen_of(root, fifty_steps(), colored), "\x1b[31mfailed\x1b[0m"));
  CHECK_FALSE(contains(screen_of(root, fifty_steps()), "\x1b"));
  const std::string saturated =
      line("fp8", 50, 50, "\"worst_saturated\":0.02,\"worst_flushed\":0,\"blocks_in_bf16\":0");
  CHECK(contains(screen_of(root, fifty_steps() + saturated, colored), "\x1b[31m2 % saturated\x1b[0m"));
}

TEST_CASE("a run without evaluations says so") {
  TemporaryFolder root;
  CHECK(contains(screen_of(root, fifty_steps()), "validation loss not evaluated\n"));
  std::string off = fifty_steps();
  off.replace(off.find("\"seed\":7"), 8, "\"eval_freq\":0");
  CHECK(contains(screen_of(root, off), "validation loss not evaluated (--eval_freq 0)"));
}
