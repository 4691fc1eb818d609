// Checkpoints that many ranks write and any number of ranks reads. Where only files matter, ranks are a loop; where
// they have to agree, they are processes.
#include <doctest/doctest.h>
#include <sched.h>
#include <sys/mount.h>

#include <functional>
#include <limits>

#include "engine/checkpoint/reader.h"
#include "engine/hdf5/handle.h"
#include "tests/checkpoint_testing.h"
#include "tests/expect_error.h"
#include "tests/file_size_limit.h"
#include "tests/ranks_testing.h"
#include "tests/sharded_model.h"

using namespace gpt2;
using namespace gpt2::testing;
namespace fs = std::filesystem;

namespace {

// Nothing of a checkpoint is taken if something is wrong with it.
Error refusal(const std::string& folder) {
  ShardedModel model(1, 2, true);
  const Error error = expect_error([&] { load_checkpoint(folder, model); });
  CHECK(error.code() == ExitCode::checkpoint);
  CHECK(model.is_untouched());
  return error;
}

// What save() answered or threw on each rank of a group, each a process of its own: HDF5 has no room for two threads.
std::vector<std::string> run_processes(int ranks, const std::function<std::string(RankGroup&)>& body) {
  TemporaryFolder answers;
  const std::string job = new_job();
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    processes.push_back(::fork());
    if (processes.back() != 0) continue;
    std::string answer;
    try {
      const auto group = RankGroup::join(rank_of_job(rank, ranks, job), patient());
      answer = body(*group);
    } catch (const Error& error) {
      answer = std::to_string(static_cast<int>(error.code())) + " " + error.what() + " (hint: " + error.hint() + ")";
    }
    std::ofstream(answers / std::to_string(rank)) << answer;
    ::_exit(0); // no test framework, no leak checker
  }
  std::vector<std::string> all;
  for (int rank = 0; rank < ranks; ++rank) {
    ::waitpid(processes[static_cast<size_t>(rank)], nullptr, 0);
    all.push_back(read_file(answers / std::to_string(rank)));
  }
  return all;
}

std::string save_as_rank(RankGroup& group, const std::string& checkpoint_dir, int64_t step) {
  ShardedModel model(group.rank(), group.ranks(), false);
  return CheckpointFolder(checkpoint_dir, "run").save(model, state_of(step), step == 10, group);
}

// A node of its own, as far as this folder is concerned. false: this process may not do that.
bool mount_own_disk(const std::string& folder) {
  return ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("none", folder.c_str(), "tmpfs", 0, nullptr) == 0;
}

// All ranks threw the same error.
std::string common_error(const std::vector<std::string>& answers) {
  for (const std::string& answer : answers) CHECK(answer == answers.front());
  return answers.front();
}

bool is_readable_by_three(const std::string& checkpoint) {
  bool whole = true;
  for (int rank = 0; rank < 3; ++rank) {
    ShardedModel model(rank, 3, true);
    load_checkpoint(checkpoint, model);
    whole &= model.is_whole();
  }
  return whole;
}

} // namespace

TEST_CASE("what some ranks wrote, any number of ranks reads, bit for bit") {
  for (const int writers : {1, 2, 3, 4, 7}) {
    TemporaryFolder root;
    const std::string folder = root / "run/step_00001000";
    write_all(folder, writers);
    CHECK(names_in(folder).size() == static_cast<size_t>(writers) + 2); // options.toml, manifest.json
    CHECK(read_state_header(folder).ranks == writers);
    CHECK(list_run(root / "run")[0].ranks == writers);
    for (const int readers : {1, 2, 3, 4, 5}) {
      CAPTURE(writers);
      CAPTURE(readers);
      int64_t elements = 0;
      for (int rank = 0; rank < readers; ++rank) {
        ShardedModel model(rank, readers, true);
        CHECK(load_checkpoint(folder, model).step == 1000);
        CHECK(model.is_whole());
        elements += model.elements();
      }
      CHECK(elements == ShardedModel(0, 1, true).elements());
    }
  }
}

TEST_CASE("one rank writes whole tensors and no word about ranks") {
  TemporaryFolder root;
  write_all(root / "step_00001000", 1);
  const Hdf5StateFile file = open_state_file(root / "step_00001000/state.h5");
  CHECK_FALSE(file.has_attribute("ranks"));
  CHECK(file.read_int_attribute("format_version") == 3);
  const Hdf5StateReader reader(file, "model");
  CHECK(reader.part("params/wte.weight").shape == std::vector<int64_t>{512, 24});
  CHECK_FALSE(file.contents().datasets.at("model/params/wte.weight").attributes.contains("begin"));
}

TEST_CASE("the file of a rank says what it is; what all ranks share stands in state.h5 alone") {
  TemporaryFolder root;
  write_all(root / "step_00001000", 4);
  const Hdf5StateFile file = open_state_file(root / "step_00001000/rank_00002.h5");
  CHECK(file.read_int_attribute("rank") == 2);
  CHECK(file.read_int_attribute("ranks") == 4);
  CHECK(file.read_int_attribute("step") == 1000);
  CHECK(file.read_int_attribute("format_version") == 3);
  Hdf5StateReader reader(file, "model");
  CHECK_FALSE(reader.has("adam_step"));
  CHECK_FALSE(reader.has("guard"));
  const TensorPart part = reader.part("params/wte.weight");
  CHECK(part.shape == std::vector<int64_t>{512, 24});
  CHECK(part.begin % 256 == 0);
  CHECK(part.begin > 0);
  CHECK(part.count < 512 * 24);
  std::vector<float> values(10);
  reader.read_range("params/wte.weight", part.begin + 5, values);
  CHECK(values[0] == value_of("wte.weight", part.begin + 5, 0));
  CHECK(mentions(expect_error([&] { reader.read_range("params/wte.weight", part.begin - 1, values); }),
                 "it holds elements"));
}

TEST_CASE("any range of a tensor is read, whole or in pieces") {
  TemporaryFolder root;
  for (const int writers : {1, 3}) {
    const std::string folder = root / std::to_string(writers);
    write_all(folder, writers);
    std::vector<std::unique_ptr<Hdf5StateFile>> files;
    for (int rank = 0; rank < writers; ++rank)
      files.push_back(std::make_unique<Hdf5StateFile>(open_state_file(rank_file(folder, rank))));
    CheckpointReader reader(std::move(files), "model", CheckpointReader::Values::any);
    const int64_t all = 512 * 24;
    CHECK(reader.shape("adam_m/wte.weight") == std::vector<int64_t>{512, 24});
    for (const auto& [begin, count] : std::vector<std::pair<int64_t, int64_t>>{{0, all},
                                                                               {0, 1},
                                                                               {all - 1, 1},
                                                                               {5, 3},
                                                                               {5, 19},
                                                                               {5, 20},
                                                                               {24, 24},
                                                                               {23, 2},
                                                                               {23, 26},
                                                                               {24, 240},
                                                                               {30, 6000},
                                                                               {1, all - 2},
                                                                               {4095, 4099},
                                                                               {100, 0}}) {
      CAPTURE(begin);
      CAPTURE(count);
      std::vector<float> values(static_cast<size_t>(count));
      reader.read_range("adam_m/wte.weight", begin, values);
      for (int64_t i = 0; i < count; ++i)
        REQUIRE(values[static_cast<size_t>(i)] == value_of("wte.weight", begin + i, 1));
    }
    std::vector<float> values(10);
    for (const int64_t begin : {int64_t{-1}, all - 9}) {
      const Error beyond = expect_error([&] { reader.read_range("adam_m/wte.weight", begin, values); });
      CHECK(beyond.code() == ExitCode::checkpoint);
      CHECK(mentions(beyond, "adam_m/wte.weight"));
    }
    CHECK(mentions(expect_error([&] { reader.read_floats("adam_m/wte.weight", values); }), "12288 values, not 10"));
    CHECK(mentions(expect_error([&] { reader.read_range("adam_m/nothing", 0, values); }), "adam_m/nothing"));
    CHECK(reader.has("adam_m/wte.weight"));
    CHECK_FALSE(reader.has("adam_m/nothing"));
  }
}

TEST_CASE("a file of a rank that is missing, damaged, swapped or of another checkpoint is named, with its tensor") {
  TemporaryFolder root;
  const std::string folder = root / "step_00001000", file = folder + "/rank_00002.h5";
  const auto write_anew = [&] {
    fs::remove_all(folder);
    write_all(folder, 4);
  };
  write_anew();
  CHECK(list_run(root.path())[0].precision == "fp32");
  fs::remove(file);
  CHECK(mentions(refusal(folder), file + " is missing"));
  CHECK(list_run(root.path())[0].precision == "damaged");

  write_anew();
  fs::resize_file(file, fs::file_size(file) / 2);
  CHECK(mentions(refusal(folder), file));

  write_anew();
  fs::copy_file(folder + "/rank_00001.h5", file, fs::copy_options::overwrite_existing);
  seal(folder, 1000, 4);
  const Error swapped = refusal(folder);
  CHECK(mentions(swapped, "rank of " + file));
  CHECK(mentions(swapped, "it is 1, not 2"));

  write_anew();
  write_all(root / "three", 3);
  fs::copy_file(root / "three/rank_00002.h5", file, fs::copy_options::overwrite_existing);
  seal(folder, 1000, 4);
  CHECK(mentions(refusal(folder), "ranks of " + file));

  write_anew();
  fs::copy_file(folder + "/state.h5", file, fs::copy_options::overwrite_existing);
  seal(folder, 1000, 4);
  CHECK(mentions(refusal(folder), file + " is an HDF5 file, but not a checkpoint"));
}

TEST_CASE("a piece that is missing, overlaps another or lies outside its tensor is named") {
  TemporaryFolder root;
  const std::string folder = root / "step_00001000", dataset = "/model/params/wte.weight";
  const auto change = [&](const std::function<void(hid_t)>& edit) {
    fs::remove_all(folder);
    write_all(folder, 3);
    {
      const Hdf5Handle file(H5Fopen((folder + "/rank_00001.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
      edit(file);
    }
    seal(folder, 1000, 3);
  };
  const auto move_to = [&](int64_t begin) {
    change([&](hid_t file) {
      const Hdf5Handle piece(H5Dopen2(file, dataset.c_str(), H5P_DEFAULT), H5Dclose);
      const Hdf5Handle attribute(H5Aopen(piece, "begin", H5P_DEFAULT), H5Aclose);
      REQUIRE(H5Awrite(attribute, H5T_NATIVE_INT64, &begin) >= 0);
    });
  };
  change([&](hid_t file) { REQUIRE(H5Ldelete(file, dataset.c_str(), H5P_DEFAULT) >= 0); });
  const Error gap = refusal(folder);
  CHECK(mentions(gap, folder + " is damaged: elements "));
  CHECK(mentions(gap, "of params/wte.weight, before those in " + folder + "/rank_00002.h5, are in no file"));
  move_to(256);
  const Error twice = refusal(folder);
  CHECK(mentions(twice, "of params/wte.weight are in " + folder + "/state.h5 and in " + folder + "/rank_00001.h5"));
  for (const int64_t begin : {int64_t{-256}, int64_t{512 * 24}, std::numeric_limits<int64_t>::max()}) {
    move_to(begin);
    CHECK(mentions(refusal(folder), "a segment that is not inside its tensor"));
  }
  change([&](hid_t file) { REQUIRE(H5Adelete_by_name(file, dataset.c_str(), "shape", H5P_DEFAULT) >= 0); });
  CHECK(mentions(refusal(folder), "it has no shape"));
}

TEST_CASE("a checkpoint of many ranks and another model is refused with both shapes") {
  TemporaryFolder root;
  GPT2Config wider = odd_config();
  wider.channels = 32;
  write_all(root / "step_00001000", 2, wider);
  const Error error = refusal(root / "step_00001000");
  CHECK(mentions(error, "24 channels"));
  CHECK(mentions(error, "32 channels"));
}

TEST_CASE("ranks save together: one folder, one file each, and markers once it is whole") {
  TemporaryFolder root;
  for (const int64_t step : {10, 20, 20}) { // the last one replaces the one before
    const auto answers = run_processes(4, [&](RankGroup& group) { return save_as_rank(group, root.path(), step); });
    for (const std::string& answer : answers) CHECK(answer == root / ("run/step_000000" + std::to_string(step)));
  }
  CHECK(names_in(root.path()) == std::vector<std::string>{"best", "latest", "run"});
  CHECK(names_in(root / "run") == std::vector<std::string>{"best", "latest", "step_00000010", "step_00000020"});
  CHECK(names_in(root / "run/step_00000020") == std::vector<std::string>{"manifest.json", "options.toml",
                                                                         "rank_00001.h5", "rank_00002.h5",
                                                                         "rank_00003.h5", "state.h5"});
  CHECK(find_checkpoint({root.path()}, "", "latest") == root / "run/step_00000020");
  CHECK(find_checkpoint({root.path()}, "", "best") == root / "run/step_00000010");
  const CheckpointInfo info = list_checkpoints({root.path()})[1];
  CHECK(info.ranks == 4);
  CHECK(info.bytes > ShardedModel(0, 1, true).elements() * 4);
  CHECK(is_readable_by_three(info.path));
}

TEST_CASE("a rank whose disk is full is named by all ranks; what was there stays, and the next save works") {
  TemporaryFolder root;
  const auto save = [&](int64_t step, int unlucky) {
    return run_processes(3, [&, step, unlucky](RankGroup& group) {
      std::optional<FileSizeLimit> limit;
      if (group.rank() == unlucky) limit.emplace(20'000);
      return save_as_rank(group, root.path(), step);
    });
  };
  save(10, -1);
  for (const int unlucky : {0, 2}) {
    const std::string error = common_error(save(20, unlucky));
    CAPTURE(error);
    CHECK(
        contains(error, std::to_string(static_cast<int>(ExitCode::disk)) + " rank " + std::to_string(unlucky) + " ("));
    CHECK(contains(error, "File too large"));
    CHECK(contains(error, "--checkpoint_dir"));
    CHECK(names_in(root / "run") == std::vector<std::string>{"best", "latest", "step_00000010"});
  }
  CHECK(is_readable_by_three(find_checkpoint({root.path()}, "run", "latest")));
  save(20, -1);
  CHECK(is_readable_by_three(root / "run/step_00000020"));
}

TEST_CASE("what rank 0 alone finds out, all ranks say") {
  TemporaryFolder root;
  const std::string error = common_error(run_processes(2, [&](RankGroup& group) {
    StateOnlyModel huge(1, {.name = "huge", .layers = 1000, .heads = 64, .channels = 65536, .seq_len = 8});
    return CheckpointFolder(root.path(), "run").save(huge, state_of(10), false, group);
  }));
  CHECK(contains(error, "rank 0 ("));
  CHECK(contains(error, "are free"));
}

TEST_CASE(
    "a rank that dies while all save is named; the checkpoint that was being written is gone, the one before stays") {
  TemporaryFolder root;
  run_processes(3, [&](RankGroup& group) { return save_as_rank(group, root.path(), 10); });
  struct DeadlyModel : ShardedModel {
    using ShardedModel::ShardedModel;
    std::unique_ptr<StateSnapshot> snapshot() override { ::_exit(1); }
  };
  const auto answers = run_processes(3, [&](RankGroup& group) {
    if (group.rank() != 1) return save_as_rank(group, root.path(), 20);
    DeadlyModel model(1, 3, false);
    return CheckpointFolder(root.path(), "run").save(model, state_of(20), false, group);
  });
  for (const int rank : {0, 2}) {
    CHECK(answers[static_cast<size_t>(rank)].starts_with(std::to_string(static_cast<int>(ExitCode::communication)) +
                                                         " rank 1 ("));
  }
  CHECK(names_in(root / "run") == std::vector<std::string>{"best", "latest", "step_00000010"});
  CHECK(is_readable_by_three(find_checkpoint({root.path()}, "", "latest")));
}

TEST_CASE("a rank on a node that does not share the folder says so") {
  TemporaryFolder root;
  const std::string error = common_error(run_processes(2, [&](RankGroup& group) -> std::string {
    const bool other_node = group.leads() || mount_own_disk(root.path());
    if (group.all_gather(other_node ? "yes" : "no")[1] == "no") return "not allowed";
    return save_as_rank(group, root.path(), 10);
  }));
  if (error == "not allowed") {
    MESSAGE("skipped: this process may not mount");
    return;
  }
  CHECK(contains(error, "rank 1 ("));
  CHECK(contains(error, "which rank 0 made (hint: --checkpoint_dir must be on a file system that all nodes share)"));
  CHECK(names_in(root / "run").empty());
}

// GPT2_CHECKPOINT_OUT: where test_checkpoint_h5py.py wants it.
TEST_CASE("the demo checkpoint of three ranks") {
  TemporaryFolder temporary;
  const char* wanted = std::getenv("GPT2_CHECKPOINT_OUT");
  const std::string folder = (wanted ? wanted : temporary.path()) + std::string("/step_00001000");
  write_all(folder, 3);
  ShardedModel model(0, 1, true);
  CHECK(load_checkpoint(folder, model).step == 1000);
  CHECK(model.is_whole());
}
