// The event files are read back here by a few lines of our own; test_tensorboard_reader.py reads the same demo run
// with the real tensorboard package.
#include "engine/logging/tensorboard.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/rng.h"
#include "engine/logging/crc32c.h"
#include "engine/logging/histogram.h"
#include "engine/logging/protobuf_writer.h"
#include "tests/event_file.h"
#include "tests/expect_error.h"
#include "tests/file_size_limit.h"
#include "tests/temporary_folder.h"

using namespace gpt2;
using namespace gpt2::testing;

namespace {

// Two lives of one run: the first is killed in the middle of a record, the second goes on from step 5.
void write_demo(const std::string& folder) {
  {
    TensorBoardLogger first(folder);
    first.add_hparams({{"lr", 6e-4}, {"model", "nano"}, {"fp8", true}, {"limit", HUGE_VAL}}, "train/loss");
    for (int step = 0; step < 10; ++step) first.add_scalar("train/loss", 10.0 - step, step);
    const std::vector<float> values{-2.0f, -0.5f, 0.0f, 0.5f, 0.5f, 3.0f, NAN, -INFINITY};
    first.add_histogram("weights/wte", values, 4);
    first.add_text("samples", "Once upon a *time*\xFF", 4);
    first.flush();
  }
  const std::string path = event_files(folder).front();
  const std::string record = read_file(path).substr(0, 20); // the framing promises more than follows
  std::ofstream(path, std::ios::binary | std::ios::app) << record;
  TensorBoardLogger second(folder, 5);
  for (int step = 5; step < 8; ++step) second.add_scalar("train/loss", 100.0 + step, step);
  second.add_scalar("val/loss", NAN, 7);
}

size_t bucket_by_search(float value) {
  const auto limits = histogram_limits();
  return static_cast<size_t>(std::upper_bound(limits.begin(), limits.end(), static_cast<double>(value)) -
                             limits.begin());
}

} // namespace

TEST_CASE("CRC-32C agrees with the vectors of RFC 3720") {
  CHECK(crc32c("123456789") == 0xE3069283u);
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AAu);
  CHECK(crc32c(std::string(32, '\xFF')) == 0x62A8AB43u);
  std::string ascending(32, '\0');
  std::iota(ascending.begin(), ascending.end(), 0);
  CHECK(crc32c(ascending) == 0x46DD794Eu);
  CHECK(crc32c("") == 0u);
}

TEST_CASE("protobuf fields have the bytes of the specification") {
  CHECK(ProtobufWriter().integer(1, 150).bytes() == "\x08\x96\x01");
  CHECK(ProtobufWriter().text(2, "testing").bytes() == "\x12\x07testing");
  CHECK(ProtobufWriter().integer(2, -1).bytes() == "\x10\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01");
  CHECK(ProtobufWriter().real(1, 1.0f).bytes() == std::string("\x0D\x00\x00\x80\x3F", 5));
}

TEST_CASE("a file opens with its version and a session start, then one event per call") {
  TemporaryFolder folder;
  const double before = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  TensorBoardLogger logger(folder / "run", 42);
  logger.add_scalar("train/loss", 3.25, 43);
  const auto files = event_files(folder / "run");
  REQUIRE(files.size() == 1);
  CHECK(std::filesystem::path(files[0]).filename().string().starts_with("events.out.tfevents."));

  const auto records = read_records(files[0]); // before any flush: events do not wait in a buffer
  REQUIRE(records.size() == 3);
  CHECK(find(records[0], 3).bytes == "brain.Event:2");
  CHECK(read_as<double>(find(records[0], 1).bytes) == doctest::Approx(before).epsilon(1e-6));
  CHECK(find(records[1], 2).integer == 42);
  CHECK(find(find(records[1], 7).bytes, 1).integer == 1); // SessionLog.START
  CHECK(find(records[2], 2).integer == 43);
  const std::string value = find(find(records[2], 5).bytes, 1).bytes;
  CHECK(find(value, 1).bytes == "train/loss");
  CHECK(read_as<float>(find(value, 2).bytes) == 3.25f);
}

TEST_CASE("a torn last record leaves the others readable") {
  TemporaryFolder folder;
  {
    TensorBoardLogger logger(folder.path());
    for (int step = 0; step < 5; ++step) logger.add_scalar("loss", step, step);
  }
  const std::string path = event_files(folder.path()).front();
  REQUIRE(read_records(path).size() == 7);
  for (int cut = 0; cut < 16; ++cut) { // one byte shorter each time
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
    CHECK(read_records(path).size() == 6);
  }
}

TEST_CASE("a file of a later life sorts behind, even within the second or with the clock set back") {
  TemporaryFolder folder;
  std::ofstream(folder / "events.out.tfevents.9000000000.elsewhere.1") << "";
  TensorBoardLogger first(folder.path()), second(folder.path(), 3);
  const auto files = event_files(folder.path());
  REQUIRE(files.size() == 3);
  CHECK(find(read_records(files[1])[1], 2).integer == 0);
  CHECK(find(read_records(files[2])[1], 2).integer == 3);
}

TEST_CASE("histogram limits are TensorFlow's") {
  const auto limits = histogram_limits();
  REQUIRE(limits.size() == 1551);
  CHECK(limits[775] == 0.0);
  CHECK(limits[776] == 1e-12);
  CHECK(limits[777] == 1e-12 * 1.1);
  CHECK(limits[774] == -1e-12);
  CHECK(limits.front() == -std::numeric_limits<double>::max());
  CHECK(limits.back() == std::numeric_limits<double>::max());
  CHECK(std::is_sorted(limits.begin(), limits.end()));
}

TEST_CASE("every float falls into the bucket that a binary search finds") {
  std::vector<float> values{0.0f, -0.0f, 1e-45f, -1e-45f, 1e-12f, -1e-12f, 3.4e38f, -3.4e38f, 1e20f, 1.0f, -1.0f};
  for (const double limit : histogram_limits()) { // the floats next to each limit are where it can go wrong
    const auto nearest = static_cast<float>(limit);
    if (!std::isfinite(nearest)) continue;
    for (const float direction : {-INFINITY, INFINITY}) values.push_back(std::nextafter(nearest, direction));
    values.push_back(nearest);
  }
  const Rng rng(7);
  for (uint64_t i = 0; i < 200'000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(rng.bits(i)));
    if (std::isfinite(value)) values.push_back(value);
  }
  std::vector<int64_t> expected(histogram_limits().size(), 0);
  for (const float value : values) ++expected[bucket_by_search(value)];
  const Histogram histogram = make_histogram(values);
  CHECK(histogram.buckets == expected);
  CHECK(histogram.count == static_cast<int64_t>(values.size()));
}

TEST_CASE("histogram statistics, and values that are not finite") {
  std::vector<float> values(250'000);
  const Rng rng(3);
  double sum = 0, sum_squares = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(rng.uniform(i) - 0.25);
    sum += values[i];
    sum_squares += static_cast<double>(values[i]) * values[i];
  }
  values[150'000] = 5.0f;
  values.push_back(-7.0f);
  values.insert(values.end(), {NAN, INFINITY, -INFINITY});
  sum += 5.0 - (rng.uniform(150'000) - 0.25) - 7.0;
  const Histogram histogram = make_histogram(values);
  CHECK(histogram.count == 250'001);
  CHECK(histogram.min == -7.0);
  CHECK(histogram.max == 5.0);
  CHECK(histogram.sum == doctest::Approx(sum));
  CHECK(histogram.sum_squares == doctest::Approx(sum_squares + 74).epsilon(1e-4));
  CHECK(std::accumulate(histogram.buckets.begin(), histogram.buckets.end(), int64_t{0}) == 250'001);

  const Histogram nothing = make_histogram(std::vector<float>{NAN});
  CHECK(nothing.count == 0);
  CHECK(nothing.min == 0);
  CHECK(make_histogram({}).count == 0);
}

TEST_CASE("a histogram event keeps all counts and writes empty runs as one bucket") {
  TemporaryFolder folder;
  TensorBoardLogger logger(folder.path());
  logger.add_histogram("w", std::vector<float>{1.0f, 1.0f, 2.0f, -3.0f, NAN}, 9);
  logger.add_histogram("empty", {}, 9);
  const auto records = read_records(event_files(folder.path()).front());
  const std::string histogram = find(find(find(records.at(2), 5).bytes, 1).bytes, 5).bytes;
  CHECK(read_as<double>(find(histogram, 1).bytes) == -3.0);
  CHECK(read_as<double>(find(histogram, 2).bytes) == 2.0);
  CHECK(read_as<double>(find(histogram, 3).bytes) == 4.0);
  CHECK(read_as<double>(find(histogram, 4).bytes) == 1.0);
  CHECK(read_as<double>(find(histogram, 5).bytes) == 15.0);
  const auto limits = doubles(find(histogram, 6).bytes), counts = doubles(find(histogram, 7).bytes);
  CHECK(limits.size() == counts.size());
  CHECK(counts == std::vector<double>{0, 1, 0, 2, 0, 1, 0});
  CHECK(limits[1] > -3.0);
  CHECK(limits[0] <= -3.0);
  CHECK(limits[3] > 1.0);
  CHECK(limits[2] <= 1.0);
  const std::string empty = find(find(find(records.at(3), 5).bytes, 1).bytes, 5).bytes;
  CHECK(doubles(find(empty, 7).bytes) == std::vector<double>{0});
}

TEST_CASE("a disk that is full is a warning, and the file stays whole") {
  TemporaryFolder folder;
  std::vector<std::string> warnings;
  TensorBoardLogger logger(folder.path(), 0, [&](const std::string& line) { warnings.push_back(line); });
  logger.add_scalar("loss", 1, 1);
  const std::string path = event_files(folder.path()).front();
  const auto size = std::filesystem::file_size(path);
  {
    FileSizeLimit limit(size + 10); // the system takes ten bytes of the record, then no more
    logger.add_scalar("loss", 2, 2);
  }
  CHECK(std::filesystem::file_size(path) == size);
  logger.add_scalar("loss", 3, 3); // space again: the run goes on
  CHECK(read_records(path).size() == 4);
  REQUIRE(warnings.size() == 2);
  CHECK(warnings[0].find(path) != std::string::npos);
}

TEST_CASE("an event file that was removed is made again with all that TensorBoard needs to read it") {
  TemporaryFolder folder;
  std::vector<std::string> warnings;
  TensorBoardLogger logger(folder / "run", 0, [&](const std::string& line) { warnings.push_back(line); });
  logger.add_hparams({{"max_lr", 1.0}}, "loss");
  logger.add_scalar("loss", 1, 1);
  std::filesystem::remove_all(folder / "run");
  logger.flush();
  logger.add_scalar("loss", 2, 2);
  CHECK(read_records(event_files(folder / "run").front()).size() == 5); // version, start, two of hparams, one loss
  CHECK(warnings.size() == 1);
}

TEST_CASE("a folder that cannot be created is an Error(disk)") {
  TemporaryFolder folder;
  std::ofstream(folder / "file") << "in the way";
  CHECK_THROWS_AS(TensorBoardLogger(folder / "file/run"), Error);
  CHECK(read_file(folder / "file") == "in the way");
}

TEST_CASE("the end of a session says whether the run failed") {
  TemporaryFolder folder;
  const auto end_status = [](const std::string& path) {
    const auto records = read_records(path);
    const std::string value = find(find(records.back(), 5).bytes, 1).bytes;
    CHECK(find(value, 1).bytes == "_hparams_/session_end_info");
    const std::string plugin_data = find(find(find(value, 9).bytes, 1).bytes, 2).bytes;
    return find(find(plugin_data, 4).bytes, 1).integer;
  };
  { TensorBoardLogger(folder / "good").add_hparams({{"lr", 0.1}}, "train/loss"); }
  try {
    TensorBoardLogger logger(folder / "bad");
    logger.add_hparams({{"lr", 0.1}}, "train/loss");
    throw std::runtime_error("the run fails");
  } catch (const std::runtime_error&) {
  }
  CHECK(end_status(event_files(folder / "good").front()) == 1);
  CHECK(end_status(event_files(folder / "bad").front()) == 2);
}

// GPT2_TB_OUT: where test_tensorboard_reader.py wants the demo run.
TEST_CASE("the demo run") {
  TemporaryFolder temporary;
  const char* wanted = std::getenv("GPT2_TB_OUT");
  const std::string folder = wanted ? wanted : temporary / "demo";
  write_demo(folder);
  const auto files = event_files(folder);
  REQUIRE(files.size() == 2);
  CHECK(read_records(files[0]).size() == 2 + 2 + 10 + 2 + 1); // header, hparams, scalars, histogram + text, end
  CHECK(read_records(files[1]).size() == 2 + 4);
}
