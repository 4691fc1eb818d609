// Which checkpoint a user means: runs, markers, steps, paths.
#include "engine/checkpoint/search.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "engine/checkpoint/names.h"
#include "engine/checkpoint/verify.h"
#include "engine/hdf5/handle.h"
#include "engine/system/folder_lock.h"
#include "tests/checkpoint_testing.h"
#include "tests/expect_error.h"
#include "tests/opened_files.h"

using namespace gpt2;
using namespace gpt2::testing;
namespace fs = std::filesystem;

namespace {

bool hint_mentions(const Error& error, const std::string& words) { return contains(error.hint(), words); }

// "written" has seconds; a test must not wait for the next one.
void make_written(const std::string& checkpoint, const std::string& time) {
  { // all handles closed: the bytes are in the file
    const Hdf5Handle file(H5Fopen((checkpoint + "/state.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    const Hdf5Handle attribute(H5Aopen(file, "written", H5P_DEFAULT), H5Aclose);
    const Hdf5Handle type(H5Aget_type(attribute), H5Tclose);
    REQUIRE(time.size() == H5Tget_size(type));
    REQUIRE(H5Awrite(attribute, type, time.c_str()) >= 0);
  }
  seal(checkpoint, step_of(checkpoint));
}

} // namespace

TEST_CASE("latest, best, steps and paths of a run are found") {
  TemporaryFolder root;
  const std::string dir = root / "checkpoints";
  StateOnlyModel model(1);
  Run run(dir + "/"); // created by the first save; the slash is harmless
  const std::string first = run.save(model, state_of(10, 4.0), true),
                    second = run.save(model, state_of(20, 5.0), false);
  CHECK(second == dir + "/test-run/step_00000020");
  for (const std::string& name : {std::string("test-run"), std::string()}) {
    CHECK(find_checkpoint({dir}, name, "latest") == second);
    CHECK(find_checkpoint({dir}, name, "best") == first);
    CHECK(find_checkpoint({dir}, name, "10") == first);
    CHECK(find_checkpoint({dir}, name, "00000020") == second);
    CHECK(find_checkpoint({dir}, name, "test-run") == second);
    CHECK(find_checkpoint({dir}, name, "test-run/best") == first);
    CHECK(find_checkpoint({dir}, name, "test-run/step_00000010") == first);
    CHECK(find_checkpoint({dir}, name, "test-run/10") == first);
    CHECK(find_checkpoint({dir}, name, "test-run/latest") == second);
    for (const std::string latest : {"latest.pt", "checkpoints/latest.pt", "test-run/latest.pt", "last.ckpt"})
      CHECK(find_checkpoint({dir}, name, latest) == second);
    for (const std::string best : {"best.pt", "best_model.pt", "./checkpoints/best_model.pt", "test-run/best.pt"})
      CHECK(find_checkpoint({dir}, name, best) == first);
    CHECK(expect_error([&] { find_checkpoint({dir}, name, "other/best.pt"); }).code() == ExitCode::checkpoint);
  }
  CHECK(find_checkpoint({dir}, "test-run", "step_00000010") == first);
  const std::string elsewhere = root / "elsewhere";
  CHECK(find_checkpoint({elsewhere}, "", first) == first);
  CHECK(find_checkpoint({elsewhere}, "", first + "/") == first);
  CHECK(find_checkpoint({elsewhere}, "", first + "/state.h5") == first);
  for (const std::string& folder : {dir, dir + "/", dir + "/test-run", dir + "/latest", dir + "/test-run/latest"}) {
    CAPTURE(folder);
    CHECK(find_checkpoint({elsewhere}, "", folder) == second);
  }
  for (const std::string& folder : {dir + "/best", dir + "/test-run/best"})
    CHECK(find_checkpoint({elsewhere}, "", folder) == first);
  CHECK(read_file(dir + "/latest") == "test-run/step_00000020\n");
  CHECK(read_file(dir + "/best") == "test-run/step_00000010\n");
  CHECK(read_file(dir + "/test-run/latest") == "step_00000020\n");
  CHECK(names_in(dir) == std::vector<std::string>{"best", "latest", "test-run"});

  const auto list = list_checkpoints({dir});
  REQUIRE(list.size() == 2);
  CHECK(list[0].step == 10);
  CHECK(list[0].run == "test-run");
  CHECK(list[0].best);
  CHECK_FALSE(list[0].latest);
  CHECK(list[0].val_loss == 4.0);
  CHECK(list[0].precision == "fp32");
  CHECK(list[0].written.size() == std::strlen("2026-01-01T00:00:00Z"));
  CHECK(list[0].bytes > 128'000);
  CHECK(list[0].ranks == 1);
  CHECK(list[1].path == second);
  CHECK(list[1].latest);
  CHECK_FALSE(list[1].best);
}

TEST_CASE("what is not there is an Error(checkpoint) that says what is") {
  TemporaryFolder root;
  Run run(root.path());
  const Error nothing = expect_error([&] { run.find("latest"); });
  CHECK(nothing.code() == ExitCode::checkpoint);
  CHECK(hint_mentions(nothing, "without --resume"));
  CHECK(list_checkpoints({root / "absent"}).empty());

  StateOnlyModel model(1);
  for (int step = 100; step <= 1200; step += 100) run.save(model, state_of(step), false);
  const Error step = expect_error([&] { run.find("150"); });
  CHECK(step.code() == ExitCode::checkpoint);
  CHECK(mentions(step, "step 150"));
  CHECK(hint_mentions(step, "... 500, 600, "));
  CHECK(hint_mentions(step, ", 1200"));
  CHECK(expect_error([&] { run.find("best"); }).code() == ExitCode::checkpoint);
  CHECK(expect_error([&] { run.find(""); }).code() == ExitCode::checkpoint);
  CHECK(mentions(expect_error([&] { run.find("no/such/folder"); }), "no/such/folder"));
  const Error other_run = expect_error([&] { find_checkpoint({root.path()}, "other", "latest"); });
  CHECK(mentions(other_run, root / "other"));
  CHECK(expect_error([&] { load_checkpoint(root / "absent", model); }).code() == ExitCode::checkpoint);
}

TEST_CASE("latest is the highest step whatever its markers say, also where it is damaged") {
  TemporaryFolder root;
  Run run(root.path());
  StateOnlyModel model(1);
  const std::string older = run.save(model, state_of(10), false), newer = run.save(model, state_of(20), false);
  for (const std::string& name : {std::string("test-run"), std::string()}) {
    const std::string folder = name.empty() ? root.path() : root / name;
    const auto latest = [&] { return find_checkpoint({root.path()}, name, "latest"); };
    fs::remove(folder + "/latest"); // killed between the rename and the marker
    CHECK(latest() == newer);
    for (const char* nonsense : {"step_00000099\n", "../../etc\n", "/etc\n", "nobody/step_00000020\n", ""}) {
      std::ofstream(folder + "/latest") << nonsense;
      CHECK(latest() == newer);
    }
  }
  fs::resize_file(newer + "/state.h5", 1000);
  CHECK(run.find("latest") == newer); // who resumes it reports the damage, and goes back
  CHECK(find_checkpoint({root.path()}, "", "latest") == newer);
  std::ofstream(root / "test-run/latest") << fs::path(older).filename().string() << "\n";
  CHECK(run.find("latest") == newer);
  CHECK(list_checkpoints({root.path()})[1].precision == "damaged");
}

TEST_CASE("runs share a folder: each has its own latest and best, the folder has the latest and the best of all") {
  TemporaryFolder root;
  StateOnlyModel model(1);
  Run first(root.path(), "first"), second(root.path(), "sweep/second");
  const std::string first_10 = first.save(model, state_of(10, 3.5), true),
                    second_10 = second.save(model, state_of(10, 4.5), true);
  CHECK(find_checkpoint({root.path()}, "", "latest") == second_10);
  const std::string first_20 = first.save(model, state_of(20), false),
                    second_30 = second.save(model, state_of(30), false);
  CHECK(first.find("latest") == first_20);
  CHECK(first.find("best") == first_10);
  CHECK(first.find("10") == first_10);
  CHECK(second.find("best") == second_10);
  CHECK(find_checkpoint({root.path()}, "", "latest") == second_30);
  CHECK(find_checkpoint({root.path()}, "", "best") ==
        first_10); // the best of the folder, not of the run that saved last
  CHECK(find_checkpoint({"nowhere"}, "", root / "best") == first_10);
  CHECK(read_file(root / "best") == "first/step_00000010\n");
  CHECK(find_checkpoint({root.path()}, "", "10") == second_10); // the latest run's
  CHECK(read_file(root / "latest") == "sweep/second/step_00000030\n");
  const Error elsewhere = expect_error([&] { find_checkpoint({root.path()}, "", "20"); });
  CHECK(mentions(elsewhere, "no checkpoint of step 20 in " + root / "sweep/second"));
  CHECK(hint_mentions(elsewhere, first_20));

  fs::remove(root / "latest"); // now nothing says which run is meant
  const Error several = expect_error([&] { find_checkpoint({root.path()}, "", "10"); });
  CHECK(several.code() == ExitCode::checkpoint);
  CHECK(mentions(several, "several runs"));
  for (const std::string& path : {first_10, second_10}) CHECK(hint_mentions(several, path));
  CHECK(find_checkpoint({root.path()}, "", "20") == first_20); // only one has it
  for (const std::string& path : {second_10, second_30}) make_written(path, "2026-01-01T00:00:00Z");
  CHECK(find_checkpoint({root.path()}, "", "latest") == first_20); // by time, not by step
  fs::remove(root / "best");
  CHECK(find_checkpoint({root.path()}, "", "best") == first_10);
  const std::string second_40 = second.save(model, state_of(40, 3.0), true);
  CHECK(find_checkpoint({root.path()}, "", "best") == second_40);
  CHECK(read_file(root / "best") == "sweep/second/step_00000040\n");
  fs::remove_all(second_40);

  std::vector<std::string> order;
  for (const CheckpointInfo& info : list_checkpoints({root.path()}))
    order.push_back(info.run + " " + std::to_string(info.step));
  CHECK(order == std::vector<std::string>{"sweep/second 10", "sweep/second 30", "first 10", "first 20"});
}

TEST_CASE("a kill between the rename and the marker: latest is the newest complete one of that run") {
  TemporaryFolder root;
  Run run(root.path());
  StateOnlyModel model(1);
  run.save(model, state_of(10), false);
  const std::string newer = run.save(model, state_of(20), false);
  for (const std::string& marker : {root / "test-run/latest", root / "latest"})
    std::ofstream(marker) << (marker == root / "latest" ? "test-run/step_00000010\n" : "step_00000010\n");
  for (const std::string& name : {std::string("test-run"), std::string()})
    CHECK(find_checkpoint({root.path()}, name, "latest") == newer);
  CHECK(find_checkpoint({root.path()}, "", root / "latest") == newer);
  CHECK(find_checkpoint({root.path()}, "", "test-run") == newer);
  CHECK(run.list()[1].latest);
  // The clock was set back between the two: within a run steps count.
  make_written(newer, "2026-01-01T00:00:00Z");
  CHECK(run.find("latest") == newer);
  for (const std::string& marker : {root / "test-run/latest", root / "latest"}) fs::remove(marker);
  for (const std::string& name : {std::string("test-run"), std::string()})
    CHECK(find_checkpoint({root.path()}, name, "latest") == newer);
  CHECK(run.list()[1].latest);
  CHECK(others_of_run(root / "test-run/step_00000010") == std::vector<std::string>{newer});
}

TEST_CASE("finding and reading the latest opens as many files with 300 checkpoints as with three") {
  TemporaryFolder root;
  StateOnlyModel model(1);
  const auto opened_with = [&](const std::string& name, int64_t checkpoints, bool marked) {
    Run run(root / name);
    const std::string first = run.save(model, state_of(1), true);
    OpenedFiles opened;
    opened.watch(first);
    for (int64_t step = 2; step <= checkpoints; ++step) {
      const std::string copy = run.path() + "/" + step_folder_name(step);
      if (step < checkpoints)
        fs::copy(first, copy, fs::copy_options::create_hard_links | fs::copy_options::recursive);
      else
        run.save(model, state_of(step), false);
      opened.watch(copy);
    }
    if (!marked) {
      for (const std::string& folder : {root / name, run.path()}) fs::remove(folder + "/latest");
    }
    opened.watch("/sys/devices/system/cpu/online"); // hardware_concurrency() reads it
    opened.take();
    const std::string latest = find_checkpoint({root / name}, "", "latest");
    CHECK(latest == run.path() + "/" + step_folder_name(checkpoints));
    CHECK(why_invalid(latest) == "");
    CHECK(read_checkpoint(latest).step == checkpoints);
    CHECK(checkpoints_in(run.path()).size() == static_cast<size_t>(checkpoints));
    int count = 0;
    for (const auto& [path, times] : opened.take()) {
      CAPTURE(path);
      if (!path.starts_with(latest)) CHECK(path == "/sys/devices/system/cpu/online"); // no other checkpoint is opened
      if (!path.starts_with(latest)) CHECK(times == 1);                               // asked once in a process
      count += path.starts_with(latest) ? times : 0;
    }
    return count;
  };
  const int opens = opened_with("three", 3, true);
  CHECK(opens > 0);
  CHECK(opens <= 12);
  CHECK(opened_with("many", 300, true) == opens);
  CHECK(opened_with("unmarked", 100, false) == opens);
}

TEST_CASE("listing opens nothing but manifests, each once") {
  TemporaryFolder root;
  StateOnlyModel model(1);
  Run run(root.path());
  OpenedFiles opened;
  for (int64_t step = 1; step <= 20; ++step) opened.watch(run.save(model, state_of(step, 4.0), step == 3));
  opened.take();
  const std::vector<CheckpointInfo> list = list_checkpoints({root.path()});
  REQUIRE(list.size() == 20);
  CHECK(list[4].val_loss == 4.0);
  CHECK(list[4].model == "small");
  CHECK(list[2].best);
  const std::map<std::string, int> files = opened.take();
  CHECK(files.size() == 20);
  for (const auto& [path, times] : files) {
    CAPTURE(path);
    CHECK(fs::path(path).filename() == "manifest.json");
    CHECK(times == 1);
  }
}

TEST_CASE("a step that a run does not have is answered with the run's own steps") {
  TemporaryFolder root;
  StateOnlyModel model(1);
  Run run(root.path()), other(root.path(), "other");
  for (const int64_t step : {10, 20}) run.save(model, state_of(step), false);
  other.save(model, state_of(70), false);
  for (const std::string& which : {std::string("test-run/5000"), root / "test-run/5000",
                                   std::string("test-run/step_00005000"), root / "test-run/step_00005000"}) {
    const Error missing = expect_error([&] { find_checkpoint({root.path()}, "", which); });
    CHECK(missing.code() == ExitCode::checkpoint);
    CHECK(mentions(missing, "there is no checkpoint of step 5000 in " + root / "test-run"));
    CHECK(missing.hint() == "take one of its steps: 10, 20");
  }
  for (const char* which : {"70", "step_00000070"}) { // the other run's
    const Error missing = expect_error([&] { find_checkpoint({root.path()}, "test-run", which); });
    CHECK(mentions(missing, "there is no checkpoint of step 70 in " + root / "test-run"));
    CHECK(missing.hint() == "take one of its steps: 10, 20");
  }
  const std::string huge(30, '9');
  CHECK(mentions(expect_error([&] { find_checkpoint({root.path()}, "", huge); }), "of step " + huge + " in "));
}

TEST_CASE("a checkpoint that a run removes meanwhile is not called damaged") {
  TemporaryFolder root;
  StateOnlyModel model(1);
  Run run(root.path());
  const std::string gone = run.save(model, state_of(10), false);
  run.save(model, state_of(20), false);
  fs::remove_all(gone);
  CHECK(contains(why_invalid(gone), gone + " was removed meanwhile"));
  for (const Error& error :
       {expect_error([&] { load_checkpoint(gone, model); }), expect_error([&] { read_checkpoint(gone); })}) {
    CHECK(error.code() == ExitCode::checkpoint);
    CHECK(mentions(error, gone + " was removed meanwhile"));
    CHECK(hint_mentions(error, "list"));
  }

  // A real one: a run saves and prunes while others look.
  std::atomic<bool> done = false;
  std::jthread writer([&] {
    RankGroup alone;
    CheckpointFolder folder(root.path(), "test-run", {.newest = 1});
    StateOnlyModel its(2);
    for (int64_t step = 30; step < 50; ++step) folder.save(its, state_of(step), false, alone);
    done = true;
  });
  int64_t seen = 0;
  while (!done) {
    for (const CheckpointInfo& info : list_run(root / "test-run")) {
      CHECK_FALSE(info.is_damaged());
      const std::string reason = why_invalid(info.path);
      CHECK_MESSAGE((reason.empty() || contains(reason, "was removed meanwhile")), reason);
      ++seen;
    }
  }
  CHECK(seen > 0);
}

TEST_CASE("a kill between the two renames of NFS: what was set aside by a dead writer is found and has its name back") {
  const auto set_aside = [](const std::string& path, pid_t writer) {
    fs::rename(path, path + ".old-" + std::to_string(writer));
  };
  const pid_t dead = [] { // a process id that was one a moment ago
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    ::waitpid(child, nullptr, 0);
    return child;
  }();
  TemporaryFolder root;
  Run run(root.path());
  StateOnlyModel model(1);
  const std::string path = run.save(model, state_of(10), true);
  for (const std::string& which : {std::string("latest"), std::string("best"), std::string("10"), path,
                                   std::string("test-run"), std::string("test-run/10")}) {
    CAPTURE(which);
    set_aside(path, dead);
    CHECK(find_checkpoint({root.path()}, "", which) == path);
    CHECK(names_in(root / "test-run") == std::vector<std::string>{"best", "latest", "step_00000010"});
  }
  set_aside(path, dead);
  CHECK(list_checkpoints({root.path()}).size() == 1);
  CHECK(holds(path, 1));

  set_aside(path, ::getppid()); // alive: it may be about to put its own there
  CHECK(expect_error([&] { run.find("latest"); }).code() == ExitCode::checkpoint);
  fs::rename(path + ".old-" + std::to_string(::getppid()), path);
  set_aside(path, dead);
  {
    const FolderLock other(root / "test-run", "--run_name"); // a writer, perhaps on another host
    CHECK(expect_error([&] { run.find("latest"); }).code() == ExitCode::checkpoint);
  }
  CHECK(run.find("latest") == path);
}

TEST_CASE(
    "without --checkpoint_dir the run that saved last is meant, in whichever folder; runs of one name in both too") {
  TemporaryFolder root;
  StateOnlyModel model(1);
  const std::string fp8 = root / "checkpoints_fp8", bf16 = root / "checkpoints_bf16";
  const std::vector<std::string> both{fp8, bf16};
  CHECK(mentions(expect_error([&] { find_checkpoint(both, "", "latest"); }),
                 "there is no checkpoint in " + fp8 + " or " + bf16));
  Run(fp8, "demo").save(model, state_of(10), true);
  Run(fp8, "demo").save(model, state_of(20), false);
  Run(bf16, "demo").save(model, state_of(10), true);
  Run(bf16, "only").save(model, state_of(5), false);
  const auto at = [&](const std::string& path, const char* time) { make_written(path, time); };
  at(fp8 + "/demo/step_00000010", "2026-01-01T00:00:00Z"), at(fp8 + "/demo/step_00000020", "2026-01-02T00:00:00Z");
  at(bf16 + "/demo/step_00000010", "2026-01-03T00:00:00Z"), at(bf16 + "/only/step_00000005", "2026-01-04T00:00:00Z");
  const auto find = [&](const std::string& run, const std::string& which) { return find_checkpoint(both, run, which); };
  CHECK(find("", "latest") == bf16 + "/only/step_00000005");
  CHECK(find("", "5") == bf16 + "/only/step_00000005");
  CHECK(find("", "best") == bf16 + "/demo/step_00000010"); // of equals the newest
  CHECK(find("demo", "latest") == bf16 + "/demo/step_00000010");
  CHECK(find("", "demo") == bf16 + "/demo/step_00000010");
  CHECK(find("", "demo/20") == fp8 + "/demo/step_00000020");
  CHECK(find("", "demo/best") == bf16 + "/demo/step_00000010");
  CHECK(find("", fp8 + "/latest") == fp8 + "/demo/step_00000020");
  CHECK(find("", fp8 + "/best") == fp8 + "/demo/step_00000010");
  CHECK(find_checkpoint({fp8}, "", "latest") == fp8 + "/demo/step_00000020");
  const Error elsewhere = expect_error([&] { find("", "20"); });
  CHECK(mentions(elsewhere, bf16 + "/only"));
  CHECK(hint_mentions(elsewhere, fp8 + "/demo/step_00000020"));
  std::vector<std::string> order;
  for (const CheckpointInfo& info : list_checkpoints(both)) order.push_back(info.path.substr(root.path().size() + 1));
  CHECK(order == std::vector<std::string>{"checkpoints_fp8/demo/step_00000010", "checkpoints_fp8/demo/step_00000020",
                                          "checkpoints_bf16/demo/step_00000010",
                                          "checkpoints_bf16/only/step_00000005"});
  CHECK(list_checkpoints(both)[0].model == "small");
  CHECK(mentions(expect_error([&] { find_checkpoint({"a", "b", "c"}, "", "latest"); }), "in a, b or c"));
  CHECK(default_checkpoint_dirs() == std::vector{default_checkpoint_dir(Precision::fp8),
                                                 default_checkpoint_dir(Precision::bf16),
                                                 default_checkpoint_dir(Precision::fp32)});
  CHECK(default_checkpoint_dir(Precision::fp32) == "checkpoints_fp32");
}

TEST_CASE("checkpoints that stand directly in the folder, as they used to, are found beside those of runs") {
  TemporaryFolder root;
  StateOnlyModel old(1), model(2);
  Run(root.path(), "x").save(old, state_of(10), true);
  for (const char* entry : {"latest", "best"}) fs::remove(root / entry);
  for (const char* entry : {"step_00000010", "latest", "best"}) fs::rename(root / "x" + "/" + entry, root / entry);
  const std::string path = root / "step_00000010";
  for (const char* which : {"latest", "best", "10", "step_00000010"})
    CHECK(find_checkpoint({root.path()}, "", which) == path);
  CHECK(holds(path, 1));
  CHECK(checkpoint_dir_of(path, "test-run") == root.path());

  const std::string newer = Run(root.path()).save(model, state_of(20), false);
  CHECK(find_checkpoint({root.path()}, "", "latest") == newer);
  CHECK(find_checkpoint({root.path()}, "", "best") == path);
  CHECK(expect_error([&] { find_checkpoint({root.path()}, "", "10"); }).hint().find(path) != std::string::npos);
  CHECK(list_checkpoints({root.path()}).size() == 2);
  CHECK(checkpoint_dir_of(newer, "test-run") == root.path());
  CHECK(checkpoint_dir_of(root / "a/b/step_00000001", "a/b") == root.path());
}

TEST_CASE("a path that ends in . is the checkpoint that it leads to") {
  TemporaryFolder root;
  StateOnlyModel model(1);
  const std::string path = Run(root.path()).save(model, state_of(10), false);
  CHECK(find_checkpoint({root.path()}, "", path + "/.") == path);
  CHECK(find_checkpoint({root.path()}, "", path + "//") == path);
}

TEST_CASE("a run cannot have a name that checkpoints use") {
  for (const char* name : {"latest", "best", "step_00000010", "."}) CHECK(is_reserved_name(name));
  for (const char* name : {"run", "step_one", "latest2"}) CHECK_FALSE(is_reserved_name(name));
}
