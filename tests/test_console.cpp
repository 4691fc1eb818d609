// What the user sees: lines cut to the terminal, whole in a file; the bar; the pace of a run; steps that stand out.
#include "engine/logging/console.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "engine/logging/loss_spike.h"
#include "engine/logging/progress.h"
#include "engine/logging/throughput.h"
#include "engine/run/summary.h"
#include "tests/contains.h"

using namespace gpt2;

namespace {

StepReport report_of(int64_t step, float loss = 3.456789f) {
  return {.step = step,
          .epoch = 0,
          .loss = loss,
          .lr = 6e-4f,
          .grad_norm = 0.8234f,
          .seconds = 0.15678,
          .tokens_per_second = 3345.67,
          .speed_of_light = std::nullopt,
          .eta_seconds = 4.2,
          .precision = "FP8"};
}

// What `print` writes to a console of that width; 0: to a file.
template <class Print>
std::string printed(int columns, Print print, bool color = false) {
  std::ostringstream out;
  Console console(out, columns > 0, color, [=] { return columns; });
  print(console);
  return out.str();
}

size_t widest_line(const std::string& text) {
  size_t widest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, text_width(line));
  return widest;
}

} // namespace

TEST_CASE("the step line: all fields in order in a file, on a terminal those that fit") {
  StepReport report = report_of(250);
  const auto show = [&](Console& console) { console.fields(step_fields(report)); };
  const std::string whole =
      "step  250 | epoch 0 | loss: 3.456789 | lr: 6.00e-04 | norm: 0.8234 | dt: 156.78ms | tok/sec: 3345.67 | "
      "eta: 4.2s | FP8\n";
  CHECK(printed(0, show) == whole);
  CHECK(printed(300, show) == whole);
  CHECK(printed(80, show) == "step  250 | epoch 0 | loss: 3.456789 | lr: 6.00e-04 | norm: 0.8234\n");
  CHECK(printed(30, show) == "step  250 | epoch 0\n");
  for (int columns = 20; columns <= 130; ++columns) CHECK(widest_line(printed(columns, show)) <= size_t(columns));
  const auto show_short = [&](Console& console) { console.fields(short_step_fields(report)); };
  CHECK(printed(120, show_short) ==
        "step  250 | loss: 3.456789 | lr: 6.00e-04 | norm: 0.8234 | dt: 157ms | tok/s: 3.3K | eta: 4.2s | FP8\n");
  report.epoch = 1;
  CHECK(contains(printed(120, show_short), "step  250 | epoch 1 | loss"));
  report.epoch = 0;
  StepReport long_one = report; // the last field is whole at 120 columns
  long_one.step = 19073, long_one.tokens_per_second = 971'370, long_one.speed_of_light = 0.982;
  long_one.eta_seconds = 86'300;
  CHECK(contains(printed(120, [&](Console& c) { c.fields(short_step_fields(long_one)); }), "eta: 23h 58m | FP8\n"));
  long_one = report, long_one.precision = "FP8 (emulated)", long_one.loss = 10.055974f, long_one.eta_seconds = 1214;
  CHECK(contains(printed(120, [&](Console& c) { c.fields(short_step_fields(long_one)); }), "| FP8 (emulated)\n"));
  report.speed_of_light = 0.8125;
  CHECK(contains(printed(0, show), "| tok/sec: 3345.67 | SOL: 81.2% | eta: 4.2s | FP8"));
}

TEST_CASE("in a file there are plain lines; on a terminal a bar stays below them") {
  const auto show = [](Console& console) {
    console.progress(0.5, {"step 5/10", "eta 1m 00s", "loss 3.4568", "52.1K tok/s"});
    console.line("hello");
  };
  CHECK(printed(0, show) == "hello\n");
  const std::string wide =
      "[====================                    ]  50%  step 5/10  eta 1m 00s  loss 3.4568  52.1K tok/s";
  CHECK(printed(120, show) == "\r" + wide + "\x1b[K" + "\r\x1b[K" + "hello\n" + "\r" + wide + "\x1b[K");
  for (int columns = 20; columns <= 130; ++columns) {
    const auto bar_only = [](Console& console) {
      console.progress(0.5, {"step 5/10", "eta 1m 00s", "loss 3.4568", "52.1K tok/s"});
    };
    const std::string text = printed(columns, bar_only);
    CAPTURE(text);
    CHECK(text.find("\x1b[K") - 1 < size_t(columns)); // after "\r"; the last column stays free
    CHECK(contains(text, " 50%"));
  }
}

TEST_CASE("long lines and tables wrap at words, with an indent; a command does not") {
  const std::string text = "note: no --train_data: training on the built-in sample, simple stories";
  CHECK(printed(0, [&](Console& c) { c.line(text); }) == text + "\n");
  CHECK(printed(40, [&](Console& c) { c.line(text); }) ==
        "note: no --train_data: training on the\n    built-in sample, simple stories\n");
  CHECK(printed(20, [&](Console& c) { c.line("a/path/that/is/longer/than/a/line"); }) ==
        "a/path/that/is/longer/than/a/line\n");
  const std::vector<TableSection> table{{"Model", {{"model", "nano: 4 layers, 4 heads"}, {"device", "CPU"}}},
                                        {"Data", {{"train data", "x"}}}};
  CHECK(printed(0, [&](Console& c) { c.table(table); }) ==
        "Model\n  model       nano: 4 layers, 4 heads\n  device      CPU\nData\n  train data  x\n");
  CHECK(printed(30, [&](Console& c) { c.table(table); }) ==
        "Model\n  model       nano: 4 layers,\n              4 heads\n  device      CPU\nData\n  train data  x\n");
  const std::string command = "./train_gpt2_fp8 --resume elsewhere/nano-fp32-20261115-014400";
  CHECK(printed(20, [&](Console& c) { c.command(command); }) == "  " + command + "\n");
}

TEST_CASE("colors only where they are wanted") {
  const auto show = [](Console& console) { console.line("careful", Style::warning); };
  CHECK(printed(80, show, true) == "\x1b[33mcareful\x1b[0m\n");
  CHECK(printed(80, show, false) == "careful\n");
  CHECK(printed(
            80, [](Console& console) { console.line("plain"); }, true) == "plain\n");
}

TEST_CASE("the time left does not count the first steps, and counts what lies between steps") {
  StepTimes pace;
  CHECK(pace.step_seconds() == 0);
  pace.step(30); // compiles
  CHECK(pace.eta_seconds(10) == 300);
  for (int i = 0; i < 9; ++i) pace.step(1);
  CHECK(pace.eta_seconds(10) == 10);
  pace.step(50); // a hiccup
  CHECK(pace.eta_seconds(10) == 10);
  for (int i = 0; i < 9; ++i) pace.step(1);
  pace.between_steps(10); // after 20 steps
  CHECK(pace.eta_seconds(10) == doctest::Approx(15));
  for (int i = 0; i < 200; ++i) pace.step(2); // the machine got busy
  CHECK(pace.eta_seconds(10) == doctest::Approx(25));
  pace.step_kind_changed();
  pace.step(9); // compiles, too
  CHECK(pace.step_seconds() == 2);
  for (int i = 0; i < 3; ++i) pace.step(1);
  CHECK(pace.step_seconds() == 1);
}

TEST_CASE("a spike stands out, a falling loss and its noise do not") {
  SpikeDetector detector(1.2);
  int marked = 0;
  for (int step = 0; step < 500; ++step) {
    const double noise = 0.05 * std::sin(step * 12.9898);
    marked += detector.is_spike(3 + 8 * std::exp(-step / 50.0) + noise);
  }
  CHECK(marked == 0);
  CHECK(detector.is_spike(19.3));
  CHECK(detector.is_spike(std::numeric_limits<double>::quiet_NaN()));
}

TEST_CASE("--log_freq: every step in a file, about one line a second on a terminal, and always what stands out") {
  CHECK(readable_interval(2.0) == 1);
  CHECK(readable_interval(0.3) == 5);
  CHECK(readable_interval(0.01) == 100);
  CHECK(readable_interval(0) == 1);

  const auto lines = [](int columns, int64_t log_freq, double seconds) {
    const std::string text = printed(columns, [&](Console& console) {
      Progress progress(console, log_freq, 1000);
      for (int64_t step = 1; step <= 1000; ++step) {
        progress.timed_step(seconds, 4096);
        progress.show(report_of(step, step == 555 ? 19.3f : 3.4f),
                      step == 777 ? Verdict::skipped_loss_z : Verdict::applied);
      }
    });
    std::vector<std::string> found;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) {
      const size_t begin = line.rfind("step ", line.find(" | "));
      if (contains(line, " | lr:")) found.push_back(line.substr(begin, line.find(" | ") - begin));
    }
    return found;
  };
  CHECK(lines(0, 0, 0.01).size() == 1000);
  CHECK(lines(0, 0, 0.01)[554] == "step  555"); // a file keeps to its form
  CHECK(lines(80, 0, 2).size() == 1000);
  const auto readable = lines(80, 0, 0.01);
  CHECK(readable.size() == 10 + 10 + 2); // the first ten, the hundreds, two that stand out
  CHECK(readable[9] == "step   10");
  CHECK(readable[10] == "step  100");
  CHECK(readable[15] == "step  555 !");
  CHECK(readable[18] == "step  777 !");
  CHECK(lines(0, 250, 0.01) == std::vector<std::string>{"step    1", "step  250", "step  500", "step  555", "step  750",
                                                        "step  777", "step 1000"});
}
