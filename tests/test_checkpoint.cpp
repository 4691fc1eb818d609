// One checkpoint and its writer: bits, damage, full disks, leftovers.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>

#include "engine/checkpoint/reader.h"
#include "engine/hdf5/state_writer.h"
#include "tests/checkpoint_testing.h"
#include "tests/expect_error.h"
#include "tests/file_size_limit.h"

using namespace gpt2;
using namespace gpt2::testing;
namespace fs = std::filesystem;

namespace {

bool hint_mentions(const Error& error, const std::string& words) {
  return error.hint().find(words) != std::string::npos;
}

// The id of a process that has ended.
pid_t dead_process() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return child;
}

void make_old(const std::string& path) {
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    fs::last_write_time(entry, fs::file_time_type::clock::now() - std::chrono::hours(1));
  }
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
}

} // namespace

// ---- saves that training does not wait for ----

TEST_CASE("a save that was begun holds the state of that moment, and appears when it is ended") {
  TemporaryFolder root;
  RankGroup alone;
  CheckpointFolder folder(root.path(), "run");
  StateOnlyModel model(1);
  folder.begin(model, state_of(10), true, alone);
  CHECK(folder.saving());
  StateOnlyModel trained(2);
  model = trained; // while the thread writes
  std::optional<SaveResult> result;
  while (!result) {
    CHECK_FALSE(fs::exists(root / "run/latest"));
    result = folder.end_if_written(alone);
  }
  CHECK_FALSE(folder.saving());
  CHECK_FALSE(result->error);
  CHECK(result->step == 10);
  CHECK(result->is_best);
  CHECK(result->path == root / "run/step_00000010");
  CHECK(holds(result->path, 1));
  CHECK(names_in(root / "run") == std::vector<std::string>{"best", "latest", "step_00000010"});
  CHECK_FALSE(folder.end_if_written(alone)); // there is none under way
}

TEST_CASE("a save that cannot begin, or cannot be written, says so when it is ended; the next one may succeed") {
  TemporaryFolder root;
  RankGroup alone;
  CheckpointFolder folder(root.path(), "run");
  StateOnlyModel model(1);
  std::ofstream(root / "run") << "a file where the folder should be";
  folder.begin(model, state_of(10), false, alone);
  const SaveResult no_folder = folder.end(alone);
  REQUIRE(no_folder.error);
  CHECK(no_folder.error->code() == ExitCode::disk);
  fs::remove(root / "run");

  folder.save(model, state_of(10), false, alone);
  {
    const FileSizeLimit limit(4096);
    folder.begin(model, state_of(20), false, alone);
    const SaveResult too_large = folder.end(alone);
    REQUIRE(too_large.error);
    CHECK(mentions(*too_large.error, "File too large"));
  }
  CHECK(names_in(root / "run") == std::vector<std::string>{"latest", "step_00000010"});
  folder.save(model, state_of(20), false, alone);
  CHECK(holds(find_checkpoint({root.path()}, "run", "latest"), 1));
}

TEST_CASE("a save that nobody ends leaves nothing behind") {
  TemporaryFolder root;
  RankGroup alone;
  StateOnlyModel model(1);
  CheckpointFolder(root.path(), "run").begin(model, state_of(10), false, alone);
  CHECK(names_in(root / "run").empty());
}

TEST_CASE("a checkpoint comes back bit for bit") {
  TemporaryFolder root;
  StateOnlyModel model(1), other(2);
  REQUIRE_FALSE(model.same_bits(other));
  const std::string path = Run(root.path()).save(model, state_of(1000, 3.5), false);
  CHECK(path == root / "test-run/step_00001000");
  CHECK(names_in(root.path()) == std::vector<std::string>{"latest", "test-run"});
  CHECK(names_in(root / "test-run") == std::vector<std::string>{"latest", "step_00001000"});
  CHECK(names_in(path) == std::vector<std::string>{"manifest.json", "options.toml", "state.h5"});
  CHECK(read_file(path + "/options.toml") == state_of(1000).options_toml);

  const TrainState state = load_checkpoint(path, other);
  CHECK(model.same_bits(other));
  const TrainState expected = state_of(1000, 3.5);
  CHECK(state.step == expected.step);
  CHECK(state.loader_position == expected.loader_position);
  CHECK(state.seed == expected.seed);
  CHECK(state.best_val_loss == expected.best_val_loss);
  CHECK(state.last_val_loss == 3.5);
  CHECK(state.last_val_step == 993);
  CHECK(state.tokens == expected.tokens);
  CHECK(state.run_name == expected.run_name);
  CHECK(state.options_toml == expected.options_toml);
  CHECK(state.precision == expected.precision);
  CHECK(read_checkpoint(path).step == 1000);
}

TEST_CASE("a validation loss keeps the step it was measured at, with and without a summary in the manifest") {
  TemporaryFolder root;
  Run folder(root.path());
  StateOnlyModel model(1);
  const std::string path = folder.save(model, state_of(10, 4.0), false);
  CHECK(folder.list()[0].val_step == 3);
  seal(path, 10);
  CHECK(folder.list()[0].val_loss == 4.0);
  CHECK(folder.list()[0].val_step == 3);
}

TEST_CASE("saving the same step again replaces it") {
  TemporaryFolder root;
  Run folder(root.path());
  StateOnlyModel first(1), second(2);
  const std::string path = folder.save(first, state_of(10), true);
  CHECK(folder.save(second, state_of(10), false) == path);
  CHECK(holds(path, 2));
  CHECK(names_in(folder.path()) == std::vector<std::string>{"best", "latest", "step_00000010"});
}

TEST_CASE("leftovers of dead writers are ignored, and cleaned by the next save") {
  TemporaryFolder root;
  Run folder(root.path());
  StateOnlyModel model(1);
  folder.save(model, state_of(10), false);
  const std::string dead = std::to_string(dead_process());
  const std::string stale = root / ("test-run/step_00000020.tmp-" + dead),
                    fresh = root / ("test-run/step_00000030.tmp-" + dead);
  const std::string ours = root / ("test-run/step_00000040.tmp-" + std::to_string(::getpid()));
  const std::string alive = root / ("test-run/step_00000050.tmp-" + std::to_string(::getppid()));
  const std::string foreign = root / "test-run/step_00000060.tmp-notes";
  for (const std::string& leftover : {stale, fresh, ours, alive, foreign}) {
    fs::copy(root / "test-run/step_00000010", leftover);
    if (leftover != fresh) make_old(leftover);
  }
  CHECK(folder.list().size() == 1);
  CHECK(expect_error([&] { folder.find("20"); }).code() == ExitCode::checkpoint);
  folder.save(model, state_of(70), false);
  CHECK_FALSE(fs::exists(stale));
  CHECK_FALSE(fs::exists(ours));
  CHECK(fs::exists(fresh)); // perhaps a writer on another host
  CHECK(fs::exists(alive));
  CHECK(fs::exists(foreign));
}

TEST_CASE("a checkpoint that stepped aside for one that never came is brought back") {
  TemporaryFolder root;
  Run folder(root.path());
  StateOnlyModel first(1), second(2);
  folder.save(first, state_of(10), false);
  folder.save(second, state_of(20), false);
  const std::string suffix = ".old-" + std::to_string(dead_process());
  fs::rename(root / "test-run/step_00000010", root / ("test-run/step_00000010" + suffix));
  fs::copy(root / "test-run/step_00000020", root / ("test-run/step_00000020" + suffix)); // here the new one did come
  for (const char* step : {"step_00000010", "step_00000020"}) make_old(root / ("test-run/" + (step + suffix)));
  folder.save(second, state_of(30), false);
  CHECK(holds(root / "test-run/step_00000010", 1));
  CHECK(names_in(folder.path()) ==
        std::vector<std::string>{"latest", "step_00000010", "step_00000020", "step_00000030"});
}

TEST_CASE("a writer killed at any moment leaves a latest that loads") {
  TemporaryFolder root;
  Run folder(root.path());
  StateOnlyModel model(1);
  folder.save(model, state_of(1), true);
  for (int kill_number = 0; kill_number < 12; ++kill_number) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int64_t i = 0;; ++i) folder.save(model, state_of(1 + i % 3), i % 2 == 0); // new steps, and old ones again
    }
    ::usleep(static_cast<useconds_t>(Rng(11).uniform(static_cast<uint64_t>(kill_number)) * 80'000));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    CHECK(holds(folder.find("latest"), 1));
    CHECK(holds(folder.find("best"), 1));
    for (const CheckpointInfo& info : folder.list()) CHECK(holds(info.path, 1));
  }
}

TEST_CASE("a full disk is an Error(disk); the old checkpoints stay and the next save works") {
  TemporaryFolder root;
  Run folder(root.path());
  StateOnlyModel first(1), second(2);
  const std::string path = folder.save(first, state_of(10), true);
  const rlim_t size = fs::file_size(path + "/state.h5");
  // It fails in the first bytes, in the tensors, and as late as in closing the file.
  for (const rlim_t bytes : {rlim_t{0}, rlim_t{100}, rlim_t{2500}, size / 2, size - 5000, size - 2000, size - 1}) {
    CAPTURE(bytes);
    FileSizeLimit limit(bytes);
    for (int step : {10, 20}) {
      const Error error = expect_error([&] { folder.save(second, state_of(step), true); });
      CHECK(error.code() == ExitCode::disk);
      CHECK(mentions(error, root.path()));
      CHECK(mentions(error, "File too large"));
      CHECK_FALSE(error.hint().empty());
    }
  }
  CHECK(names_in(folder.path()) == std::vector<std::string>{"best", "latest", "step_00000010"});
  CHECK(holds(path, 1));
  folder.save(second, state_of(20), false);
  CHECK(holds(folder.find("latest"), 2));
}

TEST_CASE("a disk without room for the checkpoint is refused before anything is written") {
  TemporaryFolder root;
  StateOnlyModel huge(1, {.name = "huge", .layers = 1000, .heads = 64, .channels = 65536, .seq_len = 8});
  const Error error = expect_error([&] { Run(root.path()).save(huge, state_of(10), false); });
  CHECK(error.code() == ExitCode::disk);
  CHECK(mentions(error, "free"));
  CHECK(hint_mentions(error, "--checkpoint_dir"));
  CHECK(names_in(root / "test-run").empty());
}

TEST_CASE("a model that fails while saving leaves nothing behind") {
  TemporaryFolder root;
  StateOnlyModel model(1);
  model.fail_while_saving = true;
  CHECK(expect_error([&] { Run(root.path()).save(model, state_of(1), false); }).code() == ExitCode::device);
  CHECK(names_in(root / "test-run").empty());
}

TEST_CASE("a folder that cannot be written is found out at the start") {
  TemporaryFolder root;
  CheckpointFolder(root / "a", "b").check_writable(1000);
  CHECK(names_in(root / "a/b").empty());
  const Error too_large = expect_error([&] { CheckpointFolder(root / "a", "b").check_writable(int64_t{1} << 50); });
  CHECK(too_large.code() == ExitCode::disk);
  CHECK(mentions(too_large, "needs 13510.8 TB, and "));
  std::ofstream(root / "file") << "in the way";
  for (const std::string& path : {root / "file", root / "file/below"}) {
    const Error error = expect_error([&] { CheckpointFolder(path, "run").check_writable(1000); });
    CHECK(error.code() == ExitCode::disk);
    CHECK(mentions(error, path));
  }
  StateOnlyModel model(1);
  CHECK(expect_error([&] { Run(root / "file").save(model, state_of(1), false); }).code() == ExitCode::disk);
  CHECK(read_file(root / "file") == "in the way");
}

TEST_CASE("a damaged file is an Error(checkpoint) whose hint names the next older one") {
  TemporaryFolder root;
  Run folder(root.path());
  StateOnlyModel model(1);
  folder.save(model, state_of(10), false);
  folder.save(model, state_of(20), false);
  const std::string path = folder.save(model, state_of(30), false), file = path + "/state.h5";
  fs::resize_file(root / "test-run/step_00000020/state.h5", 5000); // the one before is damaged too
  const std::string whole = read_file(file);
  const auto refuses = [&](const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
    StateOnlyModel target(7);
    const Error error = expect_error([&] { load_checkpoint(path, target); });
    CHECK(error.code() == ExitCode::checkpoint);
    CHECK(mentions(error, file));
    CHECK(hint_mentions(error, "--resume " + root / "test-run/step_00000010"));
    CHECK(target.same_bits(StateOnlyModel(7)));
    CHECK(expect_error([&] { read_checkpoint(path); }).code() == ExitCode::checkpoint);
  };
  for (const size_t size : {size_t{0}, size_t{100}, size_t{4096}, whole.size() / 2, whole.size() - 1}) {
    CAPTURE(size);
    refuses(whole.substr(0, size));
  }
  refuses(std::string(10'000, 'x'));
  refuses(whole.substr(0, 96) + std::string(4000, '\xA5') + whole.substr(4096));

  fs::resize_file(root / "test-run/step_00000010/state.h5", 1); // nothing older is left
  std::ofstream(file, std::ios::binary | std::ios::trunc) << "x";
  CHECK(hint_mentions(expect_error([&] { read_checkpoint(path); }), "without --resume"));
}

TEST_CASE("a foreign HDF5 file and another format version are refused") {
  TemporaryFolder root;
  StateOnlyModel model(1);
  const auto make_file = [&](const std::string& name, const std::string& format, int64_t version) {
    fs::create_directories(root / name);
    Hdf5NewFile file(root / name + "/state.h5", "");
    if (!format.empty()) file.write_attribute("format", format);
    file.write_attribute("format_version", version);
    file.close();
    std::ofstream(root / name + "/options.toml");
    seal(root / name, 1);
  };
  make_file("foreign", "", 3);
  make_file("other", "weather data", 3);
  make_file("newer", "GPT-2 training checkpoint", 5);
  CHECK(mentions(expect_error([&] { load_checkpoint(root / "foreign", model); }), "not a checkpoint"));
  CHECK(mentions(expect_error([&] { load_checkpoint(root / "other", model); }), "not a checkpoint"));
  const Error newer = expect_error([&] { load_checkpoint(root / "newer", model); });
  CHECK(newer.code() == ExitCode::checkpoint);
  CHECK(mentions(newer, "version 5"));
  for (const int version : {1, 2}) { // they had no manifest
    make_file("old", "GPT-2 training checkpoint", version);
    fs::remove(root / "old/manifest.json");
    const Error old = expect_error([&] { load_checkpoint(root / "old", model); });
    CHECK(old.code() == ExitCode::checkpoint);
    CHECK(mentions(old, "/old/state.h5 has format version " + std::to_string(version) + "; this program reads"));
    CHECK(hint_mentions(old, "program version 0.1 wrote it"));
    fs::remove_all(root / "old");
  }
}

TEST_CASE("a model of another shape is refused, with both shapes, before anything is changed") {
  TemporaryFolder root;
  StateOnlyModel saved(1), wider(2, {.name = "wider", .layers = 2, .heads = 2, .channels = 32, .seq_len = 8});
  const StateOnlyModel untouched(2, wider.config());
  const std::string path = Run(root.path()).save(saved, state_of(10), false);
  const Error error = expect_error([&] { load_checkpoint(path, wider); });
  CHECK(error.code() == ExitCode::checkpoint);
  CHECK(mentions(error, "2 layers, 2 heads, 16 channels, 8 positions"));
  CHECK(mentions(error, "2 layers, 2 heads, 32 channels, 8 positions"));
  CHECK(hint_mentions(error, "--model small"));
  CHECK(wider.same_bits(untouched));
}

TEST_CASE("the state reader says which dataset is wrong") {
  TemporaryFolder root;
  const std::string path = root / "state.h5";
  {
    Hdf5NewFile file(path, "");
    Hdf5StateWriter writer(file, "model");
    const float values[] = {1, 2, 3, 4, 5, 6};
    const int64_t shape[] = {2, 3};
    writer.write_floats("a/b", shape, values);
    writer.write_text("text", "words");
    CHECK(expect_error([&] { writer.write_int("text", 1); }).code() == ExitCode::disk); // the name is taken
    CHECK_THROWS_AS(writer.write_floats("c", shape, std::span(values, 5)), std::logic_error);
    file.close();
  }
  std::vector<std::unique_ptr<Hdf5StateFile>> files;
  files.push_back(std::make_unique<Hdf5StateFile>(open_state_file(path)));
  CheckpointReader reader(std::move(files), "model", CheckpointReader::Values::any);
  std::vector<float> values(6);
  reader.read_floats("a/b", values);
  CHECK(values == std::vector<float>{1, 2, 3, 4, 5, 6});
  values.resize(5);
  const Error count = expect_error([&] { reader.read_floats("a/b", values); });
  CHECK(count.code() == ExitCode::checkpoint);
  CHECK(mentions(count, "cannot read model/a/b of " + path));
  CHECK(mentions(count, "6 values, not 5"));
  CHECK(count.hint() == "");
  CHECK(mentions(expect_error([&] { reader.read_int("missing"); }), "cannot read model/missing"));
  CHECK(mentions(expect_error([&] { reader.read_int("text"); }), "another type"));
  CHECK(mentions(expect_error([&] { reader.read_text("a"); }), "cannot read model/a"));
}

// GPT2_CHECKPOINT_OUT: where test_checkpoint_h5py.py wants the demo checkpoint.
TEST_CASE("the demo checkpoint") {
  TemporaryFolder temporary;
  const char* wanted = std::getenv("GPT2_CHECKPOINT_OUT");
  StateOnlyModel model(5);
  const std::string path = Run(wanted ? wanted : temporary.path()).save(model, state_of(1234, 2.5), true);
  CHECK(holds(path, 5));
}
