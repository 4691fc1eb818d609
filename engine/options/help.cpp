#include "engine/options/help.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <optional>
#include <set>

#include "engine/base/error.h"
#include "engine/base/split.h"
#include "engine/model/config.h"
#include "engine/options/option_fields.h"
#include "engine/system/terminal.h"

namespace gpt2 {
namespace {

const char* const kPurpose =
    "Pretrains GPT-2, in FP8 on GPUs that support it. Without flags it trains on built-in stories.";
const char* const kSwitches = "A switch --x is turned off by --no-x or --x=false.";

const std::set<std::string> kCommon{"model",
                                    "seq_len",
                                    "dataset",
                                    "train_data",
                                    "val_data",
                                    "batch_size",
                                    "target_batch_size",
                                    "max_steps",
                                    "max_lr",
                                    "warmup_steps",
                                    "device",
                                    "precision",
                                    "use_fp8",
                                    "fp8_format",
                                    "eval_freq",
                                    "sample_freq",
                                    "prompt",
                                    "log_freq",
                                    "use_tensorboard",
                                    "run_name",
                                    "checkpoint_dir",
                                    "checkpoint_freq",
                                    "resume",
                                    "num_epochs",
                                    "seed",
                                    "gpus"};

const std::set<std::string> kRareActions{"eval_only", "measure", "json", "help", "completion", "man_page"};

struct Example {
  std::string command, meaning;
};
const std::vector<Example>& examples() {
  static const std::vector<Example> all{
      {"bin/doctor --use_fp8", "first: is this machine ready, how fast is it, when would the run end?"},
      {"train_gpt2_fp8 --use_fp8 --plan", "what a run would do and cost, without starting it"},
      {"train_gpt2_fp8 --use_fp8", "on built-in stories: gpt2 on a GPU, nano on the CPU"},
      {"train_gpt2_fp8 --use_fp8 --dataset books", "on your own text, prepared by bin/prepare_data"},
      {"train_gpt2_fp8 --resume latest", "continue where a run stopped, with its options"}};
  return all;
}

// ---- "auto" in numbers ----

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

std::optional<double> default_of(const std::string& field, const std::string& model, Optimizer optimizer) {
  const ModelDefaults defaults = defaults_for(config_by_name(model));
  if (field == "max_lr") return optimizer == Optimizer::muon ? defaults.muon_lr : defaults.max_lr;
  if (field == "adamw_lr") return defaults.muon_adamw_lr;
  if (field == "warmup_steps") return static_cast<double>(defaults.warmup_steps);
  if (field == "max_steps") return static_cast<double>(defaults.max_steps);
  if (field == "target_batch_size") return defaults.target_batch_size;
  if (field == "seq_len") return defaults.seq_len;
  return std::nullopt;
}

// ---- help ----

std::string flag_of(const OptionField& field) {
  return "--" + field.name + (field.is_switch() ? "" : " " + field.value_name);
}

std::string default_of(const OptionField& field, const Options& options) {
  const std::string value = field.text(options);
  return field.is_switch() ? (value == "true" ? "on" : "off") : value;
}

std::string first_clause(const std::string& text) { return text.substr(0, text.find("; ")); }

std::string explanation(const OptionField& field, const Options& options, bool brief = false) {
  const std::string value = default_of(field, options),
                    numbers = value == "auto" ? meaning_of_auto(field.name, options) : "";
  const std::string shown = value + (numbers.empty() ? "" : ": " + numbers);
  if (brief) return first_clause(field.help) + (value.empty() ? "" : " [" + first_clause(shown) + "]");
  return field.help + (value.empty() ? "" : " [" + shown + "]");
}

// Wraps a long list of choices at its bars.
std::string broken_at_bars(std::string flag, size_t columns) {
  constexpr size_t kIndent = 6;
  for (size_t begin = 0; flag.size() - begin > columns;) {
    const size_t bar = flag.rfind('|', begin + columns - 1);
    if (bar == std::string::npos || bar < begin + kIndent) break;
    begin = bar + 2;
    flag.insert(bar + 1, "\n" + std::string(kIndent, ' '));
  }
  return flag;
}

// The flag, then its meaning in a second column, or below a long flag.
std::string entry(const std::string& flag, const std::string& meaning, size_t columns) {
  const size_t column = columns >= 100 ? 34 : columns >= 70 ? 28 : 20;
  const std::string left = broken_at_bars("  " + flag, columns);
  const bool below = left.size() + 2 > column;
  const std::string gap = below ? "\n" + std::string(column, ' ') : std::string(column - left.size(), ' ');
  return wrap_text(left + gap + meaning, columns, column) + "\n";
}

std::string help_of(const Options& options, size_t columns, const std::set<std::string>* chosen) {
  std::string out, group;
  for (const OptionField& field : option_fields()) {
    if (chosen && !chosen->count(field.name)) continue;
    if (field.group != group) out += (chosen ? "" : "\n") + (group = field.group) + "\n";
    out += entry(flag_of(field), explanation(field, options, chosen), columns);
  }
  out += chosen ? "Actions\n" : "\nActions\n";
  for (const Action& action : actions()) {
    if (chosen && kRareActions.contains(action.name)) continue;
    out += entry("--" + action.name + (action.value_name.empty() ? "" : " " + action.value_name),
                 chosen ? first_clause(action.help) : action.help, columns);
  }
  return out + "\n" + wrap_text(kSwitches, columns, 0) + "\n";
}

// ---- completion ----

// The literal values of an option; words in capitals are placeholders.
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

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

std::string bash_completion() {
  std::string cases, flags;
  const auto add = [&](const std::string& name, const std::string& value_name) {
    flags += " --" + name;
    if (value_name.empty()) return;
    const std::vector<std::string> words = choices_of(name, value_name);
    cases += "    --" + name + ") ";
    if (!words.empty()) cases += "COMPREPLY=($(compgen -W '" + joined(words) + "' -- \"$current\")); ";
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
    if (!words.empty()) specs += "(" + joined(words) + ")";
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

const std::vector<Action>& actions() {
  static const std::vector<Action> all{
      {"config", "FILE", "option file, TOML or flat YAML; flags win over it"},
      {"print_config", "", "write the options as such a file and exit"},
      {"list_checkpoints", "", "list the checkpoints that --resume accepts and exit"},
      {"eval_only", "", "evaluate the --resume checkpoint or the initial model on the validation data and exit"},
      {"plan", "", "print what the run would do and cost (memory, time, disk) and exit; writes nothing"},
      {"measure", "SECONDS", "with --plan: train this long, without writing, to measure the speed"},
      {"json", "", "with --plan: print one JSON object"},
      {"help", "", "print the most common options and exit"},
      {"help_all", "", "print every option and exit"},
      {"completion", "bash|zsh", "print a completion script for that shell and exit"},
      {"man_page", "", "print a man page and exit"},
      {"version", "", "print the version and exit"}};
  return all;
}

std::string meaning_of_auto(const std::string& field, const Options& options) {
  if (field == "max_steps" && options.num_epochs > 0) return "from num_epochs";
  const std::vector<std::string> models =
      options.model == "auto" ? std::vector<std::string>{"gpt2", "nano"} : std::vector<std::string>{options.model};
  std::string out;
  for (const std::string& model : models) {
    const std::optional<double> value = default_of(field, model, options.optimizer);
    if (!value) return "";
    out += (out.empty() ? "" : ", ") + number_text(*value) + " for " + model;
  }
  if (field == "warmup_steps") return out + "; in a short run a tenth of it, at least 10 steps, at most half of it";
  return out + (field == "max_steps" || field == "target_batch_size" ? "; less on little data" : "");
}

std::string help_text(const Options& options, size_t columns) {
  std::string out = wrap_text(kPurpose, columns, 0) + "\n\nUsage: train_gpt2_fp8 [OPTIONS]\n";
  for (const Example& example : examples())
    out += "\n  " + wrap_text(example.command, columns, 6) + "\n" + wrap_text("      " + example.meaning, columns, 6);
  return out + "\n\n" + help_of(options, columns, &kCommon);
}

std::string help_all_text(const Options& options, size_t columns) {
  return wrap_text(kPurpose, columns, 0) + "\n\nUsage: train_gpt2_fp8 [OPTIONS]\n" + help_of(options, columns, nullptr);
}

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
      "75 stopped early and saved.\n.SH ENVIRONMENT\nNO_COLOR: no colours. COLUMNS: the width if the terminal does not "
      "report one.\n";
  return out;
}

} // namespace gpt2
