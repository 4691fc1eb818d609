#include "engine/base/program.h"

#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <system_error>

#include "engine/base/process.h"

namespace gpt2 {

void print_error(const Error& error) {
  std::cerr << "error: " + std::string(error.what()) + (error.hint().empty() ? "" : " (" + error.hint() + ")") + "\n";
}

int run_program(const std::function<ExitCode()>& body) {
  prepare_process();
  try {
    return static_cast<int>(body());
  } catch (const Error& error) {
    print_error(error);
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    std::cerr << "error: out of memory (use a smaller --batch_size or --model)\n";
    return static_cast<int>(ExitCode::device);
  } catch (const std::system_error& error) { // a thread that cannot be started
    std::cerr << "error: " << error.what() << " (see what ulimit -u, -v and -n allow)\n";
    return static_cast<int>(ExitCode::device);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << " (this is a bug: please report it with the command line)\n";
    return 1;
  }
}

} // namespace gpt2
