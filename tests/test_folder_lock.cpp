#include "engine/system/folder_lock.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include "tests/expect_error.h"
#include "tests/temporary_folder.h"

using namespace gpt2;
namespace fs = std::filesystem;

TEST_CASE("a folder has one writer; the second hears who it is and what to do") {
  TemporaryFolder root;
  const FolderLock first(root / "runs/run", "--run_name");
  const Error error = expect_error([&] { FolderLock second(root / "runs/run", "--run_name"); });
  CHECK(error.code() == ExitCode::usage);
  CHECK(mentions(error, root / "runs/run"));
  CHECK(mentions(error, "process " + std::to_string(::getpid()) + " on "));
  CHECK(error.hint().find("--run_name") != std::string::npos);
  CHECK_NOTHROW(FolderLock(root / "runs/other", "--run_name"));
  CHECK(expect_error([&] { FolderLock third(root / "runs/run", "--run_name"); }).code() == ExitCode::usage); // still
}

TEST_CASE("who only looks learns whether there is a writer, and is in nobody's way") {
  TemporaryFolder root;
  CHECK_FALSE(has_writer(root / "run"));
  fs::create_directory(root / "run");
  std::ofstream(root / "run/.lock") << "process 1 on a machine that lost its power";
  CHECK_FALSE(has_writer(root / "run"));
  {
    const FolderLock lock(root / "run", "--run_name");
    CHECK(has_writer(root / "run"));
  }
  CHECK_FALSE(has_writer(root / "run"));
}

TEST_CASE("what it leaves: nothing, or what was written") {
  TemporaryFolder root;
  { const FolderLock lock(root / "run", "--run_name"); }
  CHECK_FALSE(fs::exists(root / "run"));
  {
    const FolderLock lock(root / "run", "--run_name");
    std::ofstream(root / "run/metrics.jsonl") << "{}\n";
  }
  CHECK(fs::exists(root / "run/metrics.jsonl"));
  CHECK_FALSE(fs::exists(root / "run/.lock"));
  CHECK_NOTHROW(FolderLock(root / "run", "--run_name"));
  fs::create_directory(root / "empty");
  { const FolderLock lock(root / "empty", "--run_name"); }
  CHECK(fs::exists(root / "empty")); // somebody else made it
}

TEST_CASE("a writer that was killed blocks nobody, though its file is still there") {
  TemporaryFolder root;
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FolderLock lock(root / "run", "--run_name");
    char byte = 1;
    if (::write(ready[1], &byte, 1) == 1) ::pause();
    ::_exit(1);
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  const Error error = expect_error([&] { FolderLock lock(root / "run", "--run_name"); });
  CHECK(mentions(error, "process " + std::to_string(child) + " on "));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  REQUIRE(fs::exists(root / "run/.lock"));
  CHECK_NOTHROW(FolderLock(root / "run", "--run_name"));
  ::close(ready[0]), ::close(ready[1]);
}

TEST_CASE("many processes that come and go are never two at a time") {
  TemporaryFolder root;
  std::ofstream(root / "metrics.jsonl") << "{}\n"; // a folder in use, that stays
  constexpr int kProcesses = 4, kTurns = 200;
  pid_t children[kProcesses];
  for (pid_t& child : children) {
    child = ::fork();
    if (child != 0) continue;
    for (int turn = 0; turn < kTurns;) {
      std::unique_ptr<FolderLock> lock;
      try {
        lock = std::make_unique<FolderLock>(root.path(), "--run_name");
      } catch (const Error& error) {
        if (error.code() != ExitCode::usage) ::_exit(2);
        continue; // taken
      }
      if (::mkdir((root / "inside").c_str(), 0777) != 0) ::_exit(1); // somebody else is in here
      ::rmdir((root / "inside").c_str());
      ++turn;
    }
    ::_exit(0);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }
}

TEST_CASE("a folder that is removed takes the lock with it: it is locked again, unless another run was faster") {
  TemporaryFolder root;
  FolderLock lock(root / "runs/run", "--run_name");
  CHECK_FALSE(lock.hold());
  fs::remove_all(root / "runs");
  CHECK(lock.hold());
  CHECK_FALSE(lock.hold());
  CHECK(expect_error([&] { FolderLock second(root / "runs/run", "--run_name"); }).code() == ExitCode::usage);

  fs::remove_all(root / "runs");
  {
    const FolderLock faster(root / "runs/run", "--run_name");
    const Error error = expect_error([&] { lock.hold(); });
    CHECK(error.code() == ExitCode::usage);
    CHECK(mentions(error, "another run is writing to " + root / "runs/run"));
    std::ofstream(root / "runs/run/metrics.jsonl") << "{}\n";
  }
  CHECK(lock.hold()); // the other one has ended
}

TEST_CASE("a lock that another run has taken over is not removed at the end") {
  TemporaryFolder root;
  std::optional<FolderLock> lock(std::in_place, root / "run", "--run_name");
  fs::remove_all(root / "run");
  const FolderLock faster(root / "run", "--run_name");
  lock.reset();
  CHECK(fs::exists(root / "run/.lock"));
}

TEST_CASE("a folder that cannot be made again does not end the run") {
  TemporaryFolder root;
  FolderLock lock(root / "run", "--run_name");
  fs::remove_all(root / "run");
  std::ofstream(root / "run") << "in the way";
  CHECK_FALSE(lock.hold());
  fs::remove(root / "run");
  CHECK(lock.hold());
}

TEST_CASE("a folder that cannot be made is an Error(disk)") {
  TemporaryFolder root;
  std::ofstream(root / "file") << "in the way";
  const Error error = expect_error([&] { FolderLock lock(root / "file/run", "--run_name"); });
  CHECK(error.code() == ExitCode::disk);
  CHECK(mentions(error, root / "file/run"));
}
