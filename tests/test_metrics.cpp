#include "engine/logging/metrics.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <vector>

#include "engine/system/files.h"
#include "tests/expect_error.h"
#include "tests/file_size_limit.h"
#include "tests/temporary_folder.h"

using namespace gpt2;

namespace {

std::vector<nlohmann::json> read_lines(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line)); // throws if not JSON
  return lines;
}

std::vector<int64_t> steps_of(const std::string& path) {
  std::vector<int64_t> steps;
  for (const auto& line : read_lines(path)) steps.push_back(line["step"]);
  return steps;
}

std::string read_first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

} // namespace

TEST_CASE("one object a line: type, step and time, then what is given in its order, with the shortest digits") {
  TemporaryFolder folder;
  const std::string path = folder / "new/folder/metrics.jsonl";
  MetricsLog log(path);
  log.write("step", 250,
            {{"loss", 3.456789f}, {"lr", 6e-4}, {"tokens", 524288}, {"fp8", true}, {"verdict", "applied"}});
  const std::regex expected(
      R"(\{"type":"step","step":250,"timestamp":"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z","seconds":[0-9.e-]+,)"
      R"("loss":3\.456789,"lr":6e-04,"tokens":524288,"fp8":true,"verdict":"applied"\})");
  const std::string line = read_first_line(path);
  CAPTURE(line);
  CHECK(std::regex_match(line, expected));
}

TEST_CASE("what is JSON already is written as it stands") {
  TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  MetricsLog(path).write("run", 0, {{"options", JsonText(R"({"max_lr":6e-04,"model":"nano"})")}});
  CHECK(read_lines(path)[0]["options"] == nlohmann::json({{"max_lr", 6e-4}, {"model", "nano"}}));
}

TEST_CASE("numbers survive exactly, and what JSON cannot say is null") {
  TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  MetricsLog log(path);
  const float float_value = 0.1f;
  const double double_value = 1.0 / 3;
  log.write("step", 1, {{"a", float_value}, {"b", double_value}, {"c", int64_t{1} << 62}, {"tiny", 1e-300}});
  log.write("step", 2, {{"nan", std::nanf("")}, {"inf", HUGE_VAL}, {"minus", -HUGE_VAL}});
  const auto lines = read_lines(path);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["a"].get<float>() == float_value);
  CHECK(lines[0]["b"].get<double>() == double_value);
  CHECK(lines[0]["c"].get<int64_t>() == int64_t{1} << 62);
  CHECK(lines[0]["tiny"].get<double>() == 1e-300);
  CHECK(lines[1]["nan"].is_null());
  CHECK(lines[1]["inf"].is_null());
  CHECK(lines[1]["minus"].is_null());
}

TEST_CASE("text with quotes, newlines and bytes that are not UTF-8 stays one valid line") {
  TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  MetricsLog log(path);
  log.write("step", 1, {{"sample", "say \"hi\"\n\tthen \xC3\xA4 \xFF\\"}});
  const auto lines = read_lines(path);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0]["sample"] == "say \"hi\"\n\tthen \xC3\xA4 \xEF\xBF\xBD\\");
}

TEST_CASE("resume drops what the earlier life wrote from that step on") {
  TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  {
    MetricsLog log(path);
    for (int step = 1; step <= 10; ++step) log.write("step", step, {{"loss", 1.0f}});
  }
  {
    MetricsLog log(path, 6);
    for (int step = 6; step <= 7; ++step) log.write("step", step, {{"loss", 2.0f}});
  }
  CHECK(steps_of(path) == std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7});
  CHECK(read_lines(path)[4]["loss"] == 1.0f);
  CHECK(read_lines(path)[5]["loss"] == 2.0f);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1); // nothing left beside it
}

TEST_CASE("a last line without a newline stays if it is whole") {
  TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  std::ofstream(path) << "{\"step\":1}\n{\"step\":2}"; // as an editor may leave it
  std::vector<std::string> warnings;
  {
    MetricsLog(path, 3, [&](const std::string& line) { warnings.push_back(line); }).write("step", 3, {});
  }
  CHECK(steps_of(path) == std::vector<int64_t>{1, 2, 3});
  CHECK(warnings.empty());
  CHECK_FALSE(std::filesystem::exists(path + ".1"));
}

TEST_CASE("lines that cannot be parsed are kept in the original beside the log, and one warning says so") {
  TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  {
    MetricsLog log(path);
    for (int step = 1; step <= 3; ++step) log.write("step", step, {{"loss", 1.0f}});
  }
  std::ofstream(path, std::ios::app) << "a note by hand\n{\"no\":\"step\"}\n"
                                     << R"({"step":3,"torn)";
  const std::string original = read_text_file(path);
  std::vector<std::string> warnings;
  const auto warn = [&](const std::string& line) { warnings.push_back(line); };
  { MetricsLog(path, 3, warn).write("step", 3, {}); }
  CHECK(steps_of(path) == std::vector<int64_t>{1, 2, 3});
  CHECK(read_text_file(path + ".1") == original);
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], path + ": 3 lines are not"));
  CHECK(contains(warnings[0], "kept as " + path + ".1"));
  { MetricsLog(path, 4, warn).write("step", 4, {}); } // nothing is wrong any more
  CHECK(warnings.size() == 1);
  CHECK_FALSE(std::filesystem::exists(path + ".2"));
}

TEST_CASE("resume with nothing to drop leaves the file as it is, and without a file starts one") {
  TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  { MetricsLog(path, 5).write("step", 5, {}); }
  { MetricsLog(path, 6).write("step", 6, {}); }
  CHECK(steps_of(path) == std::vector<int64_t>{5, 6});
}

TEST_CASE("a new run of the same name keeps the old file beside its own") {
  TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  for (int run = 1; run <= 3; ++run) MetricsLog(path).write("step", run, {});
  CHECK(steps_of(path + ".1") == std::vector<int64_t>{1});
  CHECK(steps_of(path + ".2") == std::vector<int64_t>{2});
  CHECK(steps_of(path) == std::vector<int64_t>{3});
}

TEST_CASE("a full disk is a warning, and every line in the file is whole") {
  TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  std::vector<std::string> warnings;
  MetricsLog log(path, 0, [&](const std::string& line) { warnings.push_back(line); });
  log.write("step", 1, {{"loss", 1.5f}});
  {
    FileSizeLimit limit(std::filesystem::file_size(path) + 5);
    log.write("step", 2, {{"loss", 1.5f}});
  }
  log.write("step", 3, {{"loss", 1.5f}});
  log.flush();
  CHECK(steps_of(path) == std::vector<int64_t>{1, 3});
  REQUIRE(warnings.size() == 2);
  CHECK(warnings[0].find(path) != std::string::npos);
}

TEST_CASE("a file where the folder should be is an Error(disk)") {
  TemporaryFolder folder;
  std::ofstream(folder / "run") << "in the way";
  CHECK(expect_error([&] { MetricsLog log(folder / "run/metrics.jsonl"); }).code() == ExitCode::disk);
}
