// What a run writes to its log folder, read back.
#include "engine/run/run_log.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <regex>
#include <set>

#include "tests/event_file.h"
#include "tests/fp8_names.h"
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

// The tags of summaries in a run's event files.
std::set<std::string> tags_of(const Options& options) {
  std::set<std::string> tags;
  for (const std::string& path : event_files(options.log_dir + "/run")) {
    if (!contains(path, "tfevents")) continue;
    for (const std::string& event : read_records(path)) {
      for (const Field& field : parse(event)) {
        if (field.number == 5) tags.insert(find(find(field.bytes, 1).bytes, 1).bytes);
      }
    }
  }
  return tags;
}

std::set<std::string> beginning_with(const std::set<std::string>& tags, const std::string& beginning) {
  std::set<std::string> found;
  for (const std::string& tag : tags) {
    if (tag.starts_with(beginning)) found.insert(tag);
  }
  return found;
}

// A run that has everything to log: a scripted one in "FP8" that skips, saturates, evaluates, saves and samples.
Options eventful_run(const Playground& play) {
  Options options = play.options;
  options.train_data.clear(), options.val_data.clear(); // the built-in sample, which needs no tokenizer's tables
  options.max_steps = 40;
  options.eval_freq = options.sample_freq = options.checkpoint_freq = 20;
  options.sample_tokens = 2;
  options.precision = PrecisionChoice::fp8;
  options.fp8_detail = true;
  Script script;
  script.device_metrics = {{"gpu/power_watts", 700.0}};
  script.result = [](int64_t step) {
    return StepResult{.loss = 1, .grad_norm = 1, .verdict = step == 7 ? Verdict::skipped_nonfinite : Verdict::applied};
  };
  script.fp8_stats = [](int64_t) {
    return std::vector<Fp8TensorStats>{{testing::named("h.0/fc/grad"), Fp8Format::e5m2, 1, 1024, 0.5, 0.25},
                                       {testing::named("h.0/fc/act"), Fp8Format::e4m3, 1, 16, 0, 0},
                                       {testing::named("h.0/fc/weight"), Fp8Format::e4m3, 1, 64, 0, 0},
                                       {testing::named("h.0/fcproj/act"), Fp8Format::e4m3, 1, 32, 0, 0.6}};
  };
  ScriptedBackend backend(script);
  backend.roofline_ = 1e6;
  run({options}, backend);
  return options;
}

} // namespace

TEST_CASE("metrics.jsonl: a line that says what runs, then steps, validation, samples, FP8, device and events") {
  const Playground play;
  const Options options = eventful_run(play);
  const auto runs = metrics_of(options, "run");
  REQUIRE(runs.size() == 1);
  CHECK(metrics_of(options).front() == runs[0]);
  CHECK(runs[0].at("version") == GPT2_VERSION);
  CHECK(runs[0].at("device") == "a script");
  CHECK(runs[0].at("options").at("max_steps") == 40);
  CHECK(runs[0].at("options").at("run_name") == "run");
  CHECK(runs[0].at("options").at("use_tensorboard") == true);

  CHECK(metrics_of(options, "step").size() == 40);
  const auto validation = metrics_of(options, "validation");
  REQUIRE(validation.size() == 2);
  CHECK((validation[0].at("step") == 20 && validation[0].at("val_loss") == 1.0 && validation[0].at("best") == true));
  CHECK(validation[1].at("best") == false);
  CHECK(metrics_of(options, "sample").size() == 2);
  const auto device = metrics_of(options, "device"); // every ten steps
  REQUIRE(device.size() == 4);
  CHECK(device[0].at("gpu_power_watts") == 700.0);

  const auto fp8 = metrics_of(options, "fp8"); // every ten steps, and at the skip
  REQUIRE(fp8.size() == 5);
  CHECK(fp8[0].at("step") == 7);
  CHECK(fp8[0].at("fwd_scale").get<double>() == doctest::Approx(32)); // the geometric mean of 16, 64 and 32
  CHECK(fp8[0].at("bwd_scale").get<double>() == doctest::Approx(1024));
  CHECK((fp8[0].at("worst_saturated") == 0.5 && fp8[0].at("worst_saturated_tensor") == "h.0/fc/grad"));
  CHECK((fp8[0].at("worst_flushed") == 0.25 && fp8[0].at("worst_flushed_tensor") == "h.0/fc/grad"));
  CHECK(fp8[0].at("blocks_in_bf16") == 0);
  const auto tensors = metrics_of(options, "fp8_tensor");
  REQUIRE(tensors.size() == 2 * 4); // with the histograms, which come with evaluation
  for (const auto& tensor : tensors) CHECK(tensor.contains("gelu_tail") == (tensor.at("tensor") == "h.0/fcproj/act"));

  std::map<std::string, int> events;
  for (const auto& event : metrics_of(options, "event")) events[event.at("event")] += 1;
  CHECK(events == std::map<std::string, int>{{"fallback", 1}, {"fp8_lag", 1}, {"save", 2}, {"skip", 1}});

  double last = 0;
  for (const auto& line : metrics_of(options)) {
    CHECK(line.at("seconds").get<double>() >= last);
    last = line.at("seconds");
    CHECK(std::regex_match(line.at("timestamp").get<std::string>(), std::regex("\\d{4}-\\d\\d-\\d\\dT.*Z")));
  }
}

TEST_CASE("docs/metrics.md names every type, field and tag that is logged") {
  const std::string document = read_file("docs/metrics.md");
  REQUIRE_FALSE(document.empty());
  const auto documented = [&document](const std::string& name) { return contains(document, "`" + name + "`"); };
  const Playground play;
  const Options options = eventful_run(play);
  for (const auto& line : metrics_of(options)) {
    const std::string type = line.at("type");
    const size_t section = document.find("## `" + type + "`");
    CAPTURE(type);
    REQUIRE(section != std::string::npos);
    const std::string of_type = document.substr(section, document.find("\n## ", section) - section);
    for (const auto& [field, value] : line.items()) {
      const bool common = std::set<std::string>{"type", "step", "timestamp", "seconds"}.contains(field);
      CAPTURE(field);
      CHECK((common ? documented(field) : contains(of_type, "`" + field + "`")));
    }
    if (line.contains("event")) CHECK(documented(line.at("event")));
  }
  const std::string nvml = read_file("engine/cuda/nvml.cpp");
  const std::regex metric("\"gpu/([a-z_]+)\"");
  for (std::sregex_iterator found(nvml.begin(), nvml.end(), metric); found != std::sregex_iterator(); ++found) {
    CAPTURE(found->str(1));
    CHECK(documented("gpu_" + found->str(1)));
  }
  for (const std::string& tag : tags_of(options)) {
    if (tag.starts_with("_hparams_/")) continue;
    CAPTURE(tag);
    CHECK((documented(tag) || documented(tag.substr(0, tag.find('/')) + "/...")));
  }
}

TEST_CASE("TensorBoard: train and val come first; of FP8 five summaries, by kind of tensor if asked for") {
  for (const bool detail : {false, true}) {
    CAPTURE(detail);
    Playground play;
    play.options.layers = 2;
    play.options.max_steps = 2;
    play.options.eval_freq = 2;
    play.options.precision = PrecisionChoice::fp8;
    play.options.fp8_detail = detail;
    run_cpu({play.options});
    const std::set<std::string> tags = tags_of(play.options);
    CHECK(beginning_with(tags, "vitals_fp8/") ==
          std::set<std::string>{"vitals_fp8/blocks_in_bf16", "vitals_fp8/bwd_scale", "vitals_fp8/fwd_scale",
                                "vitals_fp8/worst_flushed", "vitals_fp8/worst_saturated"});
    const size_t kinds =
        4 * 3 + 2; // activation, weight and gradient of four products; the LM head's gradient is static
    for (const char* what : {"scale", "saturated", "flushed"}) {
      CHECK(beginning_with(tags, std::string("vitals_fp8_") + what + "/").size() == (detail ? kinds : 0));
    }
    CHECK(metrics_of(play.options, "fp8_tensor").size() == (detail ? 2 * 4 * 3 + 3 : 0));
    std::vector<std::string> groups; // as TensorBoard makes them; text and hparams are on pages of their own
    for (const std::string& tag : tags) {
      const std::string group = tag.substr(0, tag.find('/'));
      if (group == "_hparams_" || group == "sample" || (!groups.empty() && groups.back() == group)) continue;
      groups.push_back(group);
    }
    REQUIRE(groups.size() > 2);
    CHECK((groups[0] == "train" && groups[1] == "val"));
  }
}

TEST_CASE("histograms and FP8 summaries need no validation data") {
  const auto histograms = [](int64_t freq) {
    Playground play;
    play.options.val_data.clear();
    play.options.max_steps = 4;
    play.options.eval_freq = 250;
    play.options.histogram_freq = freq;
    play.options.precision = PrecisionChoice::fp8;
    run_cpu({play.options});
    const std::set<std::string> tags = tags_of(play.options);
    CHECK_FALSE(beginning_with(tags, "vitals_fp8/").empty());
    std::string path;
    for (const std::string& file : event_files(play.options.log_dir + "/run")) {
      if (contains(file, "tfevents")) path = file;
    }
    std::vector<uint64_t> steps;
    for (uint64_t step = 1; step <= 4; ++step) {
      if (norm_of_histograms(path, "weights/", step) > 0) steps.push_back(step);
    }
    return steps;
  };
  CHECK(histograms(-1) == std::vector<uint64_t>{4}); // auto: every 250, and at the end
  CHECK(histograms(2) == std::vector<uint64_t>{2, 4});
  CHECK(histograms(3) == std::vector<uint64_t>{3, 4});
  CHECK(histograms(0).empty());
}

TEST_CASE("hparams: only what bears on the run") {
  Playground play;
  play.options.max_steps = 1;
  run_cpu({play.options});
  CHECK_FALSE(contains(events_of(play.options), "fp8_format"));
  CHECK_FALSE(contains(events_of(play.options), "wsd_decay_ratio"));
  CHECK(contains(events_of(play.options), "min_lr_ratio"));

  Playground other;
  other.options.max_steps = 1;
  other.options.precision = PrecisionChoice::fp8;
  other.options.lr_schedule = Decay::constant;
  run_cpu({other.options});
  CHECK(contains(events_of(other.options), "fp8_format"));
  CHECK_FALSE(contains(events_of(other.options), "min_lr_ratio"));
}

TEST_CASE("a sample is shown as it is: its lines stay lines, and nothing in it is markup") {
  Playground play;
  RunLog log(play.options.log_dir + "/run", true, 0, "metrics.jsonl", log_warn);
  log.sample(1, "Tom & <b>\n    went_home *slowly*\n\n# 1. | end");
  CHECK(contains(events_of(play.options),
                 "Tom &amp; &lt;b\\>  \n&nbsp;&nbsp;&nbsp;&nbsp;went\\_home \\*slowly\\*  \n  \n\\# 1\\. &#124; end"));
  CHECK(metrics_of(play.options, "sample").at(0).at("text") == "Tom & <b>\n    went_home *slowly*\n\n# 1. | end");
}

TEST_CASE("gradient histograms are of the mean over tokens: their norm is train/grad_norm") {
  for (const int batch_size : {1, 4}) { // accumulated four times, or not at all
    CAPTURE(batch_size);
    Playground play;
    play.options.channels = 4; // no tensor is so large that only a sample of it is logged
    play.options.batch_size = batch_size;
    play.options.max_steps = 2;
    play.options.eval_freq = 2;
    run_cpu({play.options});

    const double grad_norm = metrics_of(play.options, "step").at(1).at("grad_norm");
    REQUIRE(grad_norm > 0);
    std::string events;
    for (const auto& entry : std::filesystem::directory_iterator(play.options.log_dir + "/run")) {
      if (contains(entry.path().filename().string(), "tfevents")) events = entry.path();
    }
    CHECK(norm_of_histograms(events, "weights_grad/", 2) == doctest::Approx(grad_norm).epsilon(1e-4));
    CHECK(norm_of_histograms(events, "weights/", 2) > 0);
  }
}
