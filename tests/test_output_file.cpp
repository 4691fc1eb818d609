// Files that a user names for output: which may be replaced.
#include "engine/system/output_file.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "engine/system/files.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"
#include "tools/common/output_kinds.h"

using namespace gpt2;

TEST_CASE("an earlier output and an empty file may be replaced, any other needs the flag") {
  const TemporaryFolder folder;
  const std::string path = folder / "page.html";
  CHECK_NOTHROW(refuse_foreign_file(path, kPageOutput, false)); // not there
  CHECK_NOTHROW(refuse_foreign_file("", kPageOutput, false));
  for (const bool overwrite : {false, true}) {
    const Error error = expect_error([&] { refuse_foreign_file(folder.path(), kPageOutput, overwrite); });
    CHECK(error.code() == ExitCode::usage);
    CHECK(mentions(error, folder.path() + " is a folder"));
  }
  write_file_atomic(path, "");
  CHECK_NOTHROW(refuse_foreign_file(path, kPageOutput, false));
  for (const std::string& head : {std::string(kPageOutput.marker), std::string(kPageOutput.older)}) {
    write_file_atomic(path, "<!DOCTYPE html>\n" + head);
    CHECK_NOTHROW(refuse_foreign_file(path, kPageOutput, false));
    CHECK_THROWS_AS(refuse_foreign_file(path, kDetailsOutput, false), Error);
  }
  for (const std::string& text : {std::string("my thesis"), "my notes on\n" + std::string(kPageOutput.marker),
                                  "<!DOCTYPE html>\n" + std::string(4000, ' ') + std::string(kPageOutput.marker)}) {
    write_file_atomic(path, text);
    const Error error = expect_error([&] { refuse_foreign_file(path, kPageOutput, false); });
    CHECK(error.code() == ExitCode::usage);
    CHECK(mentions(error, path + " exists, and it is not a page of"));
    CHECK(contains(error.hint(), "--overwrite"));
    CHECK_NOTHROW(refuse_foreign_file(path, kPageOutput, true));
  }
  std::filesystem::create_symlink("page.html", folder / "link"); // an output follows links
  CHECK_THROWS_AS(refuse_foreign_file(folder / "link", kPageOutput, false), Error);
}
