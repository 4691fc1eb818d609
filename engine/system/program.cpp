#include "engine/system/program.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>
#include <string>
#include <system_error>

#include "engine/system/process.h"
#include "engine/system/terminal.h"

namespace gpt2 {

void print_error(const Error& error) {
  constexpr size_t kContinued = 4; // indent of wrapped lines
  std::string text = "error: " + std::string(error.what()) + (error.hint().empty() ? "" : " (" + error.hint() + ")");
  if (is_terminal(STDERR_FILENO)) text = wrap_text(text, static_cast<size_t>(terminal_columns()), kContinued);
  std::cerr << (wants_color(STDERR_FILENO) ? colored(text, Color::red) : text) + "\n";
}

namespace {

// std::cout writes through stdout, whose error flag is sticky.
bool output_was_lost() {
  const bool failed = std::fflush(stdout) != 0 || std::ferror(stdout);
  pollfd output{STDOUT_FILENO, 0, 0};
  return failed && (::poll(&output, 1, 0) < 0 ||
                    (output.revents & (POLLERR | POLLHUP)) == 0); // POLLERR, POLLHUP: the reader is gone
}

// Only libraries call exit(): our programs return from main. Out of memory, libhdf5 exits with -1, silently, and
// libgomp with 1. Other statuses are kept, except 0, which would mean success.
void report_exit(int status) {
  if (status == -1) exit_out_of_memory();
  char line[64];
  const int length = std::snprintf(line, sizeof line, "error: a library ended the program (exit status %d)\n", status);
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, static_cast<size_t>(length));
  if (status == 1) ::_exit(static_cast<int>(ExitCode::device));
  if (status == 0) ::_exit(1);
}

class ExitWatch {
 public:
  ExitWatch() {
    static const int watched = ::on_exit(
        [](int status, void*) {
          if (running) report_exit(status);
        },
        nullptr);
    running = watched == 0;
  }
  ~ExitWatch() { running = false; }
  ExitWatch(const ExitWatch&) = delete;
  ExitWatch& operator=(const ExitWatch&) = delete;

 private:
  static inline std::atomic<bool> running = false; // static: an exit handler has no other access to state
};

ExitCode run_and_print(const std::function<ExitCode()>& body) {
  const ExitCode code = body();
  if (!output_was_lost()) return code;
  print_error(Error(ExitCode::disk, "cannot write standard output", "free some disk space, or redirect it elsewhere"));
  return code == ExitCode::done ? ExitCode::disk : code; // other codes are more specific
}

} // namespace

int run_program(const std::function<ExitCode()>& body) {
  prepare_process();
  const ExitWatch watch;
  const auto failed = [](const Error& error) {
    print_error(error);
    return static_cast<int>(error.code());
  };
  try {
    return static_cast<int>(run_and_print(body));
  } catch (const Error& error) {
    return failed(error);
  } catch (const std::bad_alloc&) {
    std::fflush(stdout);
    exit_out_of_memory();
  } catch (const std::filesystem::filesystem_error& error) {
    return failed(Error(ExitCode::disk, error.what(), "check the path, who may use it, and the disk"));
  } catch (const std::system_error& error) { // a thread could not be started
    return failed(Error(ExitCode::device, error.what(), "see what ulimit -u, -v and -n allow"));
  } catch (const std::exception& error) {
    print_error(Error(ExitCode::usage, error.what(), "this is a bug: please report it with the command line"));
    return 1;
  }
}

} // namespace gpt2
