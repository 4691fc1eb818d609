#include "tools/common/tool_help.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "engine/base/formatted.h"
#include "engine/options/help.h"
#include "engine/system/terminal.h"

namespace gpt2 {

std::string upper_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

namespace {

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

} // namespace

std::string tool_usage(const CLI::App& app, const std::string& name) {
  std::string usage = "bin/" + name;
  if (app.get_require_subcommand_min() > 0) usage += " COMMAND";
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional())
      usage += option->get_required() ? " " + argument_name(*option) : " [" + argument_name(*option) + "]";
    else if (option->get_required())
      usage += " --" + option->get_lnames().front() + " " + value_name(*option);
  }
  return usage + " [OPTIONS]";
}

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

void use_tool_help(CLI::App& app) {
  app.formatter_fn([](const CLI::App* shown, const std::string& name, CLI::AppFormatMode) {
    return tool_help(*shown, name, static_cast<size_t>(std::clamp(terminal_columns(), 40, 120)));
  });
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) use_tool_help(*command);
}

} // namespace gpt2
