// How the tools read their command lines. A header alone: engine/base stays without CLI11.
#pragma once

#include <CLI/CLI.hpp>

#include "engine/base/error.h"

namespace gpt2 {

// False after --help, whose text has been printed. Throws Error(usage).
inline bool parse_arguments(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::CallForHelp& help) {
    app.exit(help);
    return false;
  } catch (const CLI::ParseError& error) {
    throw Error(ExitCode::usage, error.what(), "see --help");
  }
}

} // namespace gpt2
