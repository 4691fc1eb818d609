#include "engine/base/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>

namespace gpt2 {
namespace {

// A signal handler can reach nothing but globals.
volatile std::sig_atomic_t stop_requested = 0;
volatile std::sig_atomic_t stderr_is_terminal = 0;
bool handling = false;

extern "C" void request_stop(int) {
  stop_requested = 1;
  const int saved_errno = errno;
  // On a terminal it replaces the progress bar and the echoed ^C.
  constexpr char kPlain[] = "stopping after this step; again to quit now\n";
  constexpr char kOverBar[] = "\r\x1b[Kstopping after this step; again to quit now\n";
  const ssize_t written = stderr_is_terminal ? write(STDERR_FILENO, kOverBar, sizeof kOverBar - 1)
                                             : write(STDERR_FILENO, kPlain, sizeof kPlain - 1);
  (void)written; // a lost terminal cannot be told
  errno = saved_errno;
}

void handle(int signal, struct sigaction& old) {
  struct sigaction action = {};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART | SA_RESETHAND; // back to the default after the first: the second one kills
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, &old);
}

} // namespace

void prepare_process() {
  int descriptor = 0;
  while (descriptor >= 0 && descriptor <= STDERR_FILENO) descriptor = open("/dev/null", O_RDWR);
  if (descriptor > STDERR_FILENO) close(descriptor);
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
}

std::string host_name() {
  char name[256] = "localhost";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string program_as_called() { return program_invocation_name; }

StopSignal::StopSignal() : outermost_(!handling) {
  if (!outermost_) return;
  handling = true;
  stop_requested = 0;
  const char* const term = std::getenv("TERM");
  stderr_is_terminal = isatty(STDERR_FILENO) && term != nullptr && std::string_view(term) != "dumb";
  handle(SIGINT, old_interrupt_);
  handle(SIGTERM, old_terminate_);
  handle(SIGHUP, old_hangup_);
  if (old_hangup_.sa_handler == SIG_IGN) sigaction(SIGHUP, &old_hangup_, nullptr); // nohup: stay alive
  handle(SIGUSR1, old_user_);
}

StopSignal::~StopSignal() {
  if (!outermost_) return;
  handling = false;
  sigaction(SIGINT, &old_interrupt_, nullptr);
  sigaction(SIGTERM, &old_terminate_, nullptr);
  sigaction(SIGHUP, &old_hangup_, nullptr);
  sigaction(SIGUSR1, &old_user_, nullptr);
}

bool StopSignal::requested() const { return stop_requested != 0; }

} // namespace gpt2
