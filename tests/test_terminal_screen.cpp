#include "tools/report/terminal_curve.h"
#include "tools/report/terminal_screen.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>

#include "engine/base/terminal.h"
#include "engine/io/folder_lock.h"
#include "tests/contains.h"
#include "tests/metrics_lines.h"
#include "tests/temporary_folder.h"

using namespace gpt2;

namespace {

std::string screen_of(const TemporaryFolder& root, const std::string& text, size_t columns = 79) {
  std::ofstream(root / "metrics.jsonl") << text;
  std::string out;
  const std::vector<std::string> lines = terminal_screen(RunReader(root.path()), columns);
  CHECK(lines.size() <= 24);
  for (const std::string& line : lines) {
    CHECK(text_width(line) <= columns);
    out += line + "\n";
  }
  return out;
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
  CHECK(stretched({1, 3, 2, 8}, 2) == std::vector<double>{2, 5});
  CHECK(stretched({1, 3, 2, 8}, 2, /*greatest=*/true) == std::vector<double>{3, 8});
}

TEST_CASE("a run on one screen") {
  TemporaryFolder root;
  CHECK(contains(screen_of(root, run_line()), "no step yet"));
  std::string lines = run_line();
  for (int step = 1; step <= 50; ++step) lines += step_line(step, step, formatted("%g", 10.0 / step));
  lines += line("validation", 50, 50, "\"val_loss\":0.5,\"best\":true");
  lines += line("fp8", 50, 50, "\"worst_saturated\":0.01,\"worst_flushed\":0,\"blocks_in_bf16\":2");
  lines += line("device", 50, 50, "\"gpu_power_watts\":690,\"gpu_throttled\":1");
  lines += line("event", 50, 50, "\"event\":\"skip\",\"text\":\"\\u001b[2Jwhy\"");
  const FolderLock training(root.path(), "--run_name");
  const std::string screen = screen_of(root, lines);
  CHECK(contains(screen, "running  FP32  CPU"));
  CHECK(contains(screen, "step 50 of 100 (50.0 %)  12.8K tokens  50.0s  about 12.8s to go"));
  CHECK(contains(screen, "validation 0.5000, best 0.5000 at 50"));
  CHECK(contains(screen, "worst saturated 1 %, flushed 0 %, blocks in BF16 2"));
  CHECK(contains(screen, "690 W  THROTTLED"));
  CHECK(contains(screen, "skip:  [2Jwhy")); // no escape sequence of a file reaches the terminal
  screen_of(root, lines, 40);
}
