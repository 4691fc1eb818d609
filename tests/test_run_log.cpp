// What a run writes to its log folder, read back.
#include "engine/train/run_log.h"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/event_file.h"
#include "tests/trainer_testing.h"

using namespace gpt2;
using namespace gpt2::testing;

namespace {

// The root of the sum of squares over all histograms of one step whose tag begins so.
double norm_of_histograms(const std::string& path, const std::string& beginning, uint64_t step) {
  double sum_squares = 0;
  for (const std::string& event : read_records(path)) {
    const auto has = [&event](int number) {
      const auto fields = parse(event);
      return std::any_of(fields.begin(), fields.end(), [number](const Field& f) { return f.number == number; });
    };
    if (!has(5) || !has(2) || find(event, 2).integer != step) continue;
    const std::string value = find(find(event, 5).bytes, 1).bytes;
    if (!find(value, 1).bytes.starts_with(beginning)) continue;
    sum_squares += read_as<double>(find(find(value, 5).bytes, 5).bytes);
  }
  return std::sqrt(sum_squares);
}

} // namespace

TEST_CASE("gradient histograms are of the mean over tokens: their norm is train/grad_norm") {
  for (const int batch_size : {1, 4}) { // accumulated four times, or not at all
    CAPTURE(batch_size);
    Playground play;
    play.options.channels = 4; // no tensor is so large that only a sample of it is logged
    play.options.batch_size = batch_size;
    play.options.max_steps = 2;
    play.options.eval_freq = 2;
    run_cpu({play.options, ""});

    std::ifstream metrics(play.options.log_dir + "/run/metrics.jsonl");
    double grad_norm = 0;
    for (std::string line; std::getline(metrics, line);) {
      const auto fields = nlohmann::json::parse(line);
      if (fields.at("step") == 2 && fields.contains("grad_norm")) grad_norm = fields.at("grad_norm");
    }
    REQUIRE(grad_norm > 0);
    std::string events;
    for (const auto& entry : std::filesystem::directory_iterator(play.options.log_dir + "/run")) {
      if (contains(entry.path().filename().string(), "tfevents")) events = entry.path();
    }
    CHECK(norm_of_histograms(events, "gradients/", 2) == doctest::Approx(grad_norm).epsilon(1e-4));
    CHECK(norm_of_histograms(events, "weights/", 2) > 0);
  }
}
