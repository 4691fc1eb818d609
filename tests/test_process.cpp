// How a process ends: by its own exit code, by a signal, for want of memory. Each case ends a child of the test.
#include "engine/system/process.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>

#include "engine/hdf5/handle.h"
#include "engine/system/program.h"
#include "tests/contains.h"

using namespace gpt2;

namespace {

struct Ending {
  int code = -1, signal = 0;
  std::string error; // what it printed on stderr
};

Ending ending_of(const std::function<int()>& body) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  std::fflush(stdout); // or exit() in the child would print it again
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    ::dup2(ends[1], STDERR_FILENO);
    ::_exit(body());
  }
  ::close(ends[1]);
  Ending ending;
  char block[4096];
  for (ssize_t got = 0; (got = ::read(ends[0], block, sizeof block)) > 0;)
    ending.error.append(block, static_cast<size_t>(got));
  ::close(ends[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFEXITED(status)) ending.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) ending.signal = WTERMSIG(status);
  return ending;
}

Ending ending_of_program(const std::function<ExitCode()>& body) {
  return ending_of([&] { return run_program(body); });
}

} // namespace

#ifndef __SANITIZE_ADDRESS__ // which has its own words for a crash

TEST_CASE("a crash, or a signal that was sent, ends the process by it, whatever failed before") {
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT}) {
    for (const int failed_before : {0, ENOMEM}) {
      for (const bool with_hdf5 : {false, true}) {
        CAPTURE(signal);
        CAPTURE(failed_before);
        const Ending ending = ending_of([&] {
          prepare_process();
          errno = failed_before;
          if (with_hdf5) const Hdf5Silence silence; // over by now
          errno = failed_before;
          ::kill(::getpid(), signal);
          return 0;
        });
        CHECK(ending.signal == signal);
        CHECK(ending.error.empty());
      }
    }
  }
  CHECK(ending_of([] {
          prepare_process();
          const Hdf5Silence silence;
          errno = ENOMEM;
          ::kill(::getpid(), SIGSEGV); // not libhdf5's
          return 0;
        }).signal == SIGSEGV);
  CHECK(ending_of([]() -> int {
          prepare_process();
          errno = ENOMEM; // somebody coped with it
          const Hdf5Silence silence;
          std::abort();
        }).signal == SIGABRT);
}

TEST_CASE("libhdf5 that crashes without memory ends the program with one line and exit code 6") {
  for (const bool by_abort : {false, true}) {
    const Ending ending = ending_of([&] {
      prepare_process();
      const Hdf5Silence silence;
      { const Hdf5Silence inner; }
      errno = ENOMEM;
      if (by_abort) std::abort();
      int* volatile nothing = nullptr;
      return *nothing;
    });
    CHECK(ending.code == 6);
    CHECK(contains(ending.error, "error: out of memory"));
  }
}

#endif

TEST_CASE("a signal after the work is done does not change how the program ends") {
  for (const bool deferred : {false, true}) {
    const Ending ending = ending_of([&] {
      {
        const StopSignal stop;
        if (deferred) stop.defer();
      }
      ::kill(::getpid(), SIGTERM);
      return 8;
    });
    CHECK(ending.code == 8);
  }
}

TEST_CASE("a library that calls exit() is named with its status") {
  const auto exits = [](int status) { return ending_of_program([=]() -> ExitCode { std::exit(status); }); };
  struct Case {
    int status, code;
  };
  for (const auto& [status, code] : {Case{1, 6}, Case{3, 3}, Case{13, 13}, Case{0, 1}}) {
    const Ending ending = exits(status);
    CHECK(ending.code == code);
    CHECK(ending.error == "error: a library ended the program (exit status " + std::to_string(status) + ")\n");
  }
  const Ending of_libhdf5 = exits(-1);
  CHECK(of_libhdf5.code == 6);
  CHECK(contains(of_libhdf5.error, "error: out of memory"));
}

TEST_CASE("a file system that fails is the disk's exit code, a thread that cannot be had the device's") {
  const Ending of_disk = ending_of_program([]() -> ExitCode {
    std::filesystem::rename("/nowhere/a", "/nowhere/b");
    return ExitCode::done;
  });
  CHECK(of_disk.code == 8);
  CHECK(contains(of_disk.error, "/nowhere/a"));
  CHECK_FALSE(contains(of_disk.error, "ulimit"));
  const Ending of_thread = ending_of_program(
      []() -> ExitCode { throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)); });
  CHECK(of_thread.code == 6);
  CHECK(contains(of_thread.error, "ulimit"));
}
