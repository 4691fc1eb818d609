#include "tools/report/run_metrics.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/expect_error.h"
#include "tests/metrics_lines.h"
#include "tests/temporary_folder.h"

using namespace gpt2;
namespace fs = std::filesystem;

namespace {

void append(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::app) << text; }

std::string new_file(const TemporaryFolder& root, const std::string& text) {
  std::ofstream(root / "metrics.jsonl") << text;
  return root.path();
}

} // namespace

TEST_CASE("lines become columns") {
  TemporaryFolder root;
  const RunReader run(new_file(root, run_line() + step_line(1, 0.5, "10.5") +
                                         step_line(2, 1.0, "null", "skipped_nonfinite") +
                                         line("validation", 2, 1.1, "\"val_loss\":9.5,\"best\":true") +
                                         line("sample", 2, 1.2, "\"text\":\"Once\"") +
                                         line("event", 2, 1.3, "\"event\":\"skip\",\"text\":\"why\"") +
                                         line("of_a_later_version", 2, 1.4, "\"loss\":\"a word\"")));
  const RunMetrics& m = run.metrics();
  REQUIRE(m.steps.at.size() == 2);
  CHECK(m.steps.at[1].step == 2);
  CHECK(m.steps.at[1].tokens == 512);
  CHECK(m.steps.at[1].seconds == 1.0);
  CHECK(m.steps.columns.at("loss")[0] == 10.5);
  CHECK(std::isnan(m.steps.columns.at("loss")[1]));
  CHECK(std::isnan(m.steps.columns.at("speed_of_light")[0])); // a CPU has none
  CHECK(m.skips_in_a_row == 1);
  CHECK(m.validations.columns.at("val_loss") == std::vector<double>{9.5});
  CHECK(m.validations.at[0].tokens == 512); // those of the step
  CHECK(m.samples.at(0).text == "Once");
  CHECK(m.events.at(0).text == "why");
}

TEST_CASE("a run that writes is followed; its last line may be cut") {
  TemporaryFolder root;
  const std::string whole = step_line(2, 1.0, "9.5");
  RunReader run(new_file(root, run_line() + step_line(1, 0.5, "10.5") + whole.substr(0, 30)));
  CHECK(run.metrics().steps.at.size() == 1);
  CHECK_FALSE(run.read());
  append(root / "metrics.jsonl", whole.substr(30, 20));
  CHECK_FALSE(run.read());
  append(root / "metrics.jsonl", whole.substr(50));
  CHECK(run.read());
  CHECK(run.metrics().steps.at.size() == 2);
}

TEST_CASE("a resumed run has made its file anew; its time goes on without the pause") {
  TemporaryFolder root;
  RunReader run(new_file(root, run_line() + step_line(1, 5, "10") + step_line(2, 10, "9") + step_line(3, 15, "8")));
  fs::rename(root / "metrics.jsonl", root / "old");
  new_file(root,
           run_line() + step_line(1, 5, "10") + step_line(2, 10, "9") + run_line("resume", 2) + step_line(3, 5, "7"));
  CHECK(run.read());
  const RunMetrics& m = run.metrics();
  REQUIRE(m.steps.at.size() == 3);
  CHECK(m.steps.at[2].seconds == 15);
  CHECK(m.steps.columns.at("loss")[2] == 7);
  REQUIRE(m.events.size() == 1);
  CHECK(m.events[0].kind == "resume");
  CHECK(m.events[0].from.step == 2);
  CHECK(m.events[0].from.tokens == 512);
  CHECK(m.events[0].from.seconds == 10);
}

TEST_CASE("a file that is empty or away for a moment leaves what is known") {
  TemporaryFolder root;
  RunReader run(new_file(root, run_line() + step_line(1, 0.5, "10.5")));
  for (const char* const text : {"", "{\"type\":"}) {
    new_file(root, text);
    CHECK_FALSE(run.read());
    CHECK(run.metrics().lives.size() == 1);
    CHECK(run.metrics().steps.at.size() == 1);
  }
  fs::remove(root / "metrics.jsonl");
  CHECK_FALSE(run.read());
  new_file(root, run_line());
  CHECK(run.read());
  CHECK(run.metrics().steps.at.empty());
}

TEST_CASE("a GPU that is slowed down is one event from the first line that says so to the last") {
  TemporaryFolder root;
  std::string lines = run_line();
  for (int step = 10; step <= 80; step += 10)
    lines += line("device", step, step,
                  std::string("\"gpu_throttled\":") + (step >= 30 && step <= 50 ? "1"
                                                       : step == 80             ? "1"
                                                                                : "0"));
  const RunReader run(new_file(root, lines));
  REQUIRE(run.metrics().events.size() == 2);
  CHECK(run.metrics().events[0].from.step == 30);
  CHECK(run.metrics().events[0].to.step == 50);
  CHECK(run.metrics().events[1].from.step == 80);
}

TEST_CASE("records of FP8 tensors; a tensor that comes later has none before") {
  TemporaryFolder root;
  const std::string values = ",\"amax\":2,\"saturated\":0.5,\"flushed\":0";
  const RunReader run(
      new_file(root, run_line() + line("fp8_tensor", 1, 1, "\"tensor\":\"h.0/fc/act\"" + values) +
                         line("fp8_tensor", 2, 2, "\"tensor\":\"h.0/fc/act\"" + values) +
                         line("fp8_tensor", 2, 2, "\"tensor\":\"h.1/fc/act\",\"scale\":3") +
                         line("fp8_tensor", 2, 2, "\"tensor\":\"h.1/fcproj/act\",\"flushed\":0.6,\"gelu_tail\":true")));
  const TensorRecords& records = run.metrics().fp8_tensors;
  CHECK(records.at.size() == 2);
  CHECK(records.tensors == std::vector<std::string>{"h.0/fc/act", "h.1/fc/act", "h.1/fcproj/act"});
  CHECK(records.values[0][1].saturated == 0.5f);
  REQUIRE(records.values[1].size() == 2);
  CHECK(std::isnan(records.values[1][0].amax));
  CHECK(std::isnan(records.values[1][1].amax));
  CHECK(records.values[0][1].telling_flushed == 0);
  CHECK(records.values[2][1].flushed == 0.6f);
  CHECK(std::isnan(records.values[2][1].telling_flushed));
}

TEST_CASE("what is no file of metrics is one error that says where") {
  TemporaryFolder root;
  const auto refused = [&](const std::string& text, const std::string& words) {
    const Error error = expect_error([&] { RunReader(new_file(root, text)); });
    CHECK(error.code() == ExitCode::data);
    CHECK_MESSAGE(mentions(error, words), error.what());
  };
  CHECK(mentions(expect_error([&] { RunReader(root / "nowhere"); }), "there is no metrics.jsonl in"));
  refused("", "holds no `run` line");
  refused(run_line().substr(0, 20), "holds no `run` line");
  refused(step_line(1, 1, "2"), "holds no `run` line");
  refused(run_line() + "Segmentation fault\n" + step_line(1, 1, "2"),
          "metrics.jsonl:2 is not a line of metrics: it is not JSON");
  refused(run_line() + "[1]\n", "metrics.jsonl:2 is not a line of metrics: it is not a JSON object");
  refused(run_line() + "{}\n", "metrics.jsonl:2");
  refused(run_line() + "{\"type\":\"step\"}\n", "no step or no seconds");
  refused(run_line() + step_line(1, 1, "\"low\""), "'loss' is not a number");
  refused("{\"type\":\"run\",\"step\":0,\"seconds\":0}\n", "max_steps");
  refused("{\"type\":\"run\",\"step\":0,\"seconds\":0,\"max_steps\":1e97,\"tokens_per_step\":8,\"options\":{}}\n",
          "max_steps is out of range");
}

TEST_CASE("latest is the run that logged last, also below a folder of runs") {
  TemporaryFolder root;
  const auto write = [&](const std::string& run, int minutes_ago) {
    const std::string file = root / run + "/metrics.jsonl";
    fs::create_directories(root / run);
    std::ofstream(file) << run_line();
    fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::minutes(minutes_ago));
  };
  CHECK_THROWS_AS(find_run(kLatestRun, root.path()), Error);
  write("one", 3);
  CHECK(find_run(kLatestRun, root.path()) == root / "one");
  write("sweep_a/lr_1", 2);
  CHECK(find_run(kLatestRun, root.path()) == root / "sweep_a/lr_1");
  write("sweep_a/wide/lr_2", 1);
  CHECK(find_run(kLatestRun, root.path()) == root / "sweep_a/wide/lr_2");
  write("elsewhere/group/lr_3", 0);
  fs::create_directory(root / "runs");
  fs::create_directory_symlink(root / "elsewhere/group", root / "runs/linked");
  CHECK(find_run(kLatestRun, root / "runs") == root / "runs/linked/lr_3");
  CHECK(find_run("sweep_a/lr_1", root.path()) == root / "sweep_a/lr_1");
  CHECK(expect_error([&] { find_run("sweep_a/lr1", root.path()); }).hint() == "did you mean sweep_a/lr_1?");
}

TEST_CASE("a run is a folder, its file, or a name below the log folder") {
  TemporaryFolder root;
  fs::create_directories(root / "runs/one");
  std::ofstream(root / "runs/one/metrics.jsonl") << run_line();
  CHECK(find_run(root / "runs/one", "elsewhere") == root / "runs/one");
  CHECK(find_run("one", root / "runs") == root / "runs/one");
  CHECK(find_run(root / "runs/one/metrics.jsonl", "elsewhere") == root / "runs/one");
  const Error error = expect_error([&] { find_run("onr", root / "runs"); });
  CHECK(error.code() == ExitCode::data);
  CHECK(error.hint() == "did you mean one?");
  CHECK(RunReader(root / "runs/one/").name() == "one");
}
