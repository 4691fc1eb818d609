// How the tools read their command lines. A header alone: engine/base stays without CLI11.
#pragma once

#include <CLI/CLI.hpp>

#include "engine/base/error.h"
#include "engine/base/program.h"

namespace gpt2 {

// CLI::Range for numbers that are not whole: it would let NaN through.
inline CLI::Validator number_in(double low, double high) {
  const auto range = "[" + CLI::detail::to_string(low) + " - " + CLI::detail::to_string(high) + "]";
  return {[low, high, range](std::string& text) {
            double value = 0;
            const bool inside = CLI::detail::lexical_cast(text, value) && value >= low && value <= high;
            return inside ? std::string() : "'" + text + "' is no number in " + range;
          },
          "FLOAT in " + range};
}

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

// The main() of a tool: its options, then its work.
template <class Command>
int run_tool(int argc, char** argv, const std::string& description, const std::string& name,
             void (*add_options)(CLI::App&, Command&), ExitCode (*run)(Command&)) {
  return run_program([&] {
    CLI::App app(description, name);
    Command command;
    add_options(app, command);
    return parse_arguments(app, argc, argv) ? run(command) : ExitCode::done;
  });
}

} // namespace gpt2
