#include "tools/common/tool_arguments.h"

#include <algorithm>
#include <string_view>

#include "engine/base/formatted.h"
#include "engine/base/nearest_name.h"
#include "tools/common/tool_help.h"

namespace gpt2 {
namespace {

// "a, b or c"
std::string alternatives(const std::vector<std::string>& words) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) out += (i == 0 ? "" : i + 1 < words.size() ? ", " : " or ") + words[i];
  return out;
}

// CLI11's message in the words of the trainer's.
std::string reworded(const CLI::App& command, const CLI::ParseError& error) {
  const std::string text = error.what();
  const auto between = [&](const std::string& begin, const std::string& end) {
    const size_t from = begin.size(), to = text.find(end, from);
    return text.starts_with(begin) && to != std::string::npos ? text.substr(from, to - from) : "";
  };
  if (error.get_name() == "RequiredError") {
    const std::string name = between("", " is required");
    return name.starts_with("-") ? "missing " + name : "missing argument " + upper_case(name);
  }
  if (const std::string name = between("Could not convert: ", " = "); !name.empty()) {
    const CLI::Option* const option = command.get_option_no_throw(name);
    const bool whole = option && !option->get_type_name().starts_with("FLOAT");
    return name + ": '" + text.substr(text.find(" = ") + 3) + "' is not a " + (whole ? "whole " : "") + "number";
  }
  if (const std::string name = between("", ":"); error.get_name() == "ArgumentMismatch" && !name.empty())
    return name + " needs a value";
  return text;
}

// A usage error in the words of the trainer's errors, with a hint.
Error usage_error(const CLI::App& app, const CLI::ParseError& error) {
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
  const std::string name = chosen.empty() ? app.get_name() : app.get_name() + " " + command.get_name();
  const bool incomplete = error.get_name() == "RequiredError";
  return {ExitCode::usage, reworded(command, error),
          (incomplete ? tool_usage(command, name) + "; " : "") + "see --help"};
}

} // namespace

CLI::Validator number_in(double low, double high) {
  return {[low, high](std::string& text) {
            double value = 0;
            const bool inside = CLI::detail::lexical_cast(text, value) && value >= low && value <= high;
            return inside ? std::string() : formatted("must be from %.15g to %.15g, not ", low, high) + text;
          },
          ""};
}

CLI::Validator number_from(int64_t low) {
  return {[low](std::string& text) {
            double value = 0;
            if (CLI::detail::lexical_cast(text, value) && value >= static_cast<double>(low)) return std::string();
            return low == 1 ? "must be above 0, not " + text
                            : "must be at least " + std::to_string(low) + ", not " + text;
          },
          ""};
}

CLI::Validator one_of(const std::vector<std::string>& words) {
  return {[words](std::string& text) {
            if (std::ranges::find(words, text) != words.end()) return std::string();
            return "must be " + alternatives(words) + ", not " + (text.empty() ? "empty" : text);
          },
          "{" + CLI::detail::join(words, ",") + "}"};
}

bool parse_arguments(CLI::App& app, int argc, char** argv) {
  use_tool_help(app);
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

} // namespace gpt2
