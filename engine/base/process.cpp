#include "engine/base/process.h"

#include <fcntl.h>
#include <unistd.h>

namespace gpt2 {
namespace {

volatile std::sig_atomic_t stop_requested = 0; // a signal handler can reach nothing but a global

extern "C" void request_stop(int) { stop_requested = 1; }

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

StopSignal::StopSignal() {
  stop_requested = 0;
  handle(SIGINT, old_interrupt_);
  handle(SIGTERM, old_terminate_);
  handle(SIGHUP, old_hangup_);
  if (old_hangup_.sa_handler == SIG_IGN) sigaction(SIGHUP, &old_hangup_, nullptr); // nohup: stay alive
}

StopSignal::~StopSignal() {
  sigaction(SIGINT, &old_interrupt_, nullptr);
  sigaction(SIGTERM, &old_terminate_, nullptr);
  sigaction(SIGHUP, &old_hangup_, nullptr);
}

bool StopSignal::requested() const { return stop_requested != 0; }

} // namespace gpt2
