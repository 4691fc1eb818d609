#include "engine/system/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <new>

#include "engine/system/files.h"
#include "engine/system/terminal.h"

namespace gpt2 {
namespace {

constexpr int64_t kSameSignal = 100'000'000; // ns: repeats within this time count as one signal

// Globals: a signal handler has no other access to state.
std::atomic<bool> stop_requested = false, stop_deferred = false;
std::atomic<int64_t> first_signal[NSIG]; // nanoseconds; 0: none yet
std::atomic<bool> stderr_is_terminal = false;
std::atomic<const std::vector<std::string>*> unused_paths = nullptr; // an UnusedFolders' locks and folders
bool handling = false;
StopMessages stop_words;

void write_line(std::string_view line) {
  constexpr std::string_view kOverBar = "\r\x1b[K"; // clears the progress bar and the echoed ^C
  ssize_t written = stderr_is_terminal ? write(STDERR_FILENO, kOverBar.data(), kOverBar.size()) : 0;
  written += write(STDERR_FILENO, line.data(), line.size());
  (void)written; // the terminal may be lost
}

[[noreturn]] void exit_stopped(std::string_view line) {
  write_line(line);
  _exit(static_cast<int>(ExitCode::stopped_early));
}

[[noreturn]] void exit_at_once() {
  if (const auto* paths = unused_paths.load())
    for (const std::string& path : *paths) path.ends_with("/.lock") ? unlink(path.c_str()) : rmdir(path.c_str());
  exit_stopped(stop_words.at_once);
}

int64_t now_in_nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

extern "C" void handle_stop_signal(int signal) {
  const int saved_errno = errno;
  if (!stop_deferred) exit_at_once();
  const int64_t now = now_in_nanoseconds();
  int64_t first = 0;
  if (first_signal[signal].compare_exchange_strong(first, now)) {
    if (!stop_requested.exchange(true)) write_line(stop_words.later);
  } else if (now - first > kSameSignal) {
    exit_stopped(stop_words.again);
  }
  errno = saved_errno;
}

std::terminate_handler usual_terminate = nullptr;

// Handler of uncaught exceptions. `throw;` allocates nothing. An exception that leaves an inlined noexcept function has
// no current_exception() (GCC before 14): then errno decides.
[[noreturn]] void end_uncaught() {
  if (!std::current_exception() && std::uncaught_exceptions() > 0 && errno == ENOMEM) exit_out_of_memory();
  try {
    if (std::current_exception()) throw;
  } catch (const std::bad_alloc&) {
    exit_out_of_memory();
  } catch (...) { // the default handler prints it
  }
  usual_terminate();
  std::abort();
}

// 101: before any other object is constructed, for that may be what runs out of memory.
__attribute__((constructor(101))) void install_terminate() { usual_terminate = std::set_terminate(end_uncaught); }

thread_local volatile bool inside_hdf5 = false;

// For any other crash, and for a signal from another process, the default action follows, with its core file.
extern "C" void handle_crash(int signal, siginfo_t* info, void*) {
  const bool own = info->si_code > 0 || (signal == SIGABRT && info->si_code == SI_TKILL); // own fault, or abort()
  if (inside_hdf5 && errno == ENOMEM && own) exit_out_of_memory();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void install_crash_handler() {
#ifndef __SANITIZE_ADDRESS__    // a sanitizer reports crashes itself
  static char memory[32 << 10]; // handler stack of the main thread, for a stack overflow
  stack_t stack = {};
  stack.ss_sp = memory;
  stack.ss_size = sizeof memory;
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = handle_crash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT}) sigaction(signal, &action, nullptr);
#endif
}

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kStopSignals) sigaddset(&set, signal);
  return set;
}

} // namespace

void prepare_process() {
  int descriptor = 0;
  while (descriptor >= 0 && descriptor <= STDERR_FILENO) descriptor = open("/dev/null", O_RDWR);
  if (descriptor > STDERR_FILENO) close(descriptor);
  install_crash_handler();
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  const sigset_t blocked = stop_signals();
  sigprocmask(SIG_UNBLOCK, &blocked, nullptr);
}

void exit_with_line(ExitCode code, std::string_view line) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
  _exit(static_cast<int>(code));
}

void exit_out_of_memory() {
  exit_with_line(ExitCode::device, "error: out of memory (use a smaller batch or model, or a machine that has more)\n");
}

InsideHdf5::InsideHdf5() : outermost_(!inside_hdf5) {
  if (!outermost_) return;
  errno = 0; // an earlier, handled failure must not explain a crash in this scope
  inside_hdf5 = true;
}

InsideHdf5::~InsideHdf5() {
  if (outermost_) inside_hdf5 = false;
}

std::string host_name() {
  char name[256] = "localhost";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string program_as_called() { return program_invocation_name; }

StopSignal::StopSignal(const StopMessages& words) : outermost_(!handling) {
  if (!outermost_) return;
  handling = true;
  stop_words = words;
  stop_requested = stop_deferred = false;
  for (const int signal : kStopSignals) first_signal[signal] = 0;
  stderr_is_terminal = is_terminal(STDERR_FILENO);
  struct sigaction action = {};
  action.sa_handler = handle_stop_signal;
  action.sa_flags = SA_RESTART;
  action.sa_mask = stop_signals();
  for (const int signal : kStopSignals) {
    struct sigaction old;
    sigaction(signal, &action, &old);
    if (signal == SIGHUP && old.sa_handler == SIG_IGN) sigaction(signal, &old, nullptr); // nohup: stay alive
  }
}

StopSignal::~StopSignal() {
  if (!outermost_) return;
  handling = false;
  stop_deferred = true; // the work is done: the program ends with its own exit code
}

void StopSignal::defer() const { stop_deferred = true; }

void StopSignal::answer_at_once() const {
  stop_deferred = false;
  if (stop_requested) exit_at_once();
}

bool StopSignal::requested() const { return stop_requested; }

UnusedFolders::UnusedFolders(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    const std::vector<std::string> missing = missing_folders(folder);
    if (!missing.empty()) paths_.push_back(folder + "/.lock");
    paths_.insert(paths_.end(), missing.begin(), missing.end());
  }
  unused_paths = &paths_;
}

UnusedFolders::~UnusedFolders() {
  unused_paths = nullptr;
  for (const std::string& path : paths_) rmdir(path.c_str()); // a .lock stays: it is another run's by now
}

} // namespace gpt2
