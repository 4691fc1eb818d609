// --resume and damaged checkpoints: `latest` goes back to the newest valid one and says so; a step that was named does
// not.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <thread>

#include "engine/checkpoint/names.h"
#include "engine/checkpoint/search.h"
#include "engine/checkpoint/verify.h"
#include "engine/hdf5/handle.h"
#include "engine/options/parse_options.h"
#include "engine/run/resume_point.h"
#include "engine/system/files.h"
#include "engine/system/program.h"
#include "tests/expect_error.h"
#include "tests/ranks_testing.h"
#include "tests/sharded_model.h"

using namespace gpt2;
using namespace gpt2::testing;
namespace fs = std::filesystem;

namespace {

std::atomic<int64_t> allocations_left = INT64_MAX; // the one after them fails, and only that

void* allocate(size_t size) {
  if (allocations_left.fetch_sub(1) == 0) errno = ENOMEM, throw std::bad_alloc();
  void* const memory = std::malloc(size);
  return memory ? memory : throw std::bad_alloc();
}

} // namespace

void* operator new(size_t size) { return allocate(size); }
void* operator new[](size_t size) { return allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace {

// Three checkpoints of a run.
struct Saved {
  TemporaryFolder root;
  Run run{root.path(), "demo"};
  std::string paths[3];

  Saved() {
    StateOnlyModel model(1);
    for (int i = 0; i < 3; ++i) {
      TrainState state = state_of(10 * (i + 1));
      state.options_toml = "model = \"nano\"\n";
      paths[i] = run.save(model, state, i == 2);
    }
  }
  void damage(int which, const char* file = "/state.h5") const {
    std::fstream(paths[which] + file, std::ios::in | std::ios::out | std::ios::binary).seekp(5000).put('\x5A');
  }
  CommandLine asks(const std::string& which) const {
    CommandLine line;
    line.given.insert("resume");
    line.options.checkpoint_dir = root.path();
    line.options.resume = which;
    return line;
  }
  ResumePoint chosen(const std::string& which) const {
    RankGroup alone;
    return *find_resume_point(asks(which), alone);
  }
};

// As another version of the program wrote it.
void make_version(int64_t version, const std::string& checkpoint) {
  {
    const Hdf5Handle file(H5Fopen((checkpoint + "/state.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    const Hdf5Handle attribute(H5Aopen(file, "format_version", H5P_DEFAULT), H5Aclose);
    REQUIRE(H5Awrite(attribute, H5T_NATIVE_INT64, &version) >= 0);
  }
  seal(checkpoint, step_of(checkpoint));
}

std::string joined(const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += note + "\n";
  return text;
}

} // namespace

TEST_CASE("a valid checkpoint is taken without a word") {
  const Saved saved;
  for (const char* which : {"latest", "best", "30", "demo", "demo/step_00000030"}) {
    const ResumePoint point = saved.chosen(which);
    CHECK(point.checkpoint == saved.paths[2]);
    CHECK(point.notes.empty());
  }
}

TEST_CASE("latest and a run go back to the newest valid checkpoint, and name what is damaged") {
  const Saved saved;
  saved.damage(2);
  for (const std::string& which : {std::string("latest"), std::string("demo"), std::string("demo/latest"),
                                   saved.root.path(), saved.root / "demo/", saved.root / "latest"}) {
    CAPTURE(which);
    const ResumePoint point = saved.chosen(which);
    CHECK(point.checkpoint == saved.paths[1]);
    REQUIRE(point.notes.size() == 2);
    CHECK(contains(point.notes[0], saved.paths[2] + "/state.h5 is damaged: bytes 0 to "));
    CHECK(point.notes[1] == "going back to " + saved.paths[1] + ", the newest valid checkpoint of the run");
  }
  fs::remove(saved.paths[1] + "/options.toml");
  const ResumePoint further = saved.chosen("latest");
  CHECK(further.checkpoint == saved.paths[0]);
  CHECK(further.notes.size() == 3);
  CHECK(contains(joined(further.notes), saved.paths[1] + "/options.toml is missing"));

  fs::remove(saved.paths[0] + "/manifest.json");
  const Error error = expect_error([&] { saved.chosen("latest"); });
  CHECK(error.code() == ExitCode::checkpoint);
  CHECK(mentions(error, saved.paths[2] + "/state.h5 is damaged"));
  CHECK(contains(error.hint(), "start a new run"));
}

TEST_CASE("a checkpoint whose state.h5 is gone is not passed over in silence") {
  const Saved saved;
  fs::remove(saved.paths[2] + "/state.h5");
  const ResumePoint point = saved.chosen("latest");
  CHECK(point.checkpoint == saved.paths[1]);
  CHECK(contains(joined(point.notes), saved.paths[2] + "/state.h5 is missing"));
}

TEST_CASE("a step or path that was named is refused, and the newest valid older one is the hint") {
  const Saved saved;
  saved.damage(2);
  saved.damage(1);
  for (const std::string& which : {std::string("30"), std::string("best"), std::string("demo/best"),
                                   std::string("demo/step_00000030"), saved.paths[2], saved.paths[2] + "/state.h5"}) {
    CAPTURE(which);
    const Error error = expect_error([&] { saved.chosen(which); });
    CHECK(error.code() == ExitCode::checkpoint);
    CHECK(mentions(error, saved.paths[2] + "/state.h5 is damaged: bytes 0 to "));
    CHECK(error.hint() == "resume from the one before it: --resume " + saved.paths[0]);
  }
}

TEST_CASE("a checkpoint of format version 1 or 2 is refused, not replaced by an older one") {
  for (const int64_t version : {1, 2}) {
    const Saved saved;
    make_version(version, saved.paths[2]);
    fs::remove(saved.paths[2] + "/manifest.json");
    for (const char* which : {"latest", "30"}) {
      const Error error = expect_error([&] { saved.chosen(which); });
      CHECK(error.code() == ExitCode::checkpoint);
      CHECK(mentions(error, saved.paths[2] + "/state.h5 has format version " + std::to_string(version)));
      CHECK(contains(error.hint(), "program version 0.1 wrote it"));
    }
  }
}

TEST_CASE("all ranks go back to the same checkpoint, or are refused alike") {
  const Saved saved;
  saved.damage(2);
  std::vector<std::string> taken(3), refused(3);
  run_group_without_error(3, [&](RankGroup& group) {
    const auto rank = static_cast<size_t>(group.rank());
    const ResumePoint point = *find_resume_point(saved.asks("latest"), group);
    taken[rank] = point.checkpoint + "\n" + point.run + " " + std::to_string(point.step) + "\n" + joined(point.notes);
    try {
      find_resume_point(saved.asks("30"), group);
    } catch (const AgreedError& error) {
      refused[rank] = std::string(error.what()) + error.hint();
    }
    group.barrier();
  });
  for (size_t rank = 0; rank < 3; ++rank) {
    CHECK(taken[rank] == taken[0]);
    CHECK(refused[rank] == refused[0]);
  }
  CHECK(taken[0].starts_with(saved.paths[1] + "\n"));
  CHECK(contains(taken[0], saved.paths[2] + "/state.h5 is damaged"));
  CHECK(contains(refused[0], "--resume " + saved.paths[1]));
}

TEST_CASE("what changes after it was verified is still found when it is read") {
  const Saved saved;
  const std::string checkpoint = saved.chosen("latest").checkpoint;
  saved.damage(2);
  StateOnlyModel model(7);
  const Error error = expect_error([&] { load_checkpoint(checkpoint, model); });
  CHECK(mentions(error, checkpoint + "/state.h5 is damaged: bytes 0 to "));
  CHECK(contains(error.hint(), "--resume " + saved.paths[1]));
  CHECK(model.same_bits(StateOnlyModel(7)));
}

namespace {

// The exit code of a process of its own, in which the allocation after `before` fails: 4 if it finds what is not right.
// What it says goes into `messages`.
int code_without_memory(int64_t before, const std::string& messages, const std::function<bool()>& is_right) {
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    if (!std::freopen(messages.c_str(), "w", stderr)) ::_exit(1);
    allocations_left = before;
    ::_exit(run_program([&] { return is_right() ? ExitCode::done : ExitCode::checkpoint; }));
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

} // namespace

TEST_CASE("memory that runs out while checkpoints are verified does not make a good one invalid") {
  const Saved saved;
  const TemporaryFolder folder;
  const std::string messages = folder / "messages.txt";
  for (const bool resume : {true, false}) {
    const auto is_right = [&] {
      return resume ? saved.chosen("latest").checkpoint == saved.paths[2] : why_invalid(saved.paths[2]).empty();
    };
    allocations_left = INT64_MAX;
    CHECK(is_right());
    const int64_t count = INT64_MAX - allocations_left;
    int refused = 0;
    for (int64_t before = 0; before < count; before += std::max<int64_t>(1, count / 200)) {
      CAPTURE(before);
      const int code = code_without_memory(before, messages, is_right);
      CAPTURE(code);
      const std::string said = read_text_file(messages);
      CAPTURE(said);
      CHECK((code == 0 || code == 6));
      if (code == 6) ++refused;
    }
    CHECK(refused > 10);
  }
}

TEST_CASE("a damaged checkpoint above a marker that lags or is gone is reported too") {
  const Saved saved;
  fs::resize_file(saved.paths[2] + "/manifest.json", 100);
  for (const bool marked : {true, false}) {
    for (const std::string& folder : {saved.root.path(), saved.root / "demo"}) {
      fs::remove(folder + "/latest");
      if (marked)
        std::ofstream(folder + "/latest") << (folder == saved.root.path() ? "demo/" : "") << "step_00000020\n";
    }
    for (const char* which : {"demo", "latest"}) {
      const ResumePoint point = saved.chosen(which);
      CHECK(point.checkpoint == saved.paths[1]);
      CHECK(contains(joined(point.notes), saved.paths[2] + "/manifest.json is damaged"));
    }
  }
}

TEST_CASE("a checkpoint that is not damaged but cannot be used is an error, and nobody goes back before it") {
  const auto refused = [](const Saved& saved, const std::string& says) {
    for (const char* which : {"latest", "demo", "30"}) {
      const Error error = expect_error([&] { saved.chosen(which); });
      CHECK(error.code() == ExitCode::checkpoint);
      CHECK_MESSAGE(mentions(error, says), error.what());
      CHECK_FALSE(error.hint().empty());
      CHECK_FALSE(contains(error.hint(), "the one before it"));
    }
  };
  {
    const Saved saved;
    make_version(9, saved.paths[2]);
    refused(saved, saved.paths[2] + "/state.h5 has format version 9");
    fs::remove(saved.paths[2] + "/manifest.json");
    refused(saved, saved.paths[2] + "/state.h5 has format version 9");
  }
  {
    const Saved saved;
    std::ofstream(saved.paths[2] + "/copy.h5") << "another file";
    refused(saved, "copy.h5 does not belong to the checkpoint");
    make_version(9, saved.paths[1]); // nor is it passed over on the way back
    fs::remove(saved.paths[2] + "/copy.h5");
    saved.damage(2);
    const Error error = expect_error([&] { saved.chosen("latest"); });
    CHECK(mentions(error, saved.paths[1] + "/state.h5 has format version 9"));
  }
  if (::geteuid() == 0) return; // root may read everything
  const Saved saved;
  fs::permissions(saved.paths[2] + "/state.h5", fs::perms::none);
  refused(saved, "cannot open " + saved.paths[2] + "/state.h5: Permission denied");
}

TEST_CASE("what a run removes while it is read is looked for again, unless a step was named") {
  const Saved saved;
  int attempts = 0;
  const auto load = [&](const std::string& which) {
    return retry_if_removed(which, [&] {
      const ResumePoint point = saved.chosen(which);
      if (++attempts == 1) fs::remove_all(point.checkpoint);
      StateOnlyModel model(7);
      return load_checkpoint(point.checkpoint, model).step;
    });
  };
  CHECK(load("demo") == 20);
  CHECK(attempts == 2);
  attempts = 0;
  CHECK(is_removal(expect_error([&] { load("demo/20"); })));
  CHECK(attempts == 1);

  // A real one: a run saves and prunes meanwhile.
  std::atomic<bool> done = false;
  std::jthread writer([&] {
    RankGroup alone;
    CheckpointFolder folder(saved.root.path(), "demo", {.newest = 2});
    StateOnlyModel its(2);
    for (int64_t step = 40; step < 70; ++step) {
      TrainState state = state_of(step);
      state.options_toml = "model = \"nano\"\n";
      folder.save(its, state, false, alone);
    }
    done = true;
  });
  while (!done) CHECK(joined(saved.chosen("demo").notes) == "");
}
