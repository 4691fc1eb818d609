#include "tools/common/child_process.h"

#include <doctest/doctest.h>

#include "tests/expect_error.h"

using namespace gpt2;

namespace {

std::string read_all(std::FILE* file) {
  std::string text;
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
  return text;
}

} // namespace

TEST_CASE("output, exit code and last words") {
  ChildProcess child({"sh", "-c", "echo one; echo first >&2; echo two; echo last >&2; exit 3"});
  CHECK(read_all(child.output()) == "one\ntwo\n");
  const ChildProcess::Ending ending = child.wait();
  CHECK(ending.status == 3);
  CHECK(ending.error_line == "last");
}

TEST_CASE("a child that is killed, and one that says nothing") {
  ChildProcess killed({"sh", "-c", "kill -9 $$"});
  CHECK(killed.wait().status == 128 + 9);
  ChildProcess silent({"true"});
  const ChildProcess::Ending ending = silent.wait();
  CHECK(ending.status == 0);
  CHECK(ending.error_line.empty());
}

TEST_CASE("a program that is not there") {
  const Error error = expect_error([] { ChildProcess child({"no-such-program"}); });
  CHECK(error.code() == ExitCode::data);
  CHECK(mentions(error, "cannot run no-such-program"));
}

TEST_CASE("a child that is left alone ends") {
  ChildProcess endless({"yes"}); // its pipe is closed, and it dies of that
}
