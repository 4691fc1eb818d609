// Resuming a run: same bits as without a stop, what a resume keeps, refuses and leaves alone.
#include <doctest/doctest.h>

#include <sys/inotify.h>
#include <unistd.h>

#include <csignal>

#include "engine/checkpoint/names.h"
#include "engine/checkpoint/search.h"
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

TEST_CASE("a resumed run keeps shape, seed and name without flags") {
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
  CHECK(mentions(error, "; this run has 1 shards, 321 tokens, hash "));
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

TEST_CASE("a checkpoint directly in --checkpoint_dir, as older versions saved it, is listed and resumed") {
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
