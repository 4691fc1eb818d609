#include "engine/train/trainer.h"

#include <doctest/doctest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "engine/data/shard.h"

using namespace gpt2;
namespace fs = std::filesystem;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct TemporaryFolder {
  fs::path path;
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "test_trainer_XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~TemporaryFolder() { fs::remove_all(path); }
  std::string operator/(const std::string& name) const { return (path / name).string(); }
};

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
    options.device = "cpu";
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

struct Outcome {
  ExitCode code = ExitCode::done;
  TrainState state;
  std::string printed;
  std::vector<float> weights; // all tensors, one after the other
};

class SingleRank : public Communicator {
 public:
  int rank() const override { return 0; }
  int ranks() const override { return 1; }
};

Outcome run(const RunStart& start, Backend& backend) {
  Outcome outcome;
  std::ostringstream printed;
  Console console(printed, false);
  const SingleRank communicator;
  Trainer trainer(start, choose_device(start.options, {}), backend, communicator, console);
  outcome.code = trainer.run();
  outcome.state = trainer.state();
  outcome.printed = printed.str();
  for (const ParameterTensor& tensor : trainer.model().parameters().tensors()) {
    const auto values = trainer.model().read_tensor(tensor, TensorKind::weight).values;
    outcome.weights.insert(outcome.weights.end(), values.begin(), values.end());
  }
  return outcome;
}

Outcome run_cpu(const RunStart& start) {
  const auto backend = make_cpu_backend(0);
  return run(start, *backend);
}

RunStart resume(const Options& options, const std::string& which, std::set<std::string> given = {}) {
  CommandLine line{options, std::move(given)};
  line.options.resume = which;
  line.given.insert({"resume", "checkpoint_dir"});
  return prepare_start(line);
}

// "step ... | norm: x" of every step line: all but the times.
std::vector<std::string> loss_lines(const std::string& printed) {
  std::vector<std::string> out;
  std::istringstream stream(printed);
  for (std::string line; std::getline(stream, line);) {
    if (contains(line, "| lr:")) out.push_back(line.substr(0, line.find(" | dt:")));
  }
  return out;
}

// The bytes of a run's event files: tags stand in them as they are.
std::string events_of(const Options& options) {
  std::string bytes;
  for (const auto& entry : fs::directory_iterator(options.log_dir + "/run")) {
    if (!contains(entry.path().filename().string(), "tfevents")) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    bytes.append(std::istreambuf_iterator<char>(file), {});
  }
  return bytes;
}

// A model without mathematics: it records how it is called and does as the test says.
struct Script {
  std::function<StepResult(int64_t step)> result = [](int64_t) { return StepResult{.loss = 1, .grad_norm = 1}; };
  std::function<double(int64_t step)> val_loss = [](int64_t) { return 1.0; };
  std::function<std::vector<Fp8TensorStats>(int64_t step)> fp8_stats = [](int64_t) {
    return std::vector<Fp8TensorStats>{};
  };
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
  Precision precision() const override { return Precision::fp32; }
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
    return script_.result(++steps_);
  }
  LossSum evaluate(const Batch& batch) override {
    return {script_.val_loss(steps_) * static_cast<double>(batch.tokens()), batch.tokens()};
  }
  void next_token_logits(std::span<const int32_t>, std::span<float>) override {}
  void save_state(StateWriter& writer) override { writer.write_int("steps", steps_); }
  void load_state(StateReader& reader) override { steps_ = reader.read_int("steps"); }
  NamedTensor read_tensor(const ParameterTensor& tensor, TensorKind) override { return {tensor.name, {1}, {0.0f}}; }
  std::vector<MemoryLine> memory_report() const override { return {}; }
  std::vector<Fp8TensorStats> fp8_stats() override { return script_.fp8_stats(steps_); }
  void leave_in_bf16(int layer) override { script_.left_in_bf16.emplace_back(steps_, layer); }
  std::vector<DeviceMetric> device_metrics() override { return script_.device_metrics; }

 private:
  GPT2Config config_;
  ParameterTable table_;
  Script& script_;
  int64_t steps_ = 0;
};

class ScriptedBackend : public Backend {
 public:
  explicit ScriptedBackend(Script& script) : script_(script) {}
  bool is_gpu() const override { return false; }
  std::unique_ptr<Model> make_model(const ModelOptions& options) override {
    return std::make_unique<ScriptedModel>(options, script_);
  }
  int choose_batch_size(const ModelOptions&, int, int) override { return 1; }
  std::optional<double> light_speed(const ModelOptions&) const override { return light_speed_; }

  std::optional<double> light_speed_;

 private:
  Script& script_;
};

} // namespace

TEST_CASE("the step line has its fields in order, further ones before the precision") {
  StepReport report{.step = 250,
                    .epoch = 0,
                    .loss = 3.456789f,
                    .lr = 6e-4f,
                    .grad_norm = 0.8234f,
                    .seconds = 0.15678,
                    .tokens_per_second = 3345.67,
                    .speed_of_light = std::nullopt,
                    .eta_seconds = 4.2,
                    .precision = "FP8"};
  CHECK(step_line(report) ==
        "step  250 | epoch 0 | loss: 3.456789 | lr: 6.00e-04 | norm: 0.8234 | dt: 156.78ms | tok/sec: 3345.67 | "
        "eta: 4.2s | FP8");
  report.speed_of_light = 0.8125;
  CHECK(contains(step_line(report), "| tok/sec: 3345.67 | SOL: 81.2% | eta: 4.2s | FP8"));
}

TEST_CASE("in a file there are plain lines; on a terminal a bar stays below them") {
  std::ostringstream file, terminal;
  for (const bool is_terminal : {false, true}) {
    Console console(is_terminal ? terminal : file, is_terminal);
    console.progress(progress_bar(5, 10, 60));
    console.line("hello");
  }
  CHECK(file.str() == "hello\n");
  const std::string bar = progress_bar(5, 10, 60);
  CHECK(contains(bar, " 50%  step 5/10"));
  CHECK(terminal.str() == "\r" + bar + "\x1b[K" + "\r\x1b[K" + "hello\n" + "\r" + bar + "\x1b[K" + "\r\x1b[K");
}

TEST_CASE("a step is its micro-steps, the update, then the result") {
  Playground play;
  play.options.max_steps = 2;
  Script script;
  ScriptedBackend backend(script);
  const Outcome outcome = run({play.options, ""}, backend);
  CHECK(outcome.code == ExitCode::done);
  CHECK(script.calls == std::vector<std::string>{"micro 0/2", "micro 1/2", "update", "result", "micro 0/2", "micro 1/2",
                                                 "update", "result"});
  CHECK(outcome.state.step == 2);
  CHECK(outcome.state.loader_position == 8);
  for (const auto& inputs : script.inputs) CHECK(inputs.size() == 2 * 8);
  CHECK(script.inputs[0] != script.inputs[1]);
  REQUIRE(script.rates.size() == 2);
  CHECK(script.rates[0] == learning_rate({.max_lr = defaults_for(config_by_name("nano")).max_lr, .max_steps = 2}, 0));
}

TEST_CASE("the speed of light is printed where the backend knows it") {
  Playground play;
  play.options.max_steps = 1;
  Script script;
  ScriptedBackend backend(script);
  CHECK_FALSE(contains(run({play.options, ""}, backend).printed, "SOL:"));
  backend.light_speed_ = 1e6;
  CHECK(contains(run({play.options, ""}, backend).printed, "| SOL: "));
}

TEST_CASE("the epoch counts passes over the data") {
  Playground play; // 40 sequences, 4 a step
  play.options.max_steps = 21;
  Script script;
  ScriptedBackend backend(script);
  const auto lines = loss_lines(run({play.options, ""}, backend).printed);
  REQUIRE(lines.size() == 21);
  CHECK(contains(lines[9], "step   10 | epoch 0 |"));
  CHECK(contains(lines[10], "step   11 | epoch 1 |"));
  CHECK(contains(lines[20], "step   21 | epoch 2 |"));
}

TEST_CASE("10 steps are 5 steps, a checkpoint and 5 more: same lines, same bits") {
  for (const char* precision : {"fp32", "fp8"}) {
    CAPTURE(precision);
    Playground straight, broken;
    straight.options.precision = broken.options.precision = precision;
    for (Playground* play : {&straight, &broken}) {
      play->options.eval_freq = 3;
      play->options.checkpoint_freq = 5;
      play->options.skip_loss_z = 50;
    }
    const Outcome whole = run_cpu({straight.options, ""});

    // Not a run of 5 steps, whose learning rates would differ: what it wrote at step 5 of the same 10.
    run_cpu({broken.options, ""});
    const RunStart second_life = resume(broken.options, "5");
    CHECK(second_life.options.max_steps == 10);
    const Outcome second = run_cpu(second_life);

    REQUIRE(loss_lines(whole.printed).size() == 10);
    const auto lines = loss_lines(whole.printed);
    CHECK(loss_lines(second.printed) == std::vector<std::string>(lines.begin() + 5, lines.end()));
    CHECK(second.weights == whole.weights);
    CHECK(second.state.loader_position == whole.state.loader_position);
    CHECK(second.state.best_val_loss == whole.state.best_val_loss);
    CHECK(second.state.tokens == whole.state.tokens);
  }
}

TEST_CASE("a resumed run keeps shape, seed and name without being told") {
  Playground play;
  play.options.seed = 7;
  play.options.max_steps = 2;
  run_cpu({play.options, ""});

  Options silent;
  silent.checkpoint_dir = play.options.checkpoint_dir;
  silent.max_steps = 3;
  const RunStart start = resume(silent, "latest", {"max_steps"});
  CHECK(start.options.channels == 8);
  CHECK(start.options.seed == 7);
  const Outcome outcome = run_cpu(start);
  CHECK(outcome.state.step == 3);
  CHECK(outcome.state.run_name == "run");
  CHECK(outcome.state.seed == 7);
}

TEST_CASE("another shape or seed than the checkpoint's is refused with exit 4") {
  Playground play;
  play.options.max_steps = 1;
  run_cpu({play.options, ""});
  for (const char* name : {"channels", "seed", "model"}) {
    CAPTURE(name);
    Options other = play.options;
    if (std::string(name) == "channels") other.channels = 16;
    if (std::string(name) == "seed") other.seed = 99;
    if (std::string(name) == "model") other.seq_len = 4;
    try {
      resume(other, "latest", {"channels", "seed", "seq_len"});
      FAIL("a conflict was accepted");
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::checkpoint);
      CHECK_FALSE(error.hint().empty());
    }
  }
}

TEST_CASE("--resume latest without a checkpoint is exit 4 with a hint") {
  Playground play;
  try {
    resume(play.options, "latest");
    FAIL("resumed from nothing");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::checkpoint);
    CHECK_FALSE(error.hint().empty());
  }
}

TEST_CASE("a run that is done already says so and changes nothing") {
  Playground play;
  play.options.max_steps = 2;
  run_cpu({play.options, ""});
  const auto written = fs::last_write_time(play.options.checkpoint_dir + "/step_00000002/state.h5");
  const Outcome again = run_cpu(resume(play.options, "latest"));
  CHECK(again.code == ExitCode::done);
  CHECK(contains(again.printed, "nothing left"));
  CHECK(loss_lines(again.printed).empty());
  CHECK(fs::last_write_time(play.options.checkpoint_dir + "/step_00000002/state.h5") == written);
}

TEST_CASE("a new run beside the checkpoints of another says so") {
  Playground play;
  play.options.max_steps = 1;
  CHECK_FALSE(contains(run_cpu({play.options, ""}).printed, "another run"));
  CHECK(contains(run_cpu({play.options, ""}).printed, "holds checkpoints of another run, up to step 1"));
  CHECK_FALSE(contains(run_cpu(resume(play.options, "latest")).printed, "another run"));
}

TEST_CASE("skipped steps are explained, and too many in a row end the run with exit 5 and without a checkpoint") {
  Playground play;
  play.options.max_skipped = 3;
  Script script;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  script.result = [&](int64_t step) {
    if (step == 2) return StepResult{.loss = 9, .grad_norm = 1, .verdict = Verdict::skipped_loss_z};
    if (step >= 4) return StepResult{.loss = nan, .grad_norm = nan, .verdict = Verdict::skipped_nonfinite};
    return StepResult{.loss = 1, .grad_norm = 1};
  };
  ScriptedBackend backend(script);
  std::ostringstream printed;
  Console console(printed, false);
  const SingleRank communicator;
  Trainer trainer({play.options, ""}, {}, backend, communicator, console);
  try {
    trainer.run();
    FAIL("the run went on");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::numerics);
    CHECK(contains(error.what(), "step 6"));
    CHECK(contains(error.what(), "not finite"));
  }
  CHECK(trainer.state().step == 6); // 2 is skipped, 3 is not, 4 to 6 are
  CHECK(contains(printed.str(), "step 2 skipped"));
  CHECK(contains(printed.str(), "--skip_loss_z"));
  CHECK(contains(printed.str(), "(1 in a row, stops at 3)"));
  CHECK(CheckpointFolder(play.options.checkpoint_dir).list().empty());
}

TEST_CASE("SIGTERM and SIGINT finish the step, save and exit 75; the run can be resumed") {
  for (const int signal : {SIGTERM, SIGINT}) {
    Playground play;
    Script script;
    script.result = [&](int64_t step) {
      if (step == 3) std::raise(signal);
      return StepResult{.loss = 1, .grad_norm = 1};
    };
    ScriptedBackend backend(script);
    const Outcome outcome = run({play.options, ""}, backend);
    CHECK(outcome.code == ExitCode::stopped_early);
    CHECK(outcome.state.step == 3);
    CHECK(contains(outcome.printed, "--resume latest"));

    script.result = [](int64_t) { return StepResult{.loss = 1, .grad_norm = 1}; };
    const Outcome rest = run(resume(play.options, "latest"), backend);
    CHECK(rest.code == ExitCode::done);
    CHECK(loss_lines(rest.printed).size() == 7);
  }
}

TEST_CASE("a new best is saved and marked; the one before goes unless it was due") {
  Playground play;
  play.options.max_steps = 6;
  play.options.eval_freq = 1;
  play.options.checkpoint_freq = 2;
  Script script;
  script.val_loss = [](int64_t step) { return step <= 4 ? 10.0 - static_cast<double>(step) : 7.0; }; // best at 4
  ScriptedBackend backend(script);
  const Outcome outcome = run({play.options, ""}, backend);
  CHECK(outcome.state.best_val_loss == doctest::Approx(6.0));
  CHECK(outcome.state.last_val_loss == doctest::Approx(7.0));
  std::vector<int64_t> steps, best, latest;
  for (const CheckpointInfo& info : CheckpointFolder(play.options.checkpoint_dir).list()) {
    steps.push_back(info.step);
    if (info.best) best.push_back(info.step);
    if (info.latest) latest.push_back(info.step);
  }
  CHECK(steps == std::vector<int64_t>{2, 4, 6});
  CHECK(best == std::vector<int64_t>{4});
  CHECK(latest == std::vector<int64_t>{6});
}

TEST_CASE("without --save_best a new best saves nothing by itself; a checkpoint that is due is still marked") {
  Playground play;
  play.options.max_steps = 6;
  play.options.eval_freq = 1;
  play.options.checkpoint_freq = 4;
  play.options.save_best = false;
  Script script;
  script.val_loss = [](int64_t step) { return step <= 5 ? 10.0 - static_cast<double>(step) : 7.0; }; // best at 5
  ScriptedBackend backend(script);
  const Outcome outcome = run({play.options, ""}, backend);
  CHECK(outcome.state.best_val_loss == doctest::Approx(5.0));
  CHECK_FALSE(contains(outcome.printed, "step 5 | saved"));
  const auto saved = CheckpointFolder(play.options.checkpoint_dir).list();
  REQUIRE(saved.size() == 2);
  CHECK(saved[0].step == 4);
  CHECK(saved[0].best);
  CHECK(saved[1].step == 6);
  CHECK_FALSE(resume(play.options, "latest").options.save_best); // a resumed run remembers
}

TEST_CASE("--list_checkpoints shows a loss of an earlier step with that step, and none where none was measured") {
  Playground play;
  play.options.max_steps = 7;
  play.options.eval_freq = 4;
  play.options.checkpoint_freq = 3;
  Script script;
  script.val_loss = [](int64_t step) { return 3.0 + static_cast<double>(step); };
  ScriptedBackend backend(script);
  run({play.options, ""}, backend);
  std::istringstream listed(describe_checkpoints(play.options.checkpoint_dir));
  for (const char* beginning : {"step        3 | val loss         -           | fp32 |",
                                "step        4 | val loss  7.000000           | fp32 |",
                                "step        6 | val loss  7.000000 at step 4 | fp32 |",
                                "step        7 | val loss 10.000000           | fp32 |"}) {
    std::string line;
    std::getline(listed, line);
    CHECK(line.substr(0, std::string(beginning).size()) == beginning);
  }
}

TEST_CASE("a run whose log or checkpoint folder another run is writing to does not start, and touches nothing") {
  Playground play;
  Script script;
  ScriptedBackend backend(script);
  std::ostringstream printed;
  Console console(printed, false);
  const SingleRank communicator;
  play.options.max_steps = 2;
  {
    Trainer first({play.options, ""}, choose_device(play.options, {}), backend, communicator, console);
    try {
      Trainer second({play.options, ""}, choose_device(play.options, {}), backend, communicator, console);
      FAIL("two runs write to one folder");
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::usage);
      CHECK(contains(error.what(), "runs/run"));
      CHECK(contains(error.hint(), "--run_name"));
    }
    CHECK_FALSE(fs::exists(play.options.log_dir + "/run/metrics.jsonl.1")); // the first one's is not set aside
    Options other = play.options;
    other.run_name = "other"; // but the same checkpoints
    try {
      Trainer third({other, ""}, choose_device(other, {}), backend, communicator, console);
      FAIL("two runs write checkpoints to one folder");
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::usage);
      CHECK(contains(error.hint(), "--checkpoint_dir"));
    }
    CHECK_FALSE(fs::exists(play.options.log_dir + "/other"));
    other.checkpoint_dir += "_other";
    CHECK(run({other, ""}, backend).code == ExitCode::done);
    other.log_dir = fs::path(other.checkpoint_dir).parent_path(); // one folder for both is one lock
    other.run_name = fs::path(other.checkpoint_dir).filename();
    CHECK(run({other, ""}, backend).code == ExitCode::done);
    CHECK(first.run() == ExitCode::done);
  }
  CHECK_FALSE(fs::exists(play.options.log_dir + "/run/.lock"));
  play.options.max_steps = 3;
  CHECK(run(resume(play.options, "latest", {"max_steps"}), backend).state.step == 3);
}

TEST_CASE("a run that is refused leaves no log folder") {
  Playground play;
  play.options.batch_size = 3; // of 4
  CHECK_THROWS_AS(run_cpu({play.options, ""}), Error);
  CHECK_FALSE(fs::exists(play.options.log_dir + "/run"));
}

TEST_CASE("the last step of a run trains at the lowest rate") {
  Playground play;
  play.options.max_steps = 20;
  play.options.max_lr = 1e-2f, play.options.min_lr_ratio = 0.25f;
  for (const char* schedule : {"cosine", "linear", "wsd"}) {
    CAPTURE(schedule);
    play.options.lr_schedule = schedule;
    Script script;
    ScriptedBackend backend(script);
    run({play.options, ""}, backend);
    REQUIRE(script.rates.size() == 20);
    CHECK(script.rates[18] > 0.25f * 1e-2f);
    CHECK(script.rates[19] == 0.25f * 1e-2f);
  }
}

TEST_CASE("a validation loss that is not finite is never the best") {
  Playground play;
  play.options.max_steps = 2;
  play.options.eval_freq = 1;
  Script script;
  script.val_loss = [](int64_t step) { return step == 1 ? 5.0 : std::numeric_limits<double>::quiet_NaN(); };
  ScriptedBackend backend(script);
  CHECK(run({play.options, ""}, backend).state.best_val_loss == doctest::Approx(5.0));
}

TEST_CASE("the start-up table names what matters, and each fallback has a line") {
  Playground play;
  play.options.max_steps = 1;
  play.options.val_data.clear();
  play.options.eval_freq = 10;
  play.options.precision = "bf16";
  const std::string printed = run_cpu({play.options, ""}).printed;
  for (const char* part : {"1 layers, 1 heads, 8 channels", "parameters", "FP32", "train.bin: 321 tokens",
                           "40 sequences", "4 sequences = 2 per micro-batch x 2 accumulated x 1 rank", "AdamW",
                           "memory", "checkpoints", "note: no --val_data", "note: the CPU engine has no BF16"}) {
    CAPTURE(part);
    CHECK(contains(printed, part));
  }
}

TEST_CASE("logs: one metrics line a step and event files, continued on resume") {
  Playground play;
  play.options.max_steps = 4;
  play.options.checkpoint_freq = 2;
  run_cpu({play.options, ""});
  run_cpu(resume(play.options, "2"));
  std::ifstream metrics(play.options.log_dir + "/run/metrics.jsonl");
  std::vector<std::string> lines;
  for (std::string line; std::getline(metrics, line);) lines.push_back(line);
  REQUIRE(lines.size() == 4);
  CHECK(contains(lines[3], "\"step\":4"));
  CHECK(contains(lines[3], "\"verdict\":\"applied\""));
  int event_files = 0;
  for (const auto& entry : fs::directory_iterator(play.options.log_dir + "/run")) {
    event_files += contains(entry.path().filename().string(), "tfevents");
  }
  CHECK(event_files == 2);
}

TEST_CASE("the built-in sample: learning starts, and the closing lines name the grammar's entropy") {
  Playground play;
  play.options.train_data.clear(), play.options.val_data.clear();
  play.options.max_steps = 3;
  play.options.eval_freq = 3;
  play.options.eval_sequences = 4;
  play.options.sample_tokens = 4;
  const Outcome outcome = run_cpu({play.options, ""});
  CHECK(contains(outcome.printed, "note: no --train_data"));
  CHECK(contains(outcome.printed, "| sample: "));
  CHECK(contains(outcome.printed, "the grammar's own entropy is"));
  CHECK(outcome.state.best_val_loss < 10.9); // ln(50257) = 10.8 plus the noise of initialisation
}

TEST_CASE("FP8 ends with a health table of its tensors") {
  Playground play;
  play.options.max_steps = 2;
  play.options.precision = "fp8";
  const Outcome outcome = run_cpu({play.options, ""});
  CHECK(contains(outcome.printed, "| FP8 (emulated)"));
  CHECK(contains(outcome.printed, "FP8 health"));
  CHECK(contains(outcome.printed, "fc/act"));
}

TEST_CASE("FP8: every evaluation logs each tensor's scale, amax and shares; of the static one the scale alone") {
  Playground play;
  play.options.max_steps = 2;
  play.options.eval_freq = 2;
  play.options.precision = "fp8";
  play.options.fp8_lm_head = true;
  run_cpu({play.options, ""});
  const std::string events = events_of(play.options);
  for (const char* what : {"scale", "amax", "saturated", "flushed"}) {
    CAPTURE(what);
    CHECK(contains(events, std::string("fp8/h.0/fc/grad/") + what));
    CHECK(contains(events, std::string("fp8/lm_head/grad/") + what) == (std::string(what) == "scale"));
  }
}

namespace {

Fp8TensorStats tensor(const std::string& name, double saturated, float amax = 1.0f, float scale = 448.0f) {
  return {name, Fp8Format::e4m3, amax, scale, saturated, 0.0};
}

} // namespace

TEST_CASE("a block that saturates goes on in BF16: told once, logged, and only if it is wanted") {
  for (const bool wanted : {true, false}) {
    CAPTURE(wanted);
    Playground play;
    play.options.max_steps = 60;
    play.options.precision = "fp8";
    play.options.fp8_auto_fallback = wanted;
    Script script;
    script.fp8_stats = [](int64_t step) {
      return std::vector{tensor("h.0/fc/grad", step >= 15 ? 0.032 : 0.0), tensor("lm_head/act", 0.02)};
    };
    ScriptedBackend backend(script);
    const std::string printed = run({play.options, ""}, backend).printed;
    const std::string line =
        "block 0 stays in BF16 from step 41 on: h.0/fc/grad saturated 3.2% of its values three times in a row";
    CHECK(contains(printed, line + "\n") == wanted); // looks at 20, 30 and 40
    CHECK(contains(printed, "the LM head stays in FP8 although lm_head/act saturated 2.0%") == wanted);
    std::ifstream file(play.options.log_dir + "/run/metrics.jsonl");
    const std::string metrics{std::istreambuf_iterator<char>(file), {}};
    CHECK(contains(metrics, "{\"step\":40,\"fp8_fallback_block\":0,") == wanted);
    CHECK(contains(events_of(play.options), line) == wanted);
    if (wanted)
      CHECK(script.left_in_bf16 == std::vector<std::pair<int64_t, int>>{{40, 0}});
    else
      CHECK(script.left_in_bf16.empty());
  }
}

TEST_CASE("an overflow that skips steps is looked at with every skip: BF16 comes before the run gives up") {
  Playground play;
  play.options.precision = "fp8";
  Script script;
  const float infinity = std::numeric_limits<float>::infinity();
  script.fp8_stats = [&](int64_t) {
    return std::vector{tensor("h.0/fc/grad", 0, script.left_in_bf16.empty() ? infinity : 1.0f)};
  };
  script.result = [&](int64_t step) {
    const bool overflow = step > 1 && script.left_in_bf16.empty();
    return StepResult{.loss = 1, .grad_norm = 1, .verdict = overflow ? Verdict::skipped_nonfinite : Verdict::applied};
  };
  ScriptedBackend backend(script);
  const Outcome outcome = run({play.options, ""}, backend);
  CHECK(outcome.code == ExitCode::done);
  CHECK(script.left_in_bf16 == std::vector<std::pair<int64_t, int>>{{4, 0}}); // steps 2, 3 and 4 were skipped
}

TEST_CASE("a block left in BF16 stays there after a resume, and the table says so") {
  Playground play;
  play.options.layers = 2;
  play.options.max_steps = 2;
  play.options.precision = "fp8";
  {
    std::ostringstream printed;
    Console console(printed, false);
    const SingleRank communicator;
    const auto backend = make_cpu_backend(0);
    Trainer trainer({play.options, ""}, choose_device(play.options, {}), *backend, communicator, console);
    trainer.model().leave_in_bf16(1);
    trainer.run();
    CHECK_FALSE(contains(printed.str(), "block 1 not"));
  }
  Options more = play.options;
  more.max_steps = 3;
  const std::string printed = run_cpu(resume(more, "latest", {"max_steps"})).printed;
  CHECK(contains(printed, "block 1 not"));
  CHECK(contains(printed, "FP8 health"));
}

TEST_CASE("FP8 announces its format, and the table its recipe") {
  Playground play;
  play.options.layers = 3;
  play.options.max_steps = 1;
  play.options.precision = "fp8";
  play.options.fp8_bf16_layers = "first,last";
  std::string printed = run_cpu({play.options, ""}).printed;
  CHECK(contains(printed, "FP8 training enabled: hybrid (E4M3 forward, E5M2 backward) (emulated on the CPU)\n"));
  CHECK(contains(printed, "hybrid, delayed scaling"));
  CHECK(contains(printed, "blocks 0, 2 not"));
  play.options.fp8_format = "e4m3";
  CHECK(contains(run_cpu({play.options, ""}).printed, "FP8 training enabled: e4m3 (E4M3 forward and backward)"));
  play.options.fp8_format = "e5m2";
  play.options.fp8_recipe = "current";
  printed = run_cpu({play.options, ""}).printed;
  CHECK(contains(printed, "FP8 training enabled: e5m2 (E5M2 forward and backward, E4M3 weights)"));
  CHECK(contains(printed, "e5m2, current scaling"));
  play.options.precision = "fp32";
  CHECK_FALSE(contains(run_cpu({play.options, ""}).printed, "FP8 training enabled"));
}

TEST_CASE("resuming in another precision is noted, with what becomes of the scales") {
  Playground play;
  play.options.max_steps = 1;
  play.options.precision = "fp32";
  run_cpu({play.options, ""});
  Options next = play.options;
  next.max_steps = 2;
  next.precision = "fp8";
  const std::string to_fp8 = run_cpu(resume(next, "latest", {"max_steps", "precision"})).printed;
  CHECK(
      contains(to_fp8, "note: trained in fp32 so far, fp8 from here on: the FP8 recipe calibrates at the first step"));
  next.max_steps = 3;
  CHECK_FALSE(contains(run_cpu(resume(next, "latest", {"max_steps"})).printed, "from here on"));
  next.max_steps = 4;
  next.precision = "fp32";
  const std::string back = run_cpu(resume(next, "latest", {"max_steps", "precision"})).printed;
  CHECK(contains(back, "note: trained in fp8 so far, fp32 from here on\n"));
}

TEST_CASE("a GPU at its power limit is normal; one that is throttled is told, once") {
  Playground play;
  play.options.max_steps = 30;
  Script script;
  ScriptedBackend backend(script);
  script.device_metrics = {{"gpu/throttled", 0}, {"gpu/power_capped", 1}};
  CHECK_FALSE(contains(run({play.options, ""}, backend).printed, "throttled"));
  script.device_metrics = {{"gpu/throttled", 1}, {"gpu/power_capped", 1}};
  const std::string printed = run({play.options, ""}, backend).printed;
  const size_t told = printed.find("the GPU is throttled");
  REQUIRE(told != std::string::npos);
  CHECK(printed.find("the GPU is throttled", told + 1) == std::string::npos);
}

TEST_CASE("one step of warm-up is one step") {
  Playground play;
  play.options.max_steps = 2;
  CHECK(contains(run_cpu({play.options, ""}).printed, "warm-up 1 step, "));
  play.options.warmup_steps = 2;
  CHECK(contains(run_cpu({play.options, ""}).printed, "warm-up 2 steps, "));
}
