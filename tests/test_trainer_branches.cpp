// Which run owns a folder: branches, names, logs and locks.
#include <doctest/doctest.h>

#include "engine/options/parse_options.h"
#include "engine/system/folder_lock.h"
#include "tests/checkpoint_testing.h"
#include "tests/expect_error.h"
#include "tests/trainer_testing.h"
#include "tools/prepare_data/write_shard.h"

using namespace gpt2;
using namespace gpt2::testing;
namespace fs = std::filesystem;

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
                 "note: run has checkpoints after step 2: this run branches off as "
                 "run-from-2; run is unchanged"));
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

TEST_CASE("a run continues in the folder where it was found, also after a copy or a move") {
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
                                         name + "; run is unchanged\n"));
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

TEST_CASE("a foreign checkpoint does not decide where files go") {
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
