// The training loop and what it leaves on disk: resuming, stopping early, the best checkpoint, one writer a folder.
#include <doctest/doctest.h>

#include <sys/inotify.h>
#include <unistd.h>

#include <csignal>
#include <limits>

#include "engine/checkpoint/names.h"
#include "engine/checkpoint/search.h"
#include "engine/options/parse_options.h"
#include "engine/system/folder_lock.h"
#include "tests/checkpoint_testing.h"
#include "tests/expect_error.h"
#include "tests/trainer_testing.h"
#include "tools/ckpt/checkpoint_list.h"
#include "tools/prepare_data/write_shard.h"

using namespace gpt2;
using namespace gpt2::testing;
namespace fs = std::filesystem;

TEST_CASE("10 steps are 5 steps, a checkpoint and 5 more: same lines, same bits") {
  for (const PrecisionChoice precision : {PrecisionChoice::fp32, PrecisionChoice::fp8}) {
    CAPTURE(name_of(precision));
    Playground straight, broken;
    straight.options.precision = broken.options.precision = precision;
    for (Playground* play : {&straight, &broken}) {
      play->options.eval_freq = 3;
      play->options.checkpoint_freq = 5;
      play->options.skip_loss_z = 50;
    }
    const Outcome whole = run_cpu({straight.options});

    // Not a run of 5 steps, whose learning rates would differ: what it wrote at step 5 of the same 10.
    run_cpu({broken.options});
    const RunSettings second_life = resume(broken.options, "5");
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
  run_cpu({play.options});

  Options silent;
  silent.checkpoint_dir = play.options.checkpoint_dir;
  silent.max_steps = 3;
  const RunSettings start = resume(silent, "latest", {"max_steps"});
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
  run_cpu({play.options});
  for (const char* name : {"channels", "seed", "model"}) {
    CAPTURE(name);
    Options other = play.options;
    if (std::string(name) == "channels") other.channels = 16;
    if (std::string(name) == "seed") other.seed = 99;
    if (std::string(name) == "model") other.seq_len = 4;
    const Error error = expect_error([&] { resume(other, "latest", {"channels", "seed", "seq_len"}); });
    CHECK(error.code() == ExitCode::checkpoint);
    CHECK_FALSE(error.hint().empty());
  }
}

TEST_CASE("other data than the checkpoint's is refused with both sides, unless --allow_other_data") {
  Playground play;
  play.options.max_steps = 1;
  run_cpu({play.options});
  play.options.max_steps = 2;
  fs::rename(play.folder / "train.bin", play.folder / "moved.bin"); // the same data under another name
  play.options.train_data = play.folder / "moved.bin";
  CHECK(run_cpu(resume(play.options, "latest", {"max_steps", "train_data"})).state.step == 2);

  std::vector<uint16_t> other = Playground::tokens(40 * 8 + 1);
  other[3] += 1;
  write_bin_shard(play.folder / "moved.bin", other);
  play.options.max_steps = 3;
  const Error error = expect_error([&] { run_cpu(resume(play.options, "latest", {"max_steps"})); });
  CHECK(error.code() == ExitCode::checkpoint);
  CHECK(mentions(error, "step_00000002 was trained on other data: 1 shards, 321 tokens, hash "));
  CHECK(mentions(error, "; --train_data has 1 shards, 321 tokens, hash "));
  CHECK(contains(error.hint(), "--allow_other_data"));
  CHECK(list_run(play.options.checkpoint_dir + "/run").size() == 2);
  play.options.allow_other_data = true;
  const Outcome outcome = run_cpu(resume(play.options, "latest", {"max_steps", "allow_other_data"}));
  CHECK(outcome.state.step == 3);
  CHECK(contains(outcome.printed, "step_00000002 was trained on other data"));
  play.options.max_steps = 4; // from here on that is its data
  play.options.allow_other_data = false;
  CHECK_FALSE(contains(run_cpu(resume(play.options, "latest", {"max_steps"})).printed, "other data"));
}

TEST_CASE("--resume latest without a checkpoint is exit 4 with a hint") {
  Playground play;
  const Error error = expect_error([&] { resume(play.options, "latest"); });
  CHECK(error.code() == ExitCode::checkpoint);
  CHECK_FALSE(error.hint().empty());
}

TEST_CASE("a run that is done already says so and changes nothing") {
  Playground play;
  play.options.max_steps = 2;
  run_cpu({play.options});
  const auto written = fs::last_write_time(play.options.checkpoint_dir + "/run/step_00000002/state.h5");
  const Outcome again = run_cpu(resume(play.options, "latest"));
  CHECK(again.code == ExitCode::done);
  CHECK(contains(again.printed, "nothing left"));
  CHECK(loss_lines(again.printed).empty());
  CHECK(fs::last_write_time(play.options.checkpoint_dir + "/run/step_00000002/state.h5") == written);
}

TEST_CASE("a new run of a name that has checkpoints is refused, and nothing of the old one is touched") {
  Playground play;
  play.options.max_steps = 1;
  run_cpu({play.options});
  const std::string state = play.options.checkpoint_dir + "/run/step_00000001/state.h5";
  const auto written = fs::last_write_time(state);
  const Error refused = expect_error([&] { run_cpu({play.options}); });
  CHECK(refused.code() == ExitCode::usage);
  CHECK(mentions(refused, play.options.checkpoint_dir +
                              "/run holds the checkpoints of an earlier run of this name, up to step 1"));
  CHECK(contains(refused.hint(), " --resume " + play.options.checkpoint_dir + "/run"));
  CHECK(fs::last_write_time(state) == written);
  CHECK_FALSE(fs::exists(play.options.log_dir + "/run/metrics.jsonl.1"));
  CHECK(contains(run_cpu(resume(play.options, "latest")).printed, "nothing left"));
  play.options.run_name = "other";
  CHECK(run_cpu({play.options}).code == ExitCode::done);
  const Error taken = expect_error([&] {
    play.options.run_name = "run"; // a branch of the other run cannot have it either
    run_cpu(resume(play.options, play.options.checkpoint_dir + "/other", {"run_name"}));
  });
  CHECK(taken.code() == ExitCode::usage);
  CHECK(mentions(taken, "/run holds the checkpoints"));
}

TEST_CASE("an earlier step than the newest branches off under a name of its own, and nothing of the run is cut") {
  Playground play;
  play.options.max_steps = 6;
  play.options.checkpoint_freq = 2;
  run_cpu({play.options});
  const std::string dir = play.options.checkpoint_dir;
  const size_t lines = metrics_of(play.options).size();
  const auto written = fs::last_write_time(dir + "/run/step_00000004/state.h5");

  const Outcome outcome = run_cpu(resume(play.options, "2"));
  CHECK(contains(outcome.printed,
                 "note: there are later checkpoints of run than step 2: this run branches off as "
                 "run-from-2, and leaves run as it is"));
  CHECK(outcome.state.run_name == "run-from-2");
  CHECK(fs::exists(dir + "/run-from-2/step_00000006"));
  CHECK(fs::last_write_time(dir + "/run/step_00000004/state.h5") == written);
  CHECK(metrics_of(play.options).size() == lines);
  CHECK(fs::exists(play.options.log_dir + "/run-from-2/metrics.jsonl"));

  const auto name_of_run = [&](const std::string& which, const std::set<std::string>& given = {}) {
    return place_of(resume(play.options, which, given)).run_name;
  };
  CHECK(name_of_run(dir + "/run/2") == "run-from-2-2"); // the first is taken
  CHECK(name_of_run(dir + "/run") == "run");            // the newest goes on in place
  CHECK(name_of_run(dir + "/run-from-2") == "run-from-2");
  play.options.run_name = "run";
  CHECK(name_of_run("4", {"run_name"}) == "run-from-4"); // named is not overwritten either
  play.options.run_name = "mine";
  CHECK(name_of_run(dir + "/run/4", {"run_name"}) == "mine");
  fs::resize_file(dir + "/run/step_00000006/state.h5", 1000); // nothing to keep: the run goes on from before it
  CHECK(name_of_run(dir + "/run/4") == "run");
}

TEST_CASE("a later checkpoint that is not damaged but cannot be used is not replaced: the run branches off") {
  Playground play;
  play.options.max_steps = 4;
  play.options.checkpoint_freq = 2;
  run_cpu({play.options});
  std::ofstream(play.options.checkpoint_dir + "/run/step_00000004/copy.h5") << "another file";
  CHECK(place_of(resume(play.options, "run/2")).run_name == "run-from-2");
}

TEST_CASE("a branch takes no name that a run in a default folder has") {
  Playground play;
  play.options.max_steps = 4;
  play.options.checkpoint_freq = 2;
  run_cpu({play.options});
  const fs::path before = fs::current_path();
  fs::current_path(play.folder.path());
  fs::create_directories("checkpoints_bf16");
  fs::copy(play.options.checkpoint_dir + "/run", "checkpoints_bf16/run-from-2", fs::copy_options::recursive);
  const RunPlace place = place_of(resume(play.options, "run/2"));
  CHECK(place.run_name == "run-from-2-2");
  CHECK_NOTHROW(refuse_taken_name(place));
  fs::current_path(before);
}

TEST_CASE("a run goes on in the folder where it was found, also where that was copied or moved") {
  Playground play;
  play.options.max_steps = 2;
  play.options.checkpoint_freq = 1;
  run_cpu({play.options});
  const std::string dir = play.options.checkpoint_dir;
  fs::copy(dir + "/run", dir + "/copy", fs::copy_options::recursive);
  const RunSettings copy = resume(play.options, "copy");
  CHECK(copy.resumed->checkpoint == dir + "/copy/step_00000002");
  CHECK(place_of(copy).run_name == "copy");

  // One step, copied out of its run: the run's logs are not its own.
  const auto resume_path = [&](const std::string& path) {
    CommandLine line;
    line.options.resume = path;
    line.given = {"resume"};
    return place_of(settled(line));
  };
  const std::string outside = play.folder / "outside";
  fs::create_directories(outside);
  fs::copy(dir + "/run/step_00000001", outside + "/step_00000001", fs::copy_options::recursive);
  CHECK(resume_path(outside + "/step_00000001").run_name == "run-from-1");
  CHECK(resume_path(outside + "/step_00000001").checkpoint_dir == outside);
  fs::rename(dir, play.folder / "moved");
  CHECK(resume_path(play.folder / "moved/run").run_name == "run");
  CHECK(resume_path(play.folder / "moved/run").checkpoint_dir == play.folder / "moved");
}

TEST_CASE("--resume means the run that saved last, or the one that --run_name names") {
  Playground play;
  play.options.checkpoint_freq = 1;
  play.options.max_steps = 2;
  run_cpu({play.options});
  play.options.run_name = "other";
  play.options.max_steps = 3;
  run_cpu({play.options});
  const std::string dir = play.options.checkpoint_dir;
  CHECK(resume(play.options, "latest").resumed->checkpoint == dir + "/other/step_00000003");
  CHECK(resume(play.options, "1").resumed->checkpoint == dir + "/other/step_00000001");
  play.options.run_name = "run";
  CHECK(resume(play.options, "latest", {"run_name"}).resumed->checkpoint == dir + "/run/step_00000002");
  CHECK(resume(play.options, "1", {"run_name"}).resumed->checkpoint == dir + "/run/step_00000001");
  play.options.max_steps = 4;
  const Outcome outcome = run_cpu(resume(play.options, dir + "/run", {"max_steps"}));
  CHECK(outcome.state.run_name == "run");
  CHECK(fs::exists(dir + "/run/step_00000004"));
  CHECK_FALSE(fs::exists(dir + "/other/step_00000004"));
  play.options.run_name = "branch"; // of another run's checkpoint
  run_cpu(resume(play.options, dir + "/other", {"max_steps", "run_name"}));
  CHECK(fs::exists(dir + "/branch/step_00000004"));
  CHECK(expect_error([&] { play.options.run_name = "nobody", resume(play.options, "latest", {"run_name"}); }).code() ==
        ExitCode::checkpoint);
}

TEST_CASE("a checkpoint that stands in --checkpoint_dir itself, as they used to, is listed and resumed") {
  Playground play;
  play.options.max_steps = 2;
  run_cpu({play.options});
  const std::string dir = play.options.checkpoint_dir;
  fs::rename(dir + "/run/step_00000002", dir + "/step_00000002");
  remove_folder(dir + "/run");
  std::ofstream(dir + "/latest") << "step_00000002\n";
  CHECK(contains(describe_checkpoints({dir}), "without a run folder | 1x8\nstep        2 |"));
  play.options.max_steps = 3;
  const Outcome outcome = run_cpu(resume(play.options, "latest", {"max_steps"}));
  CHECK(loss_lines(outcome.printed).size() == 1);
  CHECK(fs::exists(dir + "/run/step_00000003"));
  CHECK(resume(play.options, "latest").resumed->checkpoint == dir + "/run/step_00000003");
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
    const Outcome outcome = run({play.options}, backend);
    CHECK(outcome.code == ExitCode::stopped_early);
    CHECK(outcome.state.step == 3);
    CHECK(contains(outcome.printed, " --resume " + play.options.checkpoint_dir + "/run\n"));

    script.result = [](int64_t) { return StepResult{.loss = 1, .grad_norm = 1}; };
    const Outcome rest = run(resume(play.options, "latest"), backend);
    CHECK(rest.code == ExitCode::done);
    CHECK(loss_lines(rest.printed).size() == 7);
  }
}

TEST_CASE("a checkpoint that cannot be written is a warning; the next one is tried, and only the last must be there") {
  Playground play;
  play.options.checkpoint_freq = 2;
  const std::string folder = play.options.checkpoint_dir + "/run";
  Script script;
  script.result = [&](int64_t step) {
    if (step == 3) { // the one of step 4 meets a file where the folder was
      remove_folder(folder);
      std::ofstream(folder) << "in the way";
    }
    if (step == 7) std::filesystem::remove(folder);
    return StepResult{.loss = 1, .grad_norm = 1};
  };
  ScriptedBackend backend(script);
  const Outcome outcome = run({play.options}, backend);
  CHECK(outcome.code == ExitCode::done);
  for (const char* step : {"step 4 | ", "step 6 | "})
    CHECK(contains(outcome.printed, step + std::string("not saved, training continues: cannot create folder ")));
  CHECK(contains(outcome.printed, "step 8 | saved "));
  CHECK(contains(outcome.printed, "step 10 | saved "));
  int failed = 0;
  for (const auto& event : metrics_of(play.options, "event")) failed += event.at("event") == "save_failed";
  CHECK(failed >= 2); // that of step 2 may still be under way
}

TEST_CASE("a last checkpoint that cannot be written, or with --strict_saves any, is exit code 8") {
  for (const bool strict : {false, true}) {
    Playground play;
    play.options.checkpoint_freq = 2;
    play.options.strict_saves = strict;
    int64_t steps = 0;
    Script script;
    script.result = [&](int64_t step) {
      if (step == 3) {
        remove_folder(play.options.checkpoint_dir + "/run");
        std::ofstream(play.options.checkpoint_dir + "/run") << "in the way";
      }
      steps = step;
      return StepResult{.loss = 1, .grad_norm = 1};
    };
    ScriptedBackend backend(script);
    const Error error = expect_error([&] { run({play.options}, backend); });
    CHECK(error.code() == ExitCode::disk);
    CHECK((steps < 10) == strict);
  }
}

TEST_CASE("an error of the loop still ends the save that was under way") {
  Playground play;
  play.options.checkpoint_freq = 2;
  Script script;
  script.result = [](int64_t step) {
    if (step == 3) throw Error(ExitCode::device, "the GPU fell off the bus");
    return StepResult{.loss = 1, .grad_norm = 1};
  };
  ScriptedBackend backend(script);
  CHECK(expect_error([&] { run({play.options}, backend); }).code() == ExitCode::device);
  CHECK(find_checkpoint({play.options.checkpoint_dir}, "run", "latest") ==
        play.options.checkpoint_dir + "/run/step_00000002");
}

TEST_CASE("a new best is saved and marked; the one before goes unless it was due") {
  Playground play;
  play.options.max_steps = 6;
  play.options.eval_freq = 1;
  play.options.checkpoint_freq = 2;
  Script script;
  script.val_loss = [](int64_t step) { return step <= 4 ? 10.0 - static_cast<double>(step) : 7.0; }; // best at 4
  ScriptedBackend backend(script);
  const Outcome outcome = run({play.options}, backend);
  CHECK(outcome.state.best_val_loss == doctest::Approx(6.0));
  CHECK(outcome.state.last_val_loss == doctest::Approx(7.0));
  std::vector<int64_t> steps, best, latest;
  for (const CheckpointInfo& info : list_checkpoints({play.options.checkpoint_dir})) {
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
  const Outcome outcome = run({play.options}, backend);
  CHECK(outcome.state.best_val_loss == doctest::Approx(5.0));
  CHECK_FALSE(contains(outcome.printed, "step 5 | saved"));
  const auto saved = list_checkpoints({play.options.checkpoint_dir});
  REQUIRE(saved.size() == 2);
  CHECK(saved[0].step == 4);
  CHECK(saved[0].best);
  CHECK(saved[1].step == 6);
  CHECK_FALSE(resume(play.options, "latest").options.save_best); // a resumed run remembers
}

TEST_CASE("the last step is saved once, and marked if it is the best, with --save_best and without") {
  for (const bool save_best : {true, false}) {
    Playground play;
    play.options.max_steps = 4, play.options.eval_freq = 2, play.options.checkpoint_freq = 2;
    play.options.save_best = save_best;
    Script script;
    script.val_loss = [](int64_t step) { return 10.0 - static_cast<double>(step); };
    ScriptedBackend backend(script);
    const Outcome outcome = run({play.options}, backend);
    CHECK(contains(outcome.printed, "/run/step_00000004 (best)"));
    CHECK_FALSE(contains(outcome.printed, "/run/step_00000004\n"));
  }
}

TEST_CASE("a marker that cannot be written is a warning: the checkpoint is there") {
  Playground play;
  play.options.checkpoint_freq = 4;
  std::filesystem::create_directories(play.options.checkpoint_dir + "/latest");
  Script script;
  ScriptedBackend backend(script);
  const Outcome outcome = run({play.options}, backend);
  CHECK(outcome.code == ExitCode::done);
  CHECK(contains(outcome.printed, "step 10 | saved "));
  CHECK(contains(outcome.printed, "warning: cannot replace "));
}

TEST_CASE("--list_checkpoints shows a loss of an earlier step with that step, and none where none was measured") {
  Playground play;
  play.options.max_steps = 7;
  play.options.eval_freq = 4;
  play.options.checkpoint_freq = 3;
  Script script;
  script.val_loss = [](int64_t step) { return 3.0 + static_cast<double>(step); };
  ScriptedBackend backend(script);
  run({play.options}, backend);
  std::istringstream listed(describe_checkpoints({play.options.checkpoint_dir}));
  for (const char* beginning : {"run run | 1x8", "step        3 | val loss         -           | fp32 |",
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
  RankGroup group;
  play.options.max_steps = 2;
  {
    Session first({play.options}, choose_device(backend_options(play.options), {}), backend, group, console);
    const auto refused = [&](const Options& options) {
      const Error error = expect_error(
          [&] { Session(RunSettings{options}, choose_device(backend_options(options), {}), backend, group, console); });
      CHECK(error.code() == ExitCode::usage);
      return error;
    };
    const Error same_name = refused(play.options);
    CHECK(mentions(same_name, "runs/run"));
    CHECK(contains(same_name.hint(), "--run_name"));
    CHECK_FALSE(fs::exists(play.options.log_dir + "/run/metrics.jsonl.1")); // the first one's is not set aside
    Options other = play.options;
    other.log_dir += "_other"; // but the same checkpoints
    const Error same_checkpoints = refused(other);
    CHECK(mentions(same_checkpoints, "checkpoints/run"));
    CHECK(contains(same_checkpoints.hint(), "--run_name"));
    CHECK_FALSE(fs::exists(other.log_dir + "/run"));
    other.run_name = "other"; // another run beside it
    CHECK(run({other}, backend).code == ExitCode::done);
    other.run_name = "third", other.log_dir = other.checkpoint_dir; // one folder for both is one lock
    CHECK(run({other}, backend).code == ExitCode::done);
    CHECK(Trainer(first).run() == ExitCode::done);
  }
  CHECK_FALSE(fs::exists(play.options.log_dir + "/run/.lock"));
  play.options.max_steps = 3;
  CHECK(run(resume(play.options, "latest", {"max_steps"}), backend).state.step == 3);
}

TEST_CASE("the newest of a run that is being trained is refused, also when a later checkpoint appears meanwhile") {
  Playground play;
  play.options.max_steps = 2;
  run_cpu({play.options});
  const RunSettings newest = resume(play.options, "latest"), step = resume(play.options, "2");
  play.options.max_steps = 4;
  run_cpu(resume(play.options, "latest", {"max_steps"}));
  const std::string folder = play.options.checkpoint_dir + "/run";
  {
    const FolderLock writer(folder, "--run_name");
    const Error refused = expect_error([&] { place_of(newest); });
    CHECK(refused.code() == ExitCode::usage);
    CHECK(mentions(refused, "another run is writing to " + folder));
    CHECK(place_of(step).run_name == "run-from-2"); // a certain step may branch off at any time
  }
  CHECK(place_of(newest).run_name == "run-from-2");
}

TEST_CASE("a validation loss that is not finite is never the best") {
  Playground play;
  play.options.max_steps = 3;
  play.options.eval_freq = 1;
  Script script;
  script.val_loss = [](int64_t step) { return step == 2 ? std::numeric_limits<double>::quiet_NaN() : 4.0 + step; };
  ScriptedBackend backend(script);
  CHECK(run({play.options}, backend).state.best_val_loss == doctest::Approx(5.0));
}

TEST_CASE("the best loss on other validation data does not count any more") {
  Playground play;
  play.options.max_steps = 3, play.options.eval_freq = 1, play.options.keep_checkpoints = 0;
  Script script;
  script.val_loss = [](int64_t step) { return static_cast<double>(step); };
  ScriptedBackend backend(script);
  CHECK(run({play.options}, backend).state.best_val_loss == doctest::Approx(1.0));
  play.options.max_steps = 4;
  const Outcome same = run(resume(play.options, "latest", {"max_steps"}), backend);
  CHECK_FALSE(contains(same.printed, "no longer counts"));
  CHECK(same.state.best_val_loss == doctest::Approx(1.0));
  play.options.max_steps = 5, play.options.eval_sequences = 2;
  const Outcome other = run(resume(play.options, "latest", {"max_steps", "eval_sequences"}), backend);
  CHECK(contains(other.printed, "the best loss so far, 1.0000, no longer counts"));
  CHECK(other.state.best_val_loss == doctest::Approx(5.0));
  CHECK(fs::exists(play.options.checkpoint_dir + "/run/step_00000001")); // the best on the data before
}

TEST_CASE("a resume in another precision is a branch: nothing is cut out of the log of the run it comes from") {
  Playground play;
  play.options.max_steps = 2;
  play.options.precision = PrecisionChoice::fp32;
  run_cpu({play.options});
  const std::string dir = play.options.checkpoint_dir;
  Options in_fp8 = play.options;
  in_fp8.max_steps = 4;
  in_fp8.precision = PrecisionChoice::fp8;
  in_fp8.checkpoint_dir = play.folder / "checkpoints_fp8"; // elsewhere or not, the log would be the same
  for (const std::string& target : {in_fp8.checkpoint_dir, dir}) {
    CommandLine line{in_fp8, {"resume", "precision", "max_steps", "checkpoint_dir"}};
    line.options.resume = dir + "/run";
    line.options.checkpoint_dir = target;
    const Outcome switched = run_cpu(settled(line));
    const std::string name = target == dir ? "run-fp8-from-2-2" : "run-fp8-from-2"; // logs share a name
    CHECK(contains(switched.printed, "note: run was trained in fp32, and this is fp8: this run branches off as " +
                                         name + ", and leaves run as it is\n"));
    CHECK(contains(switched.printed,
                   "note: trained in fp32 so far, fp8 from here on: the FP8 recipe calibrates at the first step"));
    CHECK(switched.state.run_name == name);
    CHECK(fs::exists(target + "/" + name + "/step_00000004"));
    CHECK(fs::exists(play.options.log_dir + "/" + name + "/metrics.jsonl"));
    CHECK(metrics_of(play.options, "step").size() == 2);
    in_fp8.run_name = name;
  }
  // Both continue, each with its own log.
  play.options.max_steps = 3;
  const Outcome baseline = run_cpu(resume(play.options, "run", {"max_steps"}));
  CHECK(baseline.state.run_name == "run");
  CHECK_FALSE(contains(baseline.printed, "from here on"));
  CHECK(metrics_of(play.options, "step").size() == 3);
  in_fp8.max_steps = 5;
  in_fp8.checkpoint_dir = dir;
  const Outcome fp8 = run_cpu(resume(in_fp8, in_fp8.run_name, {"max_steps"}));
  CHECK(fp8.state.run_name == in_fp8.run_name);
  CHECK_FALSE(contains(fp8.printed, "from here on"));
}

TEST_CASE("a log that another folder of checkpoints continues is left to that run") {
  Playground play;
  play.options.max_steps = 2;
  run_cpu({play.options});
  Options elsewhere = play.options;
  elsewhere.max_steps = 4;
  elsewhere.checkpoint_dir = play.folder / "elsewhere";
  fs::create_directories(elsewhere.checkpoint_dir);
  fs::copy(play.options.checkpoint_dir + "/run", elsewhere.checkpoint_dir + "/run", fs::copy_options::recursive);
  const Outcome copy = run_cpu(resume(elsewhere, "run", {"max_steps"})); // of the same name
  CHECK(contains(copy.printed, "the logs of run continue elsewhere after step 2: this run branches off as run-from-2"));
  CHECK(metrics_of(play.options, "step").size() == 2);
  elsewhere.checkpoint_dir = play.folder / "third"; // not where it was found
  CommandLine line{elsewhere, {"resume", "max_steps", "checkpoint_dir"}};
  line.options.resume = play.options.checkpoint_dir + "/run";
  CHECK(contains(run_cpu(settled(line)).printed, "note: the checkpoints of run are in " + play.options.checkpoint_dir +
                                                     ": this run branches off as run-from-2-2"));
  CHECK(metrics_of(play.options, "step").size() == 2);
}

TEST_CASE("a checkpoint of somebody else does not say where files go") {
  Playground play;
  TemporaryFolder inbox;
  StateOnlyModel model(1);
  const auto receive = [&](const std::string& run_name, const std::string& more) {
    Options theirs = play.options;
    theirs.log_dir = play.folder / "their_logs";
    theirs.timeline = theirs.plan_cache = play.folder / "thesis.txt";
    TrainState state = state_of(10);
    state.seed = theirs.seed;
    state.run_name = run_name;
    state.options_toml = to_toml(theirs) + more;
    remove_folder(inbox / "sent");
    Run(inbox.path(), "sent").save(model, state, false);
    CommandLine line{.options = {}, .given = {"resume"}};
    line.options.resume = inbox / "sent/step_00000010";
    return settled(line);
  };
  const RunSettings settings = receive("theirs", "");
  CHECK(settings.options.log_dir == "runs"); // nothing of that run is in their_logs
  CHECK(settings.options.timeline.empty());
  CHECK(settings.options.plan_cache == Options{}.plan_cache);
  for (const std::string name : {"../../escaped", "/tmp/escaped", "latest", ""}) {
    const Error error = expect_error([&] { receive(name, ""); });
    CHECK(error.code() == ExitCode::checkpoint);
    CHECK(mentions(error, "/sent/step_00000010 holds an invalid run name"));
  }
  const Error unknown = expect_error([&] { receive("theirs", "no_such_key = 1\n"); });
  CHECK(mentions(unknown, "options in " + inbox / "sent/step_00000010/state.h5, line "));
  CHECK(unknown.code() == ExitCode::checkpoint);
  CHECK(mentions(unknown, "unknown key no_such_key"));
}

TEST_CASE("a stored --log_dir is followed where the log of the run is") {
  Playground play;
  play.options.max_steps = 1;
  run_cpu({play.options});
  Options silent;
  silent.checkpoint_dir = play.options.checkpoint_dir;
  CHECK(resume(silent, "run").options.log_dir == play.options.log_dir);
  fs::rename(play.options.log_dir + "/run/metrics.jsonl", play.folder / "gone");
  CHECK(resume(silent, "run").options.log_dir == "runs");
  std::ofstream(play.options.log_dir + "/run/metrics.jsonl")
      << "{\"type\":\"run\",\"step\":0,\"options\":{\"run_name\":\"another\"}}\n";
  CHECK(resume(silent, "run").options.log_dir == "runs");
}

TEST_CASE("a resume with nothing left to do changes no file") {
  Playground play;
  play.options.max_steps = 3;
  run_cpu({play.options});
  const auto contents = [&] {
    std::string all;
    for (const auto& entry : fs::recursive_directory_iterator(play.folder.path())) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      all += entry.path().string() + "\n" + std::string(std::istreambuf_iterator<char>(file), {});
    }
    return all;
  };
  const std::string before = contents();
  play.options.max_steps = 2;
  const Outcome outcome = run_cpu(resume(play.options, "latest", {"max_steps"}));
  CHECK(contains(outcome.printed, "nothing left"));
  CHECK(contents() == before);
}

TEST_CASE("by default the newest checkpoints, the best and some milestones stay, and one line says so") {
  Playground play;
  play.options.max_steps = 30;
  play.options.checkpoint_freq = 1;
  play.options.eval_freq = 1;
  Script script;
  script.val_loss = [](int64_t step) { return step == 4 ? 1.0 : 2.0; };
  ScriptedBackend backend(script);
  const auto steps = [&] {
    std::vector<int64_t> kept;
    for (const std::string& path : checkpoints_in(play.options.checkpoint_dir + "/run")) kept.push_back(step_of(path));
    return kept;
  };
  const Outcome outcome = run({play.options}, backend);
  CHECK(steps() == std::vector<int64_t>{4, 6, 12, 18, 24, 28, 29, 30});
  CHECK(contains(outcome.printed, "/run, every 1 step; kept: the newest 3, the best and every 6 steps"));
  play.options.max_steps = 60; // the milestones follow the new length
  const Outcome longer = run(resume(play.options, "latest", {"max_steps"}), backend);
  CHECK(steps() == std::vector<int64_t>{4, 12, 24, 36, 48, 58, 59, 60});
  CHECK(contains(longer.printed, "kept: the newest 3, the best and every 12 steps"));
  remove_folder(play.options.checkpoint_dir);
  play.options.max_steps = 30, play.options.keep_checkpoints = 0;
  const std::string all = run({play.options}, backend).printed;
  CHECK(contains(all, "; all are kept"));
  CHECK(steps().size() == 30);
}

TEST_CASE("a resume opens no other checkpoint of its run") {
  Playground play;
  play.options.max_steps = 8;
  play.options.checkpoint_freq = 1;
  play.options.keep_checkpoints = 0;
  run_cpu({play.options});
  play.options.max_steps = 9;
  const int watch = inotify_init1(IN_NONBLOCK);
  for (int64_t step = 1; step < 8; ++step) {
    const std::string folder = play.options.checkpoint_dir + "/run/" + step_folder_name(step);
    REQUIRE(inotify_add_watch(watch, folder.c_str(), IN_OPEN) >= 0);
  }
  const RunSettings settings = resume(play.options, "latest", {"max_steps"});
  CHECK(place_of(settings).continues);
  std::ostringstream printed;
  Console console(printed, false);
  RankGroup group;
  const auto backend = make_cpu_backend(1);
  const Session session(settings, choose_device(backend_options(settings.options), {}), *backend, group, console);
  CHECK(session.state.step == 8);
  char event[1 << 12];
  CHECK(read(watch, event, sizeof event) == -1); // nothing has happened to them
  close(watch);
}
