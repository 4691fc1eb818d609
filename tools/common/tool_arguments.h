// Command lines of the tools. Header-only: engine/base does not depend on CLI11.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/base/nearest_name.h"
#include "engine/system/program.h"

namespace gpt2 {

// CLI::Range for real numbers: CLI::Range accepts NaN.
inline CLI::Validator number_in(double low, double high) {
  return {[low, high](std::string& text) {
            double value = 0;
            const bool inside = CLI::detail::lexical_cast(text, value) && value >= low && value <= high;
            return inside ? std::string() : formatted("must be from %g to %g, not ", low, high) + text;
          },
          ""};
}

// "a, b or c"
inline std::string alternatives(const std::vector<std::string>& words) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) out += (i == 0 ? "" : i + 1 < words.size() ? ", " : " or ") + words[i];
  return out;
}

// A usage error in the words of the trainer's errors, with a hint.
inline Error usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen.back();
  std::vector<std::string> commands, flags;
  for (const CLI::App* subcommand : command.get_subcommands([](const CLI::App*) { return true; }))
    commands.push_back(subcommand->get_name());
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);

  const std::vector<std::string> unknown = app.remaining(true);
  if (!unknown.empty()) {
    const std::string word = unknown.front().substr(0, unknown.front().find('='));
    const bool is_flag = word.starts_with("-");
    return {ExitCode::usage, is_flag ? "unknown flag " + word : "unexpected argument '" + word + "'",
            did_you_mean(word, is_flag ? flags : commands, "see --help")};
  }
  if (chosen.empty() && !commands.empty())
    return {ExitCode::usage, "missing command: " + alternatives(commands), "see --help"};
  return {ExitCode::usage, error.what(), "see --help"};
}

// The flag of every tool that writes a file named by the user (engine/system/output_file.h).
inline void add_overwrite(CLI::App& app, bool& overwrite,
                          const std::string& what = "replace an existing file, of any origin") {
  app.add_flag("--overwrite", overwrite, what);
}

// Returns false after printing --help. Throws Error(usage).
inline bool parse_arguments(CLI::App& app, int argc, char** argv) {
  for (int i = 1; i < argc; ++i) { // CLI11 would take "--" for the end of the flags, and "---" for a file
    const std::string_view word = argv[i];
    if (word.starts_with("--") && word.substr(0, word.find('=')).find_first_not_of('-') == std::string_view::npos)
      throw Error(ExitCode::usage, "'" + std::string(word) + "' names no flag", "see --help");
  }
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::CallForHelp& help) {
    app.exit(help);
    return false;
  } catch (const CLI::ParseError& error) {
    throw usage_error(app, error);
  }
}

// The main() of a tool: parse the options, then run.
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
