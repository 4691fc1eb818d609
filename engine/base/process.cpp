#include "engine/base/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>

namespace gpt2 {

void prepare_process() {
  int descriptor = 0;
  while (descriptor >= 0 && descriptor <= STDERR_FILENO) descriptor = open("/dev/null", O_RDWR);
  if (descriptor > STDERR_FILENO) close(descriptor);
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
}

} // namespace gpt2
