// A log whose disk fills up, whose folder is removed: the run hears of it and goes on.
#include "engine/logging/log_file.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/system/files.h"
#include "tests/contains.h"
#include "tests/expect_error.h"
#include "tests/file_size_limit.h"
#include "tests/temporary_folder.h"

using namespace gpt2;
namespace fs = std::filesystem;

namespace {

struct Warnings {
  std::vector<std::string> lines;
  Warn warn() {
    return [this](const std::string& line) { lines.push_back(line); };
  }
};

} // namespace

TEST_CASE("a full disk: one warning, no torn record, and the log goes on when there is room") {
  const TemporaryFolder folder;
  const std::string path = folder / "log";
  Warnings warnings;
  LogFile log(path, AppendFile::Mode::create, warnings.warn());
  log.append("first\n");
  for (int time = 0; time < 2; ++time) {
    {
      const FileSizeLimit limit(fs::file_size(path) + 3); // the system takes three bytes of the record
      for (int i = 0; i < 5; ++i) log.append("lost record\n");
    }
    log.append("later\n");
  }
  log.flush();
  CHECK(read_text_file(path) == "first\nlater\nlater\n");
  REQUIRE(warnings.lines.size() == 2);
  CHECK(contains(warnings.lines[0], "cannot write " + path + ": File too large; the run continues"));
  CHECK(warnings.lines[1] == path + " is written again; 5 records are missing");
}

TEST_CASE("a removed folder is noticed at the next flush and made again, with the head of the file") {
  const TemporaryFolder folder;
  const std::string path = folder / "runs/run/log";
  make_folders(folder / "runs/run");
  Warnings warnings;
  LogFile log(path, AppendFile::Mode::create, warnings.warn());
  log.append_to_head("version\n");
  log.append("one\n");
  fs::remove_all(folder / "runs");
  log.append("two\n"); // into a file without a name
  log.flush();
  log.append("three\n");
  log.flush();
  CHECK(read_text_file(path) == "version\nthree\n");
  REQUIRE(warnings.lines.size() == 1);
  CHECK(contains(warnings.lines[0], path + " was removed"));
}

TEST_CASE("a folder that cannot be made again is a warning, and tried again") {
  const TemporaryFolder folder;
  const std::string path = folder / "run/log";
  make_folders(folder / "run");
  Warnings warnings;
  LogFile log(path, AppendFile::Mode::create, warnings.warn());
  log.append_to_head("version\n");
  fs::remove_all(folder / "run");
  std::ofstream(folder / "run") << "in the way";
  for (int i = 0; i < 3; ++i) log.flush(), log.append("lost\n");
  fs::remove(folder / "run");
  log.flush();
  log.append("kept\n");
  CHECK(read_text_file(path) == "version\nkept\n");
  REQUIRE(warnings.lines.size() == 3); // removed, cannot be made, written again
  CHECK(contains(warnings.lines[1], folder / "run"));
  CHECK(contains(warnings.lines[2], "3 records are missing"));
}

TEST_CASE("a file that was moved away is not written to any more; one that comes back is continued") {
  const TemporaryFolder folder;
  const std::string path = folder / "log";
  Warnings warnings;
  LogFile log(path, AppendFile::Mode::create, warnings.warn());
  log.append_to_head("version\n");
  fs::rename(path, folder / "elsewhere"); // as if its disk were unmounted
  log.flush();
  fs::rename(folder / "elsewhere", path); // and mounted again
  log.flush();
  log.append("later\n");
  CHECK(read_text_file(path) == "version\nlater\n");
}

TEST_CASE("at the start a failure is still an Error(disk)") {
  const TemporaryFolder folder;
  const Error error = expect_error([&] { LogFile(folder / "absent/log", AppendFile::Mode::create, {}); });
  CHECK(error.code() == ExitCode::disk);
}
