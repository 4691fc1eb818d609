// A loop that holds: divergence, bad data, lost folders and signals in every phase cost no more than they must.
#include <doctest/doctest.h>

#include <csignal>
#include <limits>
#include <new>
#include <utility>

#include "engine/checkpoint/names.h"
#include "engine/checkpoint/search.h"
#include "tests/expect_error.h"
#include "tests/file_size_limit.h"
#include "tests/tokenizer_tables.h"
#include "tests/trainer_testing.h"
#include "tools/prepare_data/write_shard.h"

using namespace gpt2;
using namespace gpt2::testing;
namespace fs = std::filesystem;

namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN();

StepResult applied() { return {.loss = 1, .grad_norm = 1}; }
StepResult skipped() { return {.loss = kNan, .grad_norm = kNan, .verdict = Verdict::skipped_nonfinite}; }

// What a run prints, and the Error that ends it.
struct Failure {
  std::optional<Error> error;
  std::string printed;
};

Failure run_to_error(const RunSettings& settings, Backend& backend) {
  std::ostringstream printed;
  Console console(printed, false);
  RankGroup group;
  Session session(settings, choose_device(backend_options(settings.options), {}), backend, group, console);
  Failure failure;
  failure.error = expect_error([&] { Trainer(session).run(); });
  failure.printed = printed.str();
  return failure;
}

std::vector<int64_t> saved_steps(const Options& options) {
  std::vector<int64_t> steps;
  for (const CheckpointInfo& info : list_checkpoints({options.checkpoint_dir})) steps.push_back(info.step);
  return steps;
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

void write_shard(const Playground& play, const std::vector<size_t>& bad_tokens, size_t sequences) {
  std::vector<uint16_t> tokens = Playground::tokens(sequences * 8 + 1);
  for (const size_t at : bad_tokens) tokens[at] = 60000;
  write_bin_shard(play.options.train_data, tokens);
}

} // namespace

// ---- divergence ----

TEST_CASE("a checkpoint that is due while steps are skipped waits until one is applied") {
  Playground play;
  play.options.checkpoint_freq = 2;
  Script script;
  script.result = [](int64_t step) { return step >= 4 && step <= 6 ? skipped() : applied(); };
  ScriptedBackend backend(script);
  const Outcome outcome = run({play.options}, backend);
  CHECK(outcome.code == ExitCode::done);
  CHECK(saved_steps(play.options) == std::vector<int64_t>{2, 7, 8, 10});
  CHECK(count(outcome.printed, "not saved until a step is applied again") == 1);
  CHECK(contains(outcome.printed, "step 4 | not saved until a step is applied again: the last step was skipped"));
}

TEST_CASE("a checkpoint that the next step does not bear out takes no place, and the one before stays the newest") {
  Playground play;
  play.options.checkpoint_freq = 2, play.options.keep_checkpoints = 1;
  Script script;
  script.result = [](int64_t step) { return step >= 5 ? skipped() : applied(); }; // the update of step 4 ruined it
  ScriptedBackend backend(script);
  const Failure failure = run_to_error({play.options}, backend);
  CHECK(failure.error->code() == ExitCode::numerics);
  CHECK(contains(failure.printed, "step 4 | not saved: the last step was skipped"));
  CHECK(saved_steps(play.options) == std::vector<int64_t>{2});
  CHECK(mentions(*failure.error, "the last good checkpoint is " + play.options.checkpoint_dir + "/run/step_00000002"));
}

TEST_CASE("a best that the next step does not bear out is no longer the best") {
  Playground play;
  play.options.eval_freq = 2, play.options.max_steps = 9;
  Script script;
  script.val_loss = [](int64_t step) { return step == 2 ? 5.0 : step == 4 ? 3.0 : step == 6 ? 4.0 : 4.5; };
  script.result = [](int64_t step) { return step == 5 ? skipped() : applied(); };
  ScriptedBackend backend(script);
  const Outcome outcome = run({play.options}, backend);
  CHECK(contains(outcome.printed, "step 4 | not saved: the last step was skipped"));
  CHECK(outcome.state.best_val_loss == doctest::Approx(4.0));
  CHECK(step_of(follow_marker(play.options.checkpoint_dir + "/run", "best")) == 6);
}

TEST_CASE("weights that the last update ruined are not saved, with evaluation or without") {
  for (const bool signal : {false, true}) {
    Playground play;
    play.options.eval_freq = 0, play.options.checkpoint_freq = 5;
    Script script;
    script.val_loss = [](int64_t step) { return step < 7 ? 1.0 : std::numeric_limits<double>::quiet_NaN(); };
    script.result = [&](int64_t step) {
      if (signal && step == 7) std::raise(SIGTERM);
      return applied();
    };
    ScriptedBackend backend(script);
    if (signal) {
      const Outcome outcome = run({play.options}, backend);
      CHECK(contains(outcome.printed,
                     "stopped at step 7 of 10, not saved: the loss after the last update is not finite"));
    } else {
      CHECK(run_to_error({play.options}, backend).error->code() == ExitCode::numerics);
    }
    CHECK(saved_steps(play.options) == std::vector<int64_t>{5});
  }
}

TEST_CASE("a signal while steps are skipped saves nothing and names the last good checkpoint") {
  Playground play;
  play.options.checkpoint_freq = 2;
  Script script;
  script.result = [](int64_t step) {
    if (step == 5) std::raise(SIGTERM);
    return step >= 4 ? skipped() : applied();
  };
  ScriptedBackend backend(script);
  const Outcome outcome = run({play.options}, backend);
  CHECK(outcome.code == ExitCode::stopped_early);
  CHECK(saved_steps(play.options) == std::vector<int64_t>{2});
  const std::string good = play.options.checkpoint_dir + "/run/step_00000002";
  CHECK(contains(outcome.printed, "stopped at step 5 of 10, not saved: the last 2 steps were skipped"));
  CHECK(contains(outcome.printed, " --resume " + good + "\n"));
}

TEST_CASE("a run whose last step was skipped ends with exit 5 and the command that goes on from the last good one") {
  Playground play;
  play.options.checkpoint_freq = 4;
  Script script;
  script.result = [](int64_t step) { return step > 9 ? skipped() : applied(); };
  ScriptedBackend backend(script);
  const Failure failure = run_to_error({play.options}, backend);
  CHECK(failure.error->code() == ExitCode::numerics);
  const std::string good = play.options.checkpoint_dir + "/run/step_00000008";
  CHECK(mentions(*failure.error, "the last good checkpoint is " + good));
  CHECK(contains(failure.error->hint(), " --resume " + good + " --max_lr "));
  CHECK(saved_steps(play.options) == std::vector<int64_t>{4, 8});
}

TEST_CASE("too many skipped steps name the last good checkpoint; after a resume the one that was resumed") {
  Playground play;
  play.options.checkpoint_freq = 4;
  play.options.max_steps = 5, play.options.max_skipped = 3;
  Script script;
  ScriptedBackend backend(script);
  run({play.options}, backend);
  script.result = [](int64_t) { return skipped(); };
  play.options.max_steps = 100;
  const Failure failure = run_to_error(resume(play.options, "4", {"max_steps"}), backend);
  CHECK(failure.error->code() == ExitCode::numerics);
  CHECK(mentions(*failure.error, "3 steps in a row were skipped, the last at step 7"));
  CHECK(mentions(*failure.error, "the last good checkpoint is " + play.options.checkpoint_dir + "/run/step_00000004"));
}

TEST_CASE("a validation loss that is not finite at the end is exit 5, and nothing is saved") {
  Playground play;
  play.options.eval_freq = 5, play.options.checkpoint_freq = 5;
  Script script;
  script.val_loss = [](int64_t step) { return step < 10 ? 1.0 : std::numeric_limits<double>::quiet_NaN(); };
  ScriptedBackend backend(script);
  const Failure failure = run_to_error({play.options}, backend);
  CHECK(failure.error->code() == ExitCode::numerics);
  CHECK(mentions(*failure.error, "the validation loss is not finite"));
  CHECK(saved_steps(play.options) == std::vector<int64_t>{5});
}

TEST_CASE("steps that were skipped before a checkpoint count after it") {
  Playground play;
  play.options.max_skipped = 5;
  Script script;
  script.result = [](int64_t) { return skipped(); };
  ScriptedBackend backend(script);
  { // as an earlier version of the program saved it: in the middle of skipped steps
    std::ostringstream printed;
    Console console(printed, false);
    RankGroup group;
    Session session({play.options}, {}, backend, group, console);
    for (int i = 0; i < 3; ++i) session.model->step_result(), session.state.step += 1;
    session.checkpoints.save(*session.model, session.state, false, group);
  }
  const Failure failure = run_to_error(resume(play.options, "latest"), backend);
  CHECK(mentions(*failure.error, "5 steps in a row were skipped, the last at step 5"));
}

// ---- data ----

TEST_CASE("one bad token costs its sequence, not the run") {
  Playground play;
  write_shard(play, {100}, 40);
  play.options.max_steps = 12; // a little more than one pass
  const Outcome outcome = run_cpu({play.options});
  CHECK(outcome.code == ExitCode::done);
  CHECK(outcome.state.step == 12);
  CHECK(count(outcome.printed, "train.bin: token 100 is 60000, beyond the vocabulary") == 1);
  CHECK(contains(outcome.printed, "left out because of tokens beyond the vocabulary"));
  const auto events = metrics_of(play.options, "event");
  CHECK(std::any_of(events.begin(), events.end(), [](const auto& event) { return event.at("event") == "bad_data"; }));
}

TEST_CASE("too many bad tokens end the run with exit 3, and what was trained is saved") {
  Playground play;
  std::vector<size_t> bad;
  for (size_t i = 0; i < 40; i += 3) bad.push_back(i * 8 + 4);
  write_shard(play, bad, 40);
  play.options.max_steps = 100;
  const auto backend = make_cpu_backend(0);
  const Failure failure = run_to_error({play.options}, *backend);
  CHECK(failure.error->code() == ExitCode::data);
  CHECK(mentions(*failure.error, "train.bin: token "));
  REQUIRE(saved_steps(play.options).size() == 1);
  CHECK(saved_steps(play.options)[0] > 2);
  CHECK(contains(failure.printed, "was saved because the run ends with an error"));
  CHECK(contains(failure.printed, " --resume " + play.options.checkpoint_dir + "/run\n"));
}

TEST_CASE("a shard that is cut short under a run: the step under way is completed and saved, then exit 3") {
  Playground play;
  play.options.max_steps = 1000;
  Script script;
  script.result = [&](int64_t step) {
    if (step == 7) fs::resize_file(play.options.train_data, 1024);
    return applied();
  };
  ScriptedBackend backend(script);
  const Failure failure = run_to_error({play.options}, backend);
  CHECK(failure.error->code() == ExitCode::data);
  CHECK(mentions(*failure.error, "train.bin"));
  const std::vector<int64_t> saved = saved_steps(play.options);
  REQUIRE(saved.size() == 1);
  CHECK(saved[0] >= 7);
  CHECK(static_cast<size_t>(saved[0]) == loss_lines(failure.printed).size());
}

TEST_CASE("out of memory between two steps: what was trained is saved first") {
  Playground play;
  play.options.precision = PrecisionChoice::fp8;
  play.options.max_steps = 30;
  Script script;
  script.fp8_stats = [](int64_t step) -> std::vector<Fp8TensorStats> {
    if (step == 20) throw std::bad_alloc();
    return {};
  };
  ScriptedBackend backend(script);
  CHECK_THROWS_AS(run({play.options}, backend), std::bad_alloc);
  CHECK(saved_steps(play.options) == std::vector<int64_t>{20});
}

// ---- folders ----

TEST_CASE("logs and locks that are removed under a run are made again; a full disk leaves gaps in the logs") {
  Playground play;
  play.options.checkpoint_freq = 4;
  std::optional<FileSizeLimit> limit;
  Script script;
  script.result = [&](int64_t step) {
    if (step == 2) limit.emplace(1); // nothing can be written
    if (step == 4) limit.reset();
    if (step == 6) remove_folder(play.options.log_dir), fs::remove_all(play.options.checkpoint_dir);
    return applied();
  };
  ScriptedBackend backend(script);
  const Outcome outcome = run({play.options}, backend);
  CHECK(outcome.code == ExitCode::done);
  CHECK(saved_steps(play.options) == std::vector<int64_t>{8, 10});
  for (const char* file : {"/metrics.jsonl", "/events.out.tfevents."}) {
    CHECK(count(outcome.printed, "warning: cannot write " + play.options.log_dir + "/run" + file) == 1);
  }
  CHECK(contains(outcome.printed, "metrics.jsonl is written again; 2 records are missing"));
  CHECK(contains(outcome.printed, "metrics.jsonl was removed while the run was writing to it"));
  CHECK(contains(outcome.printed, play.options.checkpoint_dir + "/run was removed while"));
  std::vector<int64_t> steps;
  for (const auto& line : metrics_of(play.options, "step")) steps.push_back(line.at("step"));
  CHECK(steps == std::vector<int64_t>{9, 10});
}

TEST_CASE("one folder for logs and checkpoints that is removed is told, and the next save makes it again") {
  Playground play;
  play.options.checkpoint_freq = 4;
  play.options.log_dir = play.options.checkpoint_dir;
  Script script;
  script.result = [&](int64_t step) {
    if (step == 6) remove_folder(play.options.checkpoint_dir);
    return applied();
  };
  ScriptedBackend backend(script);
  const Outcome outcome = run({play.options}, backend);
  CHECK(outcome.code == ExitCode::done);
  CHECK(contains(outcome.printed, play.options.checkpoint_dir + "/run was removed while"));
  CHECK(saved_steps(play.options) == std::vector<int64_t>{8, 10});
}

TEST_CASE("a run whose removed folder another run has taken stops, and saves nothing there") {
  Playground play;
  play.options.checkpoint_freq = 4;
  std::optional<FolderLock> other;
  Script script;
  script.result = [&](int64_t step) {
    if (step == 2) {
      remove_folder(play.options.checkpoint_dir);
      other.emplace(play.options.checkpoint_dir + "/run", "--run_name");
    }
    return applied();
  };
  ScriptedBackend backend(script);
  const Failure failure = run_to_error({play.options}, backend);
  CHECK(failure.error->code() == ExitCode::usage);
  CHECK(mentions(*failure.error, "another run is writing to"));
  CHECK(saved_steps(play.options).empty());
}

// ---- signals ----

TEST_CASE("an evaluation that is made up and not finite is not saved") {
  Playground play;
  play.options.eval_freq = play.options.checkpoint_freq = 5;
  Script script;
  script.val_loss = [](int64_t at) {
    if (at == 5) std::raise(SIGTERM);
    return 1.0;
  };
  ScriptedBackend backend(script);
  CHECK(run({play.options}, backend).code == ExitCode::stopped_early);
  script.val_loss = [](int64_t at) { return at == 5 ? std::numeric_limits<double>::quiet_NaN() : 1.0; };
  const Outcome rest = run(resume(play.options, "latest"), backend);
  CHECK(rest.code == ExitCode::done);
  CHECK(contains(rest.printed, "step 5 | not saved until a step is applied again: the validation loss is not finite"));
  CHECK(read_checkpoint(play.options.checkpoint_dir + "/run/step_00000005").last_val_step == -1);
}

TEST_CASE("every signal, during a step, an evaluation, a sample and the end: what is sound is saved, exit 75") {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) {
    CAPTURE(signal);
    for (const std::string phase : {"step", "evaluation", "end"}) {
      CAPTURE(phase);
      Playground play;
      play.options.eval_freq = phase == "end" ? 100 : 5;
      Script script;
      int evaluated = 0;
      script.result = [&](int64_t step) {
        if (phase == "step" && step == 5) std::raise(signal);
        return applied();
      };
      script.val_loss = [&](int64_t) {
        ++evaluated;
        if (phase != "step") std::raise(signal), std::raise(signal); // twice is once, so soon after the first
        return 1.0;
      };
      ScriptedBackend backend(script);
      const Outcome outcome = run({play.options}, backend);
      CHECK(outcome.code == ExitCode::stopped_early);
      const int64_t last = phase == "end" ? 10 : 5;
      CHECK(saved_steps(play.options) == std::vector<int64_t>{last});
      // Rows of the first batch of three, and of one more that tells whether the weights are worth saving.
      CHECK(evaluated == (phase == "step" ? 2 : 4));
      CHECK(contains(outcome.printed, phase == "end" ? "stopped after the last step" : "stopped at step 5 of 10"));
    }
  }
}

TEST_CASE("an evaluation that a signal cut short is made up for when the run goes on") {
  for (const int64_t step : {5, 10}) { // in between, and at the end
    CAPTURE(step);
    Playground play;
    play.options.eval_freq = play.options.checkpoint_freq = 5;
    Script script;
    script.val_loss = [&](int64_t at) {
      if (at == step) std::raise(SIGTERM);
      return 1.0 / static_cast<double>(at);
    };
    ScriptedBackend backend(script);
    CHECK(run({play.options}, backend).code == ExitCode::stopped_early);

    script.val_loss = [](int64_t at) { return 1.0 / static_cast<double>(at); };
    const Outcome rest = run(resume(play.options, "latest"), backend);
    CHECK(rest.code == ExitCode::done);
    CHECK(rest.state.last_val_step == 10);
    std::vector<int64_t> evaluated;
    for (const auto& line : metrics_of(play.options, "validation")) evaluated.push_back(line.at("step"));
    CHECK(evaluated == std::vector<int64_t>{5, 10});
    if (step == 5) CHECK(read_checkpoint(play.options.checkpoint_dir + "/run/step_00000005").last_val_step == 5);
    CHECK(step_of(follow_marker(play.options.checkpoint_dir + "/run", "best")) == 10);
    CHECK(contains(run(resume(play.options, "latest"), backend).printed, "nothing left"));
  }
}

TEST_CASE("a HellaSwag score and a sample that a signal cut short are made up for after a resume") {
  if (!tokenizer()) return;
  for (const std::string cut : {"step", "hellaswag", "sample"}) {
    for (const int64_t step : {5, 10}) { // in between, and at the end
      CAPTURE(cut);
      CAPTURE(step);
      Playground play;
      const std::string task = R"({"ctx": "A dog", "endings": ["runs.", "is."], "label": 0})";
      std::ofstream(play.folder / "tasks.jsonl") << task << "\n" << task << "\n" << task << "\n";
      play.options.hellaswag_data = play.folder / "tasks.jsonl";
      play.options.hellaswag_freq = play.options.sample_freq = 5;
      play.options.sample_tokens = 2;
      bool stopped = false;
      const auto stop_once = [&](const std::string& phase, int64_t at) {
        if (phase == cut && at == step && !std::exchange(stopped, true)) std::raise(SIGTERM);
      };
      Script script;
      script.result = [&](int64_t at) { return stop_once("step", at), applied(); };
      script.val_loss = [&](int64_t at) { return stop_once("hellaswag", at), 1.0; };
      script.before_logits = [&](int64_t at) { stop_once("sample", at); };
      ScriptedBackend backend(script);
      CHECK(run({play.options}, backend).code == ExitCode::stopped_early);
      CHECK(stopped);
      const TrainState state = read_checkpoint(play.options.checkpoint_dir + "/run/" + step_folder_name(step));
      CHECK(state.hellaswag_due == (cut != "sample"));
      CHECK(state.sample_due);

      CHECK(run(resume(play.options, "latest"), backend).code == ExitCode::done);
      for (const char* type : {"hellaswag", "sample"}) {
        std::vector<int64_t> steps;
        for (const auto& line : metrics_of(play.options, type)) steps.push_back(line.at("step"));
        CHECK(steps == std::vector<int64_t>{5, 10});
      }
      CHECK_FALSE(read_checkpoint(play.options.checkpoint_dir + "/run/" + step_folder_name(step)).sample_due);
      CHECK(contains(run(resume(play.options, "latest"), backend).printed, "nothing left"));
    }
  }
}
