#include "engine/ranks/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/network/secret.h"
#include "engine/system/process.h"

namespace gpt2 {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;
constexpr int kDied = static_cast<int>(ExitCode::communication); // killed by a signal

bool is_set(const char* variable) {
  const char* const value = std::getenv(variable);
  return value && *value;
}

// In this process's environment, which the ranks inherit.
void set(const char* variable, const std::string& value) {
  if (::setenv(variable, value.c_str(), 1) != 0) throw std::bad_alloc(); // a rank must never inherit another's number
}

// Global: a signal handler has no other state.
int signal_pipe[2] = {-1, -1};

extern "C" void put_into_pipe(int signal) {
  const int saved_errno = errno;
  const auto number = static_cast<unsigned char>(signal);
  [[maybe_unused]] const ssize_t written = ::write(signal_pipe[1], &number, 1);
  errno = saved_errno;
}

// Self-pipe: delivers signals as bytes in a pipe. Signals that this process ignores (nohup) stay ignored.
class SignalPipe {
 public:
  SignalPipe() {
    if (::pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
      throw Error(ExitCode::communication, std::string("cannot make a pipe: ") + std::strerror(errno),
                  "check ulimit -n");
    }
    struct sigaction action = {};
    action.sa_handler = put_into_pipe;
    action.sa_flags = SA_RESTART;
    for (size_t i = 0; i < std::size(kSignals); ++i) {
      ::sigaction(kSignals[i], &action, &before_[i]);
      if (before_[i].sa_handler == SIG_IGN && kSignals[i] != SIGCHLD) ::sigaction(kSignals[i], &before_[i], nullptr);
    }
  }
  ~SignalPipe() {
    restore_handlers();
    ::close(signal_pipe[0]), ::close(signal_pipe[1]);
  }
  SignalPipe(const SignalPipe&) = delete;

  void restore_handlers() const {
    for (size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  }
  static int wait(seconds limit) { // the next signal, or 0
    pollfd pipe = {signal_pipe[0], POLLIN, 0};
    unsigned char number = 0;
    ::poll(&pipe, 1, static_cast<int>(std::chrono::milliseconds(limit).count()));
    return ::read(signal_pipe[0], &number, 1) == 1 ? number : 0;
  }

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP, SIGCHLD};
  struct sigaction before_[std::size(kSignals)];
};

int severity(int code) {
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::done:
      return 0;
    case ExitCode::stopped_early:
      return 1;
    case ExitCode::communication: // often because another rank failed
      return 2;
    default:
      return 3;
  }
}

class Ranks {
 public:
  Ranks(int count, char** argv, seconds patience) : patience_(patience) {
    set("GPT2_JOB", std::to_string(::getpid()) + "-" + to_hex(random_key()).substr(0, 16));
    // Other users cannot read it there. A token from the user is kept.
    if (!is_set("GPT2_JOB_TOKEN") && !is_set("GPT2_JOB_TOKEN_FILE")) set("GPT2_JOB_TOKEN", to_hex(random_key()));
    for (const char* const variable : {"GPT2_RANKS", "GPT2_LOCAL_RANKS"}) set(variable, std::to_string(count));
    for (int rank = 0; rank < count; ++rank) {
      for (const char* const variable : {"GPT2_RANK", "GPT2_LOCAL_RANK"}) set(variable, std::to_string(rank));
      start(argv);
    }
  }
  ~Ranks() { // after an exception
    send(SIGKILL);
    for (const pid_t process : running_) ::waitpid(process, nullptr, 0);
  }
  Ranks(const Ranks&) = delete;

  int wait_for_all() {
    while (!running_.empty()) {
      const int signal = SignalPipe::wait(seconds(1));
      if (signal == SIGTSTP) {
        pause();
      } else if (signal > 0 && signal != SIGCHLD) {
        send(signal);
      }
      collect();
      end_survivors();
    }
    return worst_code_;
  }

 private:
  void start(char** argv) {
    const pid_t parent = ::getpid();
    sigset_t all, before; // the new process must not run the handlers above
    sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, &before);
    const pid_t process = ::fork();
    if (process != 0) ::sigprocmask(SIG_SETMASK, &before, nullptr);
    if (process < 0) {
      throw Error(ExitCode::communication, std::string("cannot start a rank: ") + std::strerror(errno),
                  "check ulimit -u, or use fewer --gpus");
    }
    if (process > 0) {
      running_.push_back(process);
      return;
    }
    // Child: only async-signal-safe calls until exec.
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(kDied); // the parent ended before prctl
    if (const int nothing = ::open("/dev/null", O_RDONLY); nothing >= 0) ::dup2(nothing, STDIN_FILENO);
    signals_.restore_handlers();
    for (const int signal : kStopSignals) sigaddset(&before, signal); // until prepare_process() in the new program
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    ::execv("/proc/self/exe", argv);
    exit_with_line(ExitCode::communication, "error: cannot start a rank from /proc/self/exe\n");
  }

  void send(int signal) const {
    for (const pid_t process : running_) ::kill(process, signal);
  }

  // Ctrl-Z: the ranks are in their own process groups, so the terminal does not stop them.
  void pause() const {
    send(SIGSTOP);
    ::raise(SIGSTOP);
    send(SIGCONT);
  }

  void collect() {
    int status = 0;
    for (auto process = running_.begin(); process != running_.end();) {
      if (::waitpid(*process, &status, WNOHANG) != *process) {
        ++process;
        continue;
      }
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : kDied;
      if (severity(code) > severity(worst_code_)) worst_code_ = code;
      if (severity(code) >= severity(kDied) && !first_error_) first_error_ = Clock::now();
      process = running_.erase(process);
    }
  }

  // After an error of one rank: the others may wait for it until their join deadline.
  void end_survivors() {
    if (!first_error_) return;
    const auto since = Clock::now() - *first_error_;
    if (since > patience_ && !terminated_) terminated_ = true, send(SIGTERM);
    if (since > 2 * patience_) send(SIGKILL);
  }

  const seconds patience_;
  const SignalPipe signals_; // constructed before the first rank starts
  std::vector<pid_t> running_;
  int worst_code_ = 0; // of ended ranks
  std::optional<Clock::time_point> first_error_;
  bool terminated_ = false;
};

} // namespace

int run_ranks(int count, char** argv, seconds patience) { return Ranks(count, argv, patience).wait_for_all(); }

} // namespace gpt2
