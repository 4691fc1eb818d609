#include "engine/options/help.h"

#include <algorithm>
#include <optional>

#include "engine/base/formatted.h"
#include "engine/base/split.h"
#include "engine/model/config.h"
#include "engine/system/terminal.h"

namespace gpt2 {
namespace {

const std::vector<std::string> kCommon = split(
    "model seq_len dataset train_data val_data batch_size target_batch_size max_steps max_lr warmup_steps "
    "device precision use_fp8 fp8_format eval_freq sample_freq prompt log_freq use_tensorboard run_name "
    "checkpoint_dir checkpoint_freq resume num_epochs seed gpus config print_config list_checkpoints plan help_all "
    "version",
    ' ');

// ---- "auto" in numbers ----

std::optional<double> default_of(const std::string& field, const std::string& model, Optimizer optimizer) {
  const ModelDefaults defaults = defaults_for(config_by_name(model));
  if (field == "max_lr") return optimizer == Optimizer::muon ? defaults.muon_lr : defaults.max_lr;
  if (field == "adamw_lr") return defaults.muon_adamw_lr;
  if (field == "warmup_steps") return static_cast<double>(defaults.warmup_steps);
  if (field == "max_steps") return static_cast<double>(defaults.max_steps);
  if (field == "target_batch_size") return defaults.target_batch_size;
  if (field == "seq_len") return config_by_name(model).seq_len;
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

bool is_common(const std::string& name) { return std::ranges::find(kCommon, name) != kCommon.end(); }

std::string first_clause(const std::string& text) { return text.substr(0, text.find("; ")); }

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

std::string help_of(const Options& options, size_t columns, bool common) {
  std::string out, group;
  for (const OptionField& field : option_fields()) {
    if (common && !is_common(field.name)) continue;
    if (field.group != group) out += (common ? "" : "\n") + (group = field.group) + "\n";
    out += help_entry(flag_of(field), explanation(field, options, common), columns);
  }
  out += common ? "Actions\n" : "\nActions\n";
  for (const Action& action : actions()) {
    if (common && !is_common(action.name)) continue;
    out += help_entry("--" + action.name + (action.value_name.empty() ? "" : " " + action.value_name),
                      common ? first_clause(action.help) : action.help, columns);
  }
  return out + "\n" + wrap_text(kSwitches, columns, 0) + "\n";
}

} // namespace

const std::vector<Example>& examples() {
  static const std::vector<Example> all{
      {"bin/doctor --use_fp8", "first: is this machine ready, how fast is it, when would the run end?"},
      {"train_gpt2_fp8 --use_fp8 --plan", "what a run would do and cost, without starting it"},
      {"train_gpt2_fp8 --use_fp8", "on built-in stories: gpt2 on a GPU, nano on the CPU"},
      {"train_gpt2_fp8 --use_fp8 --dataset books", "on your own text, prepared by bin/prepare_data"},
      {"train_gpt2_fp8 --resume latest", "continue where a run stopped, with its options"}};
  return all;
}

std::string help_entry(const std::string& flag, const std::string& meaning, size_t columns) {
  const size_t column = columns >= 100 ? 34 : columns >= 70 ? 28 : 20;
  const std::string left = broken_at_bars("  " + flag, columns);
  const bool below = left.size() + 2 > column;
  const std::string gap = below ? "\n" + std::string(column, ' ') : std::string(column - left.size(), ' ');
  return wrap_text(left + gap + meaning, columns, column) + "\n";
}

const std::vector<Action>& actions() {
  static const std::vector<Action> all{
      {"config", "FILE", "option file, TOML or flat YAML; flags win over it"},
      {"print_config", "", "write the options as such a file and exit"},
      {"list_checkpoints", "", "list the checkpoints that --resume accepts and exit"},
      {"eval_only", "", "evaluate the --resume checkpoint or the initial model on the validation data and exit"},
      {"plan", "", "print what the run would do and cost (memory, time, disk) and exit; writes nothing"},
      {"measure", "SECONDS", "with --plan: train this long, without writing, to measure the speed"},
      {"for", "GPU", "with --plan: another GPU, as h100 or rtx4090; its speed is an estimate"},
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
    out += (out.empty() ? "" : ", ") + formatted("%g", *value) + " for " + model;
  }
  if (field == "warmup_steps") return out + "; in a short run a tenth of it, at least 10 steps, at most half of it";
  return out + (field == "max_steps" || field == "target_batch_size" ? "; less on little data" : "");
}

std::string explanation(const OptionField& field, const Options& options, bool brief) {
  const std::string value = default_of(field, options),
                    numbers = value == "auto" ? meaning_of_auto(field.name, options) : "";
  const std::string shown = value + (numbers.empty() ? "" : ": " + numbers);
  if (brief) return first_clause(field.help) + (value.empty() ? "" : " [" + first_clause(shown) + "]");
  return field.help + (value.empty() ? "" : " [" + shown + "]");
}

std::string help_text(const Options& options, size_t columns) {
  std::string out = wrap_text(kPurpose, columns, 0) + "\n\nUsage: train_gpt2_fp8 [OPTIONS]\n";
  for (const Example& example : examples())
    out += "\n  " + wrap_text(example.command, columns, 6) + "\n" + wrap_text("      " + example.meaning, columns, 6);
  return out + "\n\n" + help_of(options, columns, true);
}

std::string help_all_text(const Options& options, size_t columns) {
  return wrap_text(kPurpose, columns, 0) + "\n\nUsage: train_gpt2_fp8 [OPTIONS]\n" + help_of(options, columns, false);
}

} // namespace gpt2
