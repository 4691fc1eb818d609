#include "engine/io/checkpoint_folder.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "engine/base/rng.h"
#include "engine/io/hdf5_state.h"
#include "tests/expect_error.h"
#include "tests/file_size_limit.h"
#include "tests/temporary_folder.h"

using namespace gpt2;
namespace fs = std::filesystem;

namespace {

GPT2Config small_config() { return {.name = "small", .layers = 2, .heads = 2, .channels = 16, .seq_len = 8}; }

// A model that is nothing but its state.
class StateOnlyModel : public StatefulModel {
 public:
  explicit StateOnlyModel(uint64_t seed, GPT2Config config = small_config()) : config_(config) {
    weights_.resize(2000 * 16); // 128 KB: larger than the limits that the tests set on files
    for (size_t i = 0; i < weights_.size(); ++i) weights_[i] = static_cast<float>(Rng(seed).normal(i));
    weights_[0] = std::numeric_limits<float>::denorm_min();
    weights_[1] = -0.0f;
    weights_[2] = std::numeric_limits<float>::infinity();
    weights_[3] = std::numeric_limits<float>::signaling_NaN();
    adam_step_ = static_cast<int64_t>(seed) * 1000;
  }

  std::unique_ptr<StateSnapshot> snapshot() override;
  void load_weights(StateReader&) override {}
  void load_state(StateReader& reader) override {
    CHECK(reader.has("params/wte.weight"));
    CHECK_FALSE(reader.has("params/nothing"));
    CHECK_FALSE(reader.has("nowhere/at/all"));
    CHECK(reader.shape("params/wte.weight") == std::vector<int64_t>{2000, 16});
    reader.read_floats("params/wte.weight", weights_);
    reader.read_floats("params/ln_f.bias", bias_);
    adam_step_ = reader.read_int("adam_step");
    recipe_ = reader.read_text("fp8/recipe");
    CHECK(reader.read_text("fp8/empty") == "");
  }
  bool same_bits(const StateOnlyModel& other) const {
    return std::memcmp(weights_.data(), other.weights_.data(), weights_.size() * sizeof(float)) == 0 &&
           bias_ == other.bias_ && adam_step_ == other.adam_step_ && recipe_ == other.recipe_;
  }

  const GPT2Config& config() const override { return config_; }
  bool fail_while_saving = false;

 private:
  struct Copy;

  GPT2Config config_;
  std::vector<float> weights_, bias_{1, 2, 3};
  int64_t adam_step_ = 0;
  std::string recipe_ = "hybrid \xC3\xA4";
};

struct StateOnlyModel::Copy : StateSnapshot {
  explicit Copy(const StateOnlyModel& model) : model(model) {}
  void write(StateWriter& writer) const override {
    const int64_t matrix[] = {2000, 16}, vector[] = {3};
    writer.write_floats("params/wte.weight", matrix, model.weights_);
    writer.write_floats("params/ln_f.bias", vector, model.bias_);
    writer.write_int("adam_step", model.adam_step_);
    writer.write_text("fp8/recipe", model.recipe_);
    writer.write_text("fp8/empty", "");
    if (model.fail_while_saving) throw Error(ExitCode::device, "the device fell off the bus");
  }
  StateOnlyModel model;
};

std::unique_ptr<StateSnapshot> StateOnlyModel::snapshot() { return std::make_unique<Copy>(*this); }

TrainState state_of(int64_t step, double val_loss = 1e30) {
  TrainState state;
  state.step = step;
  state.loader_position = 123456789012345;
  state.seed = 0xFEDCBA9876543210ull;
  state.best_val_loss = 3.25 + 1e-15;
  state.last_val_loss = val_loss;
  state.last_val_step = step - 7;
  state.tokens = int64_t{1} << 40;
  state.run_name = "test-run";
  state.options_toml = "[model]\nmodel = \"small\"\n";
  state.precision = "fp32";
  return state;
}

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

bool holds(const std::string& checkpoint, uint64_t seed) {
  StateOnlyModel loaded(999), expected(seed);
  load_checkpoint(checkpoint, loaded);
  return loaded.same_bits(expected);
}

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

TEST_CASE("a checkpoint comes back bit for bit") {
  TemporaryFolder root;
  StateOnlyModel model(1), other(2);
  REQUIRE_FALSE(model.same_bits(other));
  const std::string path = CheckpointFolder(root.path()).save(model, state_of(1000, 3.5), false);
  CHECK(path == root / "step_00001000");
  CHECK(names_in(root.path()) == std::vector<std::string>{"latest", "step_00001000"});
  CHECK(names_in(path) == std::vector<std::string>{"options.toml", "state.h5"});
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

TEST_CASE("latest, best, steps and paths are found") {
  TemporaryFolder root;
  const CheckpointFolder folder(root / "checkpoints/"); // created by the first save; the slash is harmless
  StateOnlyModel model(1);
  const std::string first = CheckpointFolder(root / "checkpoints").save(model, state_of(10, 4.0), true);
  const std::string second = CheckpointFolder(root / "checkpoints").save(model, state_of(20, 5.0), false);
  CHECK(folder.resolve("latest") == second);
  CHECK(folder.resolve("best") == first);
  CHECK(folder.resolve("10") == first);
  CHECK(folder.resolve("00000020") == second);
  CHECK(folder.resolve("step_00000010") == first);
  CHECK(folder.resolve(first) == first);
  CHECK(folder.resolve(first + "/") == first);
  CHECK(folder.resolve(first + "/state.h5") == first);
  CHECK(CheckpointFolder(root / "elsewhere").resolve(root / "checkpoints") == second);
  CHECK(read_file(root / "checkpoints/latest") == "step_00000020\n");

  const auto list = folder.list();
  REQUIRE(list.size() == 2);
  CHECK(list[0].step == 10);
  CHECK(list[0].best);
  CHECK_FALSE(list[0].latest);
  CHECK(list[0].val_loss == 4.0);
  CHECK(list[0].precision == "fp32");
  CHECK(list[0].written.size() == std::strlen("2026-01-01T00:00:00Z"));
  CHECK(list[0].bytes > 128'000);
  CHECK(list[1].path == second);
  CHECK(list[1].latest);
  CHECK_FALSE(list[1].best);
}

TEST_CASE("a validation loss keeps the step it was measured at; a file from before that is read as not knowing it") {
  TemporaryFolder root;
  CheckpointFolder folder(root.path());
  StateOnlyModel model(1);
  const std::string path = folder.save(model, state_of(10, 4.0), false);
  CHECK(folder.list()[0].val_step == 3);
  {
    const Hdf5Handle file(H5Fopen((path + "/state.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    REQUIRE(H5Ldelete(file, "/train/last_val_step", H5P_DEFAULT) >= 0);
  }
  CHECK(folder.list()[0].val_loss == 4.0);
  CHECK(folder.list()[0].val_step == -1);
  CHECK(load_checkpoint(path, model).last_val_step == -1);
}

TEST_CASE("what is not there is an Error(checkpoint) that says what is") {
  TemporaryFolder root;
  CheckpointFolder folder(root.path());
  const Error nothing = expect_error([&] { folder.resolve("latest"); });
  CHECK(nothing.code() == ExitCode::checkpoint);
  CHECK(hint_mentions(nothing, "without --resume"));
  CHECK(CheckpointFolder(root / "absent").list().empty());

  StateOnlyModel model(1);
  for (int step = 100; step <= 1200; step += 100) folder.save(model, state_of(step), false);
  const Error step = expect_error([&] { folder.resolve("150"); });
  CHECK(step.code() == ExitCode::checkpoint);
  CHECK(mentions(step, "step 150"));
  CHECK(hint_mentions(step, "500, 600"));
  CHECK(hint_mentions(step, "1200"));
  CHECK(expect_error([&] { folder.resolve("best"); }).code() == ExitCode::checkpoint);
  CHECK(expect_error([&] { folder.resolve(""); }).code() == ExitCode::checkpoint);
  const Error path = expect_error([&] { folder.resolve("no/such/folder"); });
  CHECK(mentions(path, "no/such/folder"));
  CHECK(expect_error([&] { load_checkpoint(root / "absent", model); }).code() == ExitCode::checkpoint);
}

TEST_CASE("latest falls back to the newest that can be used") {
  TemporaryFolder root;
  CheckpointFolder folder(root.path());
  StateOnlyModel model(1);
  const std::string older = folder.save(model, state_of(10), false), newer = folder.save(model, state_of(20), false);
  fs::remove(root / "latest"); // killed between the rename and the marker
  CHECK(folder.resolve("latest") == newer);
  std::ofstream(root / "latest") << "step_00000099\n"; // deleted by hand
  CHECK(folder.resolve("latest") == newer);
  std::ofstream(root / "latest") << "../../etc\n";
  CHECK(folder.resolve("latest") == newer);
  fs::resize_file(newer + "/state.h5", 1000);
  CHECK(folder.resolve("latest") == older);
  CHECK(folder.list()[1].precision == "damaged");
}

TEST_CASE("saving the same step again replaces it") {
  TemporaryFolder root;
  CheckpointFolder folder(root.path());
  StateOnlyModel first(1), second(2);
  const std::string path = folder.save(first, state_of(10), true);
  CHECK(folder.save(second, state_of(10), false) == path);
  CHECK(holds(path, 2));
  CHECK(names_in(root.path()) == std::vector<std::string>{"best", "latest", "step_00000010"});
}

TEST_CASE("leftovers of dead writers are ignored, and cleaned by the next save") {
  TemporaryFolder root;
  CheckpointFolder folder(root.path());
  StateOnlyModel model(1);
  folder.save(model, state_of(10), false);
  const std::string dead = std::to_string(dead_process());
  const std::string stale = root / ("step_00000020.tmp-" + dead), fresh = root / ("step_00000030.tmp-" + dead);
  const std::string ours = root / ("step_00000040.tmp-" + std::to_string(::getpid()));
  const std::string alive = root / ("step_00000050.tmp-" + std::to_string(::getppid()));
  const std::string foreign = root / "step_00000060.tmp-notes";
  for (const std::string& leftover : {stale, fresh, ours, alive, foreign}) {
    fs::copy(root / "step_00000010", leftover);
    if (leftover != fresh) make_old(leftover);
  }
  CHECK(folder.list().size() == 1);
  CHECK(expect_error([&] { folder.resolve("20"); }).code() == ExitCode::checkpoint);
  folder.save(model, state_of(70), false);
  CHECK_FALSE(fs::exists(stale));
  CHECK_FALSE(fs::exists(ours));
  CHECK(fs::exists(fresh)); // perhaps a writer on another host
  CHECK(fs::exists(alive));
  CHECK(fs::exists(foreign));
}

TEST_CASE("a checkpoint that stepped aside for one that never came is brought back") {
  TemporaryFolder root;
  CheckpointFolder folder(root.path());
  StateOnlyModel first(1), second(2);
  folder.save(first, state_of(10), false);
  folder.save(second, state_of(20), false);
  const std::string suffix = ".old-" + std::to_string(dead_process());
  fs::rename(root / "step_00000010", root / ("step_00000010" + suffix));
  fs::copy(root / "step_00000020", root / ("step_00000020" + suffix)); // here the new one did come
  for (const char* step : {"step_00000010", "step_00000020"}) make_old(root / (step + suffix));
  folder.save(second, state_of(30), false);
  CHECK(holds(root / "step_00000010", 1));
  CHECK(names_in(root.path()) == std::vector<std::string>{"latest", "step_00000010", "step_00000020", "step_00000030"});
}

TEST_CASE("a writer killed at any moment leaves a latest that loads") {
  TemporaryFolder root;
  CheckpointFolder folder(root.path());
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
    CHECK(holds(folder.resolve("latest"), 1));
    CHECK(holds(folder.resolve("best"), 1));
    for (const CheckpointInfo& info : folder.list()) CHECK(holds(info.path, 1));
  }
}

TEST_CASE("a full disk is an Error(disk); the old checkpoints stay and the next save works") {
  TemporaryFolder root;
  CheckpointFolder folder(root.path());
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
  CHECK(names_in(root.path()) == std::vector<std::string>{"best", "latest", "step_00000010"});
  CHECK(holds(path, 1));
  folder.save(second, state_of(20), false);
  CHECK(holds(folder.resolve("latest"), 2));
}

TEST_CASE("a disk without room for the checkpoint is refused before anything is written") {
  TemporaryFolder root;
  StateOnlyModel huge(1, {.name = "huge", .layers = 1000, .heads = 64, .channels = 65536, .seq_len = 8});
  const Error error = expect_error([&] { CheckpointFolder(root.path()).save(huge, state_of(10), false); });
  CHECK(error.code() == ExitCode::disk);
  CHECK(mentions(error, "free"));
  CHECK(hint_mentions(error, "--checkpoint_dir"));
  CHECK(names_in(root.path()).empty());
}

TEST_CASE("a model that fails while saving leaves nothing behind") {
  TemporaryFolder root;
  StateOnlyModel model(1);
  model.fail_while_saving = true;
  CHECK(expect_error([&] { CheckpointFolder(root.path()).save(model, state_of(1), false); }).code() ==
        ExitCode::device);
  CHECK(names_in(root.path()).empty());
}

TEST_CASE("a folder that cannot be written is found out at the start") {
  TemporaryFolder root;
  CheckpointFolder(root / "a/b").check_writable(1000);
  CHECK(names_in(root / "a/b").empty());
  const Error too_large = expect_error([&] { CheckpointFolder(root / "a").check_writable(int64_t{1} << 50); });
  CHECK(too_large.code() == ExitCode::disk);
  CHECK(mentions(too_large, "needs 13510.8 TB, and "));
  std::ofstream(root / "file") << "in the way";
  for (const std::string& path : {root / "file", root / "file/below"}) {
    const Error error = expect_error([&] { CheckpointFolder(path).check_writable(1000); });
    CHECK(error.code() == ExitCode::disk);
    CHECK(mentions(error, path));
  }
  StateOnlyModel model(1);
  CHECK(expect_error([&] { CheckpointFolder(root / "file").save(model, state_of(1), false); }).code() ==
        ExitCode::disk);
  CHECK(read_file(root / "file") == "in the way");
}

TEST_CASE("a damaged file is an Error(checkpoint) whose hint names the next older one") {
  TemporaryFolder root;
  CheckpointFolder folder(root.path());
  StateOnlyModel model(1);
  folder.save(model, state_of(10), false);
  folder.save(model, state_of(20), false);
  const std::string path = folder.save(model, state_of(30), false), file = path + "/state.h5";
  fs::resize_file(root / "step_00000020/state.h5", 5000); // the one before is damaged too
  const std::string whole = read_file(file);
  const auto refuses = [&](const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
    StateOnlyModel target(7);
    const Error error = expect_error([&] { load_checkpoint(path, target); });
    CHECK(error.code() == ExitCode::checkpoint);
    CHECK(mentions(error, file));
    CHECK(hint_mentions(error, "--resume 10"));
    CHECK(target.same_bits(StateOnlyModel(7)));
    CHECK(expect_error([&] { read_checkpoint(path); }).code() == ExitCode::checkpoint);
  };
  for (const size_t size : {size_t{0}, size_t{100}, size_t{4096}, whole.size() / 2, whole.size() - 1}) {
    CAPTURE(size);
    refuses(whole.substr(0, size));
  }
  refuses(std::string(10'000, 'x'));
  refuses(whole.substr(0, 96) + std::string(4000, '\xA5') + whole.substr(4096));

  fs::resize_file(root / "step_00000010/state.h5", 1); // nothing older is left
  std::ofstream(file, std::ios::binary | std::ios::trunc) << "x";
  CHECK(hint_mentions(expect_error([&] { read_checkpoint(path); }), "without --resume"));
}

TEST_CASE("a foreign HDF5 file and another format version are refused") {
  TemporaryFolder root;
  StateOnlyModel model(1);
  const auto make_file = [&](const std::string& name, const std::string& format, int64_t version) {
    fs::create_directories(root / name);
    Hdf5File file(root / name + "/state.h5", Hdf5File::Mode::create, "");
    if (!format.empty()) file.write_attribute("format", format);
    file.write_attribute("format_version", version);
    file.close();
  };
  make_file("foreign", "", 1);
  make_file("other", "weather data", 1);
  make_file("newer", "GPT-2 training checkpoint", 2);
  CHECK(mentions(expect_error([&] { load_checkpoint(root / "foreign", model); }), "not a checkpoint"));
  CHECK(mentions(expect_error([&] { load_checkpoint(root / "other", model); }), "not a checkpoint"));
  const Error newer = expect_error([&] { load_checkpoint(root / "newer", model); });
  CHECK(newer.code() == ExitCode::checkpoint);
  CHECK(mentions(newer, "version 2"));
}

TEST_CASE("a model of another shape is refused, with both shapes, before anything is changed") {
  TemporaryFolder root;
  StateOnlyModel saved(1), wider(2, {.name = "wider", .layers = 2, .heads = 2, .channels = 32, .seq_len = 8});
  const StateOnlyModel untouched(2, wider.config());
  const std::string path = CheckpointFolder(root.path()).save(saved, state_of(10), false);
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
    Hdf5File file(path, Hdf5File::Mode::create, "");
    Hdf5StateWriter writer(file, "/model");
    const float values[] = {1, 2, 3, 4, 5, 6};
    const int64_t shape[] = {2, 3};
    writer.write_floats("a/b", shape, values);
    writer.write_text("text", "words");
    CHECK(expect_error([&] { writer.write_int("text", 1); }).code() == ExitCode::disk); // the name is taken
    CHECK_THROWS_AS(writer.write_floats("c", shape, std::span(values, 5)), std::logic_error);
    file.close();
  }
  const Hdf5File file(path, Hdf5File::Mode::read, "the hint");
  Hdf5StateReader reader(file, "/model");
  std::vector<float> values(6);
  reader.read_floats("a/b", values);
  CHECK(values == std::vector<float>{1, 2, 3, 4, 5, 6});
  values.resize(5);
  const Error count = expect_error([&] { reader.read_floats("a/b", values); });
  CHECK(count.code() == ExitCode::checkpoint);
  CHECK(mentions(count, "/model/a/b of " + path));
  CHECK(mentions(count, "6 values, not 5"));
  CHECK(count.hint() == "the hint");
  CHECK(mentions(expect_error([&] { reader.read_int("missing"); }), "/model/missing"));
  CHECK(mentions(expect_error([&] { reader.read_int("text"); }), "another type"));
  CHECK(mentions(expect_error([&] { reader.read_text("a"); }), "/model/a"));
}

// GPT2_CHECKPOINT_OUT: where test_checkpoint_h5py.py wants the demo checkpoint.
TEST_CASE("the demo checkpoint") {
  TemporaryFolder temporary;
  const char* wanted = std::getenv("GPT2_CHECKPOINT_OUT");
  StateOnlyModel model(5);
  const std::string path = CheckpointFolder(wanted ? wanted : temporary.path()).save(model, state_of(1234, 2.5), true);
  CHECK(holds(path, 5));
}
