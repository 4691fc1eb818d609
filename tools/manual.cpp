// Prints a completion script or the man page of train_gpt2_fp8, which runs this for --completion and --man_page.
#include <iostream>

#include "engine/backend/backend.h"
#include "engine/options/parse_options.h"
#include "engine/system/program.h"
#include "tools/manual/manual.h"

int main(int argc, char** argv) {
  using namespace gpt2;
  return run_program([&] {
    const std::string version = "train_gpt2_fp8 " GPT2_VERSION ", " + cuda_version();
    const auto line = parse_options(argc, argv, version);
    if (!line) return ExitCode::done;
    if (line->manual.empty())
      throw Error(ExitCode::usage, "no text is named", "use --completion bash, --completion zsh or --man_page");
    std::cout << (line->manual == "man" ? man_page(version) : completion_script(line->manual));
    return ExitCode::done;
  });
}
