#include "tools/manual/manual.h"

#include <cctype>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/base/split.h"
#include "engine/options/help.h"

namespace gpt2 {
namespace {

// ---- completion ----

// The literal values of an option. A name in capitals (FILE, INT) means any value.
std::vector<std::string> choices_of(const std::string& name, const std::string& value_name) {
  if (name == "model") return {"auto", "nano", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"};
  std::vector<std::string> words;
  for (const std::string& word : split(value_name, '|'))
    if (!word.empty() && std::islower(static_cast<unsigned char>(word.front()))) words.push_back(word);
  return words;
}

bool names_a_file(const std::string& value_name) {
  return value_name == "FILE" || value_name.starts_with("DIR") || value_name == "GLOB";
}

std::string bash_completion() {
  std::string cases, flags;
  const auto add = [&](const std::string& name, const std::string& value_name) {
    flags += " --" + name;
    if (value_name.empty()) return;
    const std::vector<std::string> words = choices_of(name, value_name);
    cases += "    --" + name + ") ";
    if (!words.empty()) cases += "COMPREPLY=($(compgen -W '" + listed(words, " ") + "' -- \"$current\")); ";
    if (names_a_file(value_name)) cases += "COMPREPLY=($(compgen -f -- \"$current\")); ";
    cases += "return ;;\n";
  };
  for (const OptionField& field : option_fields()) {
    add(field.name, field.value_name);
    if (field.is_switch()) flags += " --no-" + field.name;
  }
  for (const Action& action : actions()) add(action.name, action.value_name);
  return "# bash: source <(train_gpt2_fp8 --completion bash)\n"
         "_train_gpt2_fp8() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]}\n"
         "  COMPREPLY=()\n"
         "  case ${COMP_WORDS[COMP_CWORD-1]} in\n" +
         cases + "  esac\n  COMPREPLY=($(compgen -W '" + flags.substr(1) +
         "' -- \"$current\"))\n}\ncomplete -o filenames -F _train_gpt2_fp8 train_gpt2_fp8\n";
}

std::string zsh_completion() {
  std::string specs;
  const auto quoted = [](const std::string& text) { // inside '...[here]'
    std::string out;
    for (const char c : text) {
      if (c == '\'')
        out += "'\\''";
      else
        out += (c == '[' || c == ']' || c == ':' || c == '\\' ? "\\" : "") + std::string(1, c);
    }
    return out;
  };
  const auto add = [&](const std::string& name, const std::string& value_name, const std::string& help) {
    const std::vector<std::string> words = choices_of(name, value_name);
    specs += " \\\n  '--" + name + (value_name.empty() ? "" : "=") + "[" + quoted(help) + "]";
    if (!value_name.empty()) specs += ":" + quoted(value_name) + ":";
    if (names_a_file(value_name)) specs += value_name.starts_with("DIR") ? "_files -/" : "_files";
    if (!words.empty()) specs += "(" + listed(words, " ") + ")";
    specs += "'";
  };
  for (const OptionField& field : option_fields()) {
    add(field.name, field.value_name, field.help);
    if (field.is_switch()) add("no-" + field.name, "", "not: " + field.help);
  }
  for (const Action& action : actions()) add(action.name, action.value_name, action.help);
  return "#compdef train_gpt2_fp8\n# zsh: train_gpt2_fp8 --completion zsh > a folder of $fpath/_train_gpt2_fp8\n"
         "_arguments" +
         specs + "\n";
}

// ---- man page ----

std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\\' ? "\\e" : c == '-' ? "\\-" : c == '\'' ? "\\(aq" : std::string(1, c);
  return out;
}

std::string roff_entry(const std::string& name, const std::string& value_name, const std::string& meaning) {
  return ".TP\n\\fB" + roff("--" + name) + "\\fR" + (value_name.empty() ? "" : " \\fI" + roff(value_name) + "\\fR") +
         "\n\\&" + roff(meaning) + "\n";
}

} // namespace

std::string completion_script(const std::string& shell) {
  if (shell == "bash") return bash_completion();
  if (shell == "zsh") return zsh_completion();
  throw Error(ExitCode::usage, "--completion: unknown shell '" + shell + "'", "use bash or zsh");
}

std::string man_page(const std::string& version) {
  std::string out = ".TH TRAIN_GPT2_FP8 1 \"\" \"" + roff(version) +
                    "\"\n.SH NAME\ntrain_gpt2_fp8 \\- pretrains GPT\\-2\n.SH SYNOPSIS\n.B train_gpt2_fp8\n"
                    "[\\fIOPTIONS\\fR]\n.SH DESCRIPTION\n" +
                    roff(kPurpose) + "\n" + roff(kSwitches) + "\n.SH OPTIONS\n";
  std::string group;
  for (const OptionField& field : option_fields()) {
    if (field.group != group) out += ".SS " + roff(group = field.group) + "\n";
    out += roff_entry(field.name, field.value_name, explanation(field, {}));
  }
  out += ".SS Actions\n";
  for (const Action& action : actions()) out += roff_entry(action.name, action.value_name, action.help);
  out += ".SH EXAMPLES\n";
  for (const Example& example : examples())
    out += ".TP\n\\fB" + roff(example.command) + "\\fR\n" + roff(example.meaning) + "\n";
  out +=
      ".SH EXIT STATUS\n0 done, 2 usage, 3 data, 4 checkpoint, 5 numerics, 6 device, 7 communication, 8 disk, "
      "75 stopped early and saved.\n.SH ENVIRONMENT\nNO_COLOR: no colors. COLUMNS: the width if the terminal does not "
      "report one.\n";
  return out;
}

} // namespace gpt2
