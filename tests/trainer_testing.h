// What the tests of the training loop share: a small run to play with, and a model that does as a script says.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/shard.h"
#include "engine/options/option_fields.h"
#include "engine/options/parse_options.h"
#include "engine/run/trainer.h"
#include "tests/contains.h"
#include "tests/temporary_folder.h"
#include "tools/prepare_data/write_shard.h"

namespace gpt2::testing {

// 40 sequences of 8 tokens to train on, 5 to validate with; a model of one narrow block.
struct Playground {
  TemporaryFolder folder;
  Options options;

  Playground() {
    write_bin_shard(folder / "train.bin", tokens(40 * 8 + 1));
    write_bin_shard(folder / "val.bin", tokens(5 * 8 + 1));
    options.model = "nano";
    options.layers = 1, options.heads = 1, options.channels = 8, options.seq_len = 8;
    options.train_data = folder / "train.bin";
    options.val_data = folder / "val.bin";
    options.batch_size = 2, options.target_batch_size = 4;
    options.max_steps = 10;
    options.eval_freq = 0, options.sample_tokens = 0, options.checkpoint_freq = 0;
    options.device = DeviceKind::cpu;
    options.run_name = "run";
    options.log_dir = folder / "runs";
    options.checkpoint_dir = folder / "checkpoints";
  }

  static std::vector<uint16_t> tokens(size_t count) {
    std::vector<uint16_t> out(count);
    for (size_t i = 0; i < count; ++i) out[i] = static_cast<uint16_t>(i * 37 % 101);
    return out;
  }
};

// As rm -rf does, under a thread that may be writing there.
inline void remove_folder(const std::string& path) {
  std::error_code ignored;
  while (std::filesystem::exists(path)) std::filesystem::remove_all(path, ignored);
}

struct Outcome {
  ExitCode code = ExitCode::done;
  TrainState state;
  std::string printed;
  std::vector<float> weights; // all tensors, one after the other
};

inline Outcome run(const RunSettings& settings, Backend& backend) {
  Outcome outcome;
  std::ostringstream printed;
  Console console(printed, false);
  RankGroup group;
  Session session(settings, choose_device(backend_options(settings.options), {}), backend, group, console);
  outcome.code = Trainer(session).run();
  outcome.state = session.state;
  outcome.printed = printed.str();
  for (const ParameterTensor& tensor : session.model->parameters().tensors()) {
    const auto values = session.model->read_tensor(tensor, TensorKind::weight).values;
    outcome.weights.insert(outcome.weights.end(), values.begin(), values.end());
  }
  return outcome;
}

inline Outcome run_cpu(const RunSettings& settings) {
  const auto backend = make_cpu_backend(0);
  return run(settings, *backend);
}

inline RunSettings settled(const CommandLine& line) {
  RankGroup alone;
  return resolve_settings(line, find_resume_point(line, alone));
}

// As a command line that gives --resume, --checkpoint_dir and `given` of these options.
inline RunSettings resume(const Options& options, const std::string& which, std::set<std::string> given = {}) {
  CommandLine line{{}, std::move(given)};
  Options asked = options;
  asked.resume = which;
  line.given.insert({"resume", "checkpoint_dir"});
  for (const std::string& name : line.given) find_field(name)->copy(asked, line.options);
  return settled(line);
}

// Where it would write on the CPU.
inline RunPlace place_of(const RunSettings& settings) {
  const DeviceChoice device = choose_device(backend_options(settings.options), {});
  return find_place(settings, resolve_config(settings.options, false), device.precision);
}

// "step ... | norm: x" of every step line: all but the times.
inline std::vector<std::string> loss_lines(const std::string& printed) {
  std::vector<std::string> out;
  std::istringstream stream(printed);
  for (std::string line; std::getline(stream, line);) {
    if (contains(line, "| lr:")) out.push_back(line.substr(0, line.find(" | dt:")));
  }
  return out;
}

// The bytes of a run's event files: tags stand in them as they are.
inline std::string events_of(const Options& options) {
  std::string bytes;
  for (const auto& entry : std::filesystem::directory_iterator(options.log_dir + "/run")) {
    if (!contains(entry.path().filename().string(), "tfevents")) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    bytes.append(std::istreambuf_iterator<char>(file), {});
  }
  return bytes;
}

// The lines of a run's metrics.jsonl that are of this type; "": all.
inline std::vector<nlohmann::json> metrics_of(const Options& options, const std::string& type = "") {
  std::vector<nlohmann::json> lines;
  std::ifstream file(options.log_dir + "/run/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    nlohmann::json fields = nlohmann::json::parse(line);
    if (type.empty() || fields.at("type") == type) lines.push_back(std::move(fields));
  }
  return lines;
}

// A model without mathematics: it records how it is called and does as the test says.
struct Script {
  std::function<StepResult(int64_t step)> result = [](int64_t) { return StepResult{.loss = 1, .grad_norm = 1}; };
  std::function<double(int64_t step)> val_loss = [](int64_t) { return 1.0; };
  std::function<std::vector<Fp8TensorStats>(int64_t step)> fp8_stats = [](int64_t) {
    return std::vector<Fp8TensorStats>{};
  };
  std::function<void(int64_t step)> before_logits = [](int64_t) {}; // of each token of a sample
  std::vector<DeviceMetric> device_metrics;
  std::vector<std::pair<int64_t, int>> left_in_bf16; // after which step, which block
  std::vector<std::string> calls;
  std::vector<float> rates;
  std::vector<std::vector<int32_t>> inputs;
};

class ScriptedModel : public Model {
 public:
  ScriptedModel(const ModelOptions& options, Script& script)
      : config_(options.config), table_(options.config), script_(script) {}

  const GPT2Config& config() const override { return config_; }
  const ParameterTable& parameters() const override { return table_; }
  std::string precision_label() const override { return "SCRIPT"; }
  std::string device_name() const override { return "a script"; }
  void micro_step(const Batch& batch, int index, int count) override {
    script_.calls.push_back("micro " + std::to_string(index) + "/" + std::to_string(count));
    script_.inputs.emplace_back(batch.inputs.begin(), batch.inputs.end());
  }
  void update(const UpdateSettings& settings) override {
    script_.calls.push_back("update");
    script_.rates.push_back(settings.adamw.lr);
  }
  StepResult step_result() override {
    script_.calls.push_back("result");
    StepResult result = script_.result(++steps_);
    skipped_in_a_row_ = result.verdict == Verdict::applied ? 0 : skipped_in_a_row_ + 1;
    result.skipped_in_a_row = skipped_in_a_row_;
    return result;
  }
  void evaluate(const Batch& batch, std::span<LossSum> rows) override {
    for (LossSum& row : rows) row = {script_.val_loss(steps_) * batch.seq_len, batch.seq_len};
  }
  void next_token_logits(std::span<const int32_t>, std::span<float> logits) override {
    script_.before_logits(steps_);
    std::ranges::fill(logits, 0.0f);
  }
  std::unique_ptr<StateSnapshot> snapshot() override { return std::make_unique<Counts>(steps_, skipped_in_a_row_); }
  void load_weights(StateReader&) override {}
  void load_state(StateReader& reader) override {
    steps_ = reader.read_int("steps");
    skipped_in_a_row_ = static_cast<int>(reader.read_int("skipped_in_a_row"));
  }
  NamedTensor read_tensor(const ParameterTensor& tensor, TensorKind) override { return {tensor.name, {1}, {0.0f}}; }
  std::vector<MemoryLine> memory_report() const override { return {}; }
  std::vector<Fp8TensorStats> fp8_stats() override { return script_.fp8_stats(steps_); }
  void leave_in_bf16(int layer) override { script_.left_in_bf16.emplace_back(steps_, layer); }
  std::vector<DeviceMetric> device_metrics() override { return script_.device_metrics; }

 private:
  struct Counts : StateSnapshot {
    Counts(int64_t steps, int skipped_in_a_row) : steps(steps), skipped_in_a_row(skipped_in_a_row) {}
    void write_own(StateWriter&) const override {}
    void write_common(StateWriter& writer) const override {
      writer.write_int("steps", steps);
      writer.write_int("skipped_in_a_row", skipped_in_a_row);
    }
    int64_t steps;
    int skipped_in_a_row;
  };

  GPT2Config config_;
  ParameterTable table_;
  Script& script_;
  int64_t steps_ = 0;
  int skipped_in_a_row_ = 0;
};

class ScriptedBackend : public Backend {
 public:
  explicit ScriptedBackend(Script& script) : script_(script) {}
  bool is_gpu() const override { return false; }
  std::unique_ptr<Model> make_model(const ModelOptions& options, RankGroup&) override {
    return std::make_unique<ScriptedModel>(options, script_);
  }
  std::string versions() const override { return "scripted"; }
  int choose_batch_size(const ModelOptions&, int, int) override { return 1; }
  std::optional<double> roofline(const ModelOptions&) const override { return roofline_; }

  std::optional<double> roofline_;

 private:
  Script& script_;
};

} // namespace gpt2::testing
