#include <unistd.h>

#include <thread>

#include "engine/backend/backend.h"
#include "engine/base/log.h"
#include "engine/system/process.h"
#include "tools/doctor/checks.h"

namespace gpt2 {

void check_machine(const Report& report) {
  const double memory = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  report({"program", Level::ok, "train_gpt2_fp8 " GPT2_VERSION ", " + cuda_version()});
  report({"machine", Level::ok,
          host_name() + ": " + std::to_string(std::thread::hardware_concurrency()) + " cores, " + format_bytes(memory) +
              " of memory"});
}

} // namespace gpt2
