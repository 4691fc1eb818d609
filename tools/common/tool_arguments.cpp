#include "tools/common/tool_arguments.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "engine/base/formatted.h"
#include "engine/base/nearest_name.h"
#include "engine/options/help.h"
#include "engine/system/terminal.h"

namespace gpt2 {
namespace {

const char* const kNeedsValue = " needs a value";

// ---- help, printed as the trainer prints its own ----

std::string upper_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

// CLI11 appends what it checks: "TEXT:{auto,cuda,cpu}", "FLOAT:FLOAT in [0 - 1]", "RUN ...".
std::string value_name(const CLI::Option& option) {
  const std::string type = option.get_type_name(), own = type.substr(0, type.find(':'));
  if (const size_t open = type.find(":{"), close = type.find('}'); open != std::string::npos) {
    std::string choices = type.substr(open + 2, close - open - 2);
    std::ranges::replace(choices, ',', '|');
    return choices;
  }
  return own == "INT" || own == "UINT" || own == "FLOAT" ? "N" : own;
}

bool takes_several(const CLI::Option& option) {
  return option.get_expected_max() >= CLI::detail::expected_max_vector_size;
}

// "MODEL", "RUN..."
std::string argument_name(const CLI::Option& option) {
  return upper_case(option.get_name(true)) + (takes_several(option) ? "..." : "");
}

// "MODEL", "-o, --output FILE"
std::string name_of(const CLI::Option& option) {
  std::string names = option.get_positional() ? argument_name(option) : "";
  for (const std::string& name : option.get_snames()) names += (names.empty() ? "-" : ", -") + name;
  for (const std::string& name : option.get_lnames()) names += (names.empty() ? "--" : ", --") + name;
  const std::string value = value_name(option);
  if (option.get_positional() || value.empty()) return names; // a flag has no value
  return names + (option.get_expected_min() == 0 ? " [" + value + "]" : " " + value);
}

std::string default_of(const CLI::Option& option) {
  const std::string text = option.get_default_str();
  if (text.empty() || text == "\"\"" || text == "[]" || text == "{}") return "";
  const std::string type = option.get_type_name();
  if (!type.starts_with("FLOAT")) return text;
  double number = 0;
  return CLI::detail::lexical_cast(text, number) ? formatted("%g", number) : text;
}

std::string meaning_of(const CLI::Option& option) {
  const std::string value = default_of(option);
  return option.get_description() + (value.empty() ? "" : " [" + value + "]");
}

// A command's description is a part of a list.
std::string sentence(std::string text) {
  text[0] = upper_case(text.substr(0, 1))[0];
  return text.ends_with('.') ? text : text + ".";
}

// "bin/ckpt show CHECKPOINT [OPTIONS]"; `name`: of the program and its command, as "ckpt show".
std::string tool_usage(const CLI::App& app, const std::string& name) {
  std::string usage = "bin/" + name;
  if (app.get_require_subcommand_min() > 0) usage += " COMMAND";
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional())
      usage += option->get_required() ? " " + argument_name(*option) : " [" + argument_name(*option) + "]";
    else if (option->get_required())
      usage += " --" + option->get_lnames().front() + " " + value_name(*option);
  }
  return usage + (app.get_allow_extras() ? " [OPTIONS] [OPTIONS of train_gpt2_fp8]" : " [OPTIONS]");
}

// What `app` does, its usage, then its arguments and flags by group, with defaults in brackets.
std::string tool_help(const CLI::App& app, const std::string& name, size_t columns) {
  std::string out = wrap_text(sentence(app.get_description()), columns, 0) + "\n\n" +
                    wrap_text("Usage: " + tool_usage(app, name), columns, 6) + "\n";
  if (const auto commands = app.get_subcommands([](const CLI::App*) { return true; }); !commands.empty()) {
    out += "\nCommands\n";
    for (const CLI::App* command : commands)
      out += help_entry(command->get_name(), command->get_description(), columns);
    out += wrap_text("bin/" + name + " COMMAND --help explains one.", columns, 0) + "\n";
  }
  for (const std::string& group : app.get_groups()) {
    std::string entries;
    for (const CLI::Option* option : app.get_options())
      if (option->get_group() == group && option != app.get_help_ptr())
        entries += help_entry(name_of(*option), meaning_of(*option), columns);
    if (!entries.empty()) out += "\n" + group + "\n" + entries;
  }
  out += "\n" + help_entry("-h, --help", "print this and exit", columns);
  return out + (app.get_footer().empty() ? "" : "\n" + wrap_text(app.get_footer(), columns, 0) + "\n");
}

// Makes --help of `app` and of its commands print tool_help().
void use_tool_help(CLI::App& app) {
  app.formatter_fn([](const CLI::App* shown, const std::string& name, CLI::AppFormatMode) {
    return tool_help(*shown, name, static_cast<size_t>(std::clamp(terminal_columns(), 40, 120)));
  });
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) use_tool_help(*command);
}

// A path that is empty (--data "$DATA" without DATA) or looks like a flag (--svg --overwrite) is a mistake.
void refuse_missing_paths(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = value_name(*option);
    if (type != "FILE" && type != "PATH" && type != "DIR") continue;
    option->check(CLI::Validator(
        [](std::string& text) { return text.empty() || text.starts_with("--") ? std::string(kNeedsValue) : ""; }, ""));
  }
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) refuse_missing_paths(*command);
}

// ---- usage errors, in the words of the trainer's ----

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
  if (text.ends_with(kNeedsValue)) return between("", ":") + kNeedsValue; // of refuse_missing_paths
  if (const std::string name = between("", ":"); error.get_name() == "ArgumentMismatch" && !name.empty())
    return name + (text.find("At Most") == std::string::npos ? kNeedsValue : " is given more than once");
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
  if (!unknown.empty() && !app.get_allow_extras()) {
    const std::string word = unknown.front().substr(0, unknown.front().find('='));
    const bool is_flag = word.starts_with("-");
    return {ExitCode::usage, is_flag ? "unknown flag " + word : "unexpected argument '" + word + "'",
            did_you_mean(word, is_flag ? flags : commands, "see --help")};
  }
  if (chosen.empty() && !commands.empty())
    return {ExitCode::usage, "missing command: " + listed(commands, ", ", " or "), "see --help"};
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
            return "must be " + listed(words, ", ", " or ") + ", not " + (text.empty() ? "empty" : text);
          },
          "{" + CLI::detail::join(words, ",") + "}"};
}

bool parse_arguments(CLI::App& app, int argc, char** argv) {
  use_tool_help(app);
  refuse_missing_paths(app);
  for (int i = 1; i < argc; ++i) { // CLI11 would take "--" for the end of the flags, and "---" for a file
    const std::string_view word = argv[i];
    if (word.starts_with("--") && word.substr(0, word.find('=')).find_first_not_of('-') == std::string_view::npos)
      throw Error(ExitCode::usage, "'" + std::string(word) + "' names no flag", "see --help");
    if (word.starts_with("--") && word.find('=') == word.size() - 1) // CLI11 would take the next word for the value
      throw Error(ExitCode::usage, std::string(word.substr(0, word.size() - 1)) + kNeedsValue, "see --help");
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
