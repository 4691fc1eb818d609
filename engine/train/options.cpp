#include "engine/train/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include "engine/base/error.h"
#include "engine/base/files.h"
#include "engine/base/nearest_name.h"
#include "engine/base/toml.h"
#include "engine/train/option_fields.h"

namespace gpt2 {
namespace {

OptionField* find_field(std::vector<OptionField>& fields, const std::string& name) {
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const auto& field) { return field.name == name; });
  return found == fields.end() ? nullptr : &*found;
}

// Sets every key of `text` that is not in `given` yet, and adds it there.
void apply_toml(const std::string& text, const std::string& origin, std::vector<OptionField>& fields,
                std::set<std::string>& given) {
  const std::set<std::string> stronger = given;
  for (const TomlLine& line : read_toml(text, origin)) {
    const std::string place = origin + ":" + std::to_string(line.line) + ": ";
    OptionField* field = find_field(fields, line.key);
    if (!field) {
      std::vector<std::string> names;
      for (const auto& f : fields) names.push_back(f.name);
      const std::string near = nearest_name(line.key, names);
      throw Error(ExitCode::usage, place + "unknown key " + line.key, near.empty() ? "" : "did you mean " + near + "?");
    }
    if (stronger.count(line.key)) continue;
    try {
      field->set(line.value);
    } catch (const BadValue& bad) {
      throw Error(ExitCode::usage, place + line.key + ": " + bad.what());
    }
    given.insert(line.key);
  }
}

// Two ways to say one thing must not contradict each other.
void check_conflicts(Options& options) {
  if (options.use_fp8) {
    if (options.precision != PrecisionChoice::automatic && options.precision != PrecisionChoice::fp8) {
      throw Error(ExitCode::usage, "--use_fp8 and --precision " + name_of(options.precision) + " contradict each other",
                  "give one of the two");
    }
    options.precision = PrecisionChoice::fp8;
  }
  if (options.max_steps > 0 && options.num_epochs > 0) {
    throw Error(ExitCode::usage, "--max_steps and --num_epochs both say how long to train", "give one of the two");
  }
  if (options.train_data.empty() && !options.val_data.empty()) {
    throw Error(ExitCode::usage, "--val_data is given but --train_data is not",
                "give both, or neither for the built-in sample");
  }
}

// In the order that CLI11 wants, last first. `--x=` becomes `--x ""`, for it would take the next word as the value.
std::vector<std::string> words_of(int argc, const char* const* argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool empty_value = word.rfind("--", 0) == 0 && word.back() == '=' && word.find('=') == word.size() - 1;
    words.push_back(empty_value ? word.substr(0, word.size() - 1) : word);
    if (empty_value) words.push_back("");
  }
  std::reverse(words.begin(), words.end());
  return words;
}

class CommandLineParser {
 public:
  explicit CommandLineParser(Options& options) : options_(options), fields_(option_fields(options)) {
    app_.allow_extras(); // we word the error ourselves
    app_.get_formatter()->column_width(38);
    for (const OptionField& field : fields_) declare(field);
    config_ = app_.add_option("--config")
                  ->description("option file, TOML; flags win over it")
                  ->type_name("FILE")
                  ->group("Actions");
    print_config_ = action("--print_config", "write the options as such a file and exit");
    list_checkpoints_ = action("--list_checkpoints", "say what can be resumed and exit");
    version_ = action("--version", "print the version and exit");
    app_.get_help_ptr()->group("Actions");
    app_.footer("A switch --x is turned off by --no-x or --x=false.");
  }

  // False after --help or --version.
  bool parse(int argc, const char* const* argv, const std::string& version, std::set<std::string>& given) {
    try {
      app_.parse(words_of(argc, argv));
    } catch (const CLI::CallForHelp&) {
      std::cout << app_.help();
      return false;
    } catch (const CLI::ParseError& error) {
      throw Error(ExitCode::usage, error.what(), "see --help");
    }
    if (version_->count()) return std::cout << version << "\n", false;
    check_extras();
    apply_flags(given);
    if (config_->count()) {
      const std::string path = config_->results().back();
      apply_toml(read_text_file(path, ExitCode::usage), path, fields_, given);
    }
    options_.print_config = print_config_->count() > 0;
    options_.list_checkpoints = list_checkpoints_->count() > 0;
    return true;
  }

 private:
  CLI::Option* action(const std::string& flag, const std::string& help) {
    return app_.add_flag(flag)->description(help)->group("Actions");
  }

  void declare(const OptionField& field) {
    const std::string flag = "--" + field.name;
    CLI::Option* option;
    if (field.is_switch()) {
      option = app_.add_flag(flag + ",!--no-" + field.name);
      option->description(field.help + (field.toml() == "true" ? " [on]" : " [off]"));
    } else {
      const std::string shown = read_toml("x = " + field.toml(), field.name).front().value;
      option = app_.add_option(flag)->description(field.help)->type_name(field.value_name)->default_str(shown);
    }
    option->group(field.group)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    declared_.push_back(option);
  }

  void apply_flags(std::set<std::string>& given) {
    for (size_t i = 0; i < fields_.size(); ++i) {
      if (declared_[i]->count() == 0) continue;
      try {
        fields_[i].set(declared_[i]->results().back());
      } catch (const BadValue& bad) {
        throw Error(ExitCode::usage, "--" + fields_[i].name + ": " + bad.what());
      }
      given.insert(fields_[i].name);
    }
  }

  void check_extras() const {
    const std::vector<std::string> extras = app_.remaining();
    if (extras.empty()) return;
    const std::string word = extras.front().substr(0, extras.front().find('='));
    if (word.substr(0, 1) != "-") {
      throw Error(ExitCode::usage, "unexpected argument '" + extras.front() + "'",
                  "values follow their flag; a switch takes none, or --switch=false");
    }
    std::vector<std::string> names{"--config", "--print_config", "--list_checkpoints", "--version", "--help"};
    for (const auto& field : fields_) {
      names.push_back("--" + field.name);
      if (field.is_switch()) names.push_back("--no-" + field.name);
    }
    const std::string near = nearest_name(word, names);
    throw Error(ExitCode::usage, "unknown flag " + word, near.empty() ? "see --help" : "did you mean " + near + "?");
  }

  Options& options_;
  std::vector<OptionField> fields_;
  std::vector<CLI::Option*> declared_; // one per field
  CLI::App app_{"Pretrains GPT-2, in FP8 where the GPU can. Without flags it trains on what it finds.",
                "train_gpt2_fp8"};
  CLI::Option *config_, *print_config_, *list_checkpoints_, *version_;
};

} // namespace

std::optional<CommandLine> parse_options(int argc, const char* const* argv, const std::string& version) {
  CommandLine line;
  CommandLineParser parser(line.options);
  if (!parser.parse(argc, argv, version, line.given)) return std::nullopt;
  check_conflicts(line.options);
  return line;
}

std::string to_toml(const Options& options) {
  Options copy = options;
  std::string out = "# train_gpt2_fp8 --config THIS_FILE\n";
  std::string group;
  for (const OptionField& field : option_fields(copy)) {
    if (field.group != group) out += "\n# " + (group = field.group) + "\n";
    out += field.name + " = " + field.toml() + "\n";
  }
  return out;
}

CommandLine from_toml(const std::string& text, const std::string& origin) {
  CommandLine line;
  std::vector<OptionField> fields = option_fields(line.options);
  apply_toml(text, origin, fields, line.given);
  check_conflicts(line.options);
  return line;
}

Options merge_for_resume(const CommandLine& now, const Options& of_checkpoint) {
  Options merged = of_checkpoint;
  // Either flag of these pairs replaces both of the checkpoint's.
  if (now.given.count("max_steps") || now.given.count("num_epochs")) merged.max_steps = 0, merged.num_epochs = 0;
  if (now.given.count("precision") || now.given.count("use_fp8")) {
    merged.precision = PrecisionChoice::automatic;
    merged.use_fp8 = false;
  }

  Options source = now.options;
  std::vector<OptionField> from = option_fields(source), to = option_fields(merged);
  for (size_t i = 0; i < from.size(); ++i) {
    if (!now.given.count(from[i].name)) continue;
    if (from[i].name == "model" && source.model == "auto") continue; // a checkpoint's model is no longer a choice
    to[i].set(read_toml("x = " + from[i].toml(), from[i].name).front().value);
  }
  check_conflicts(merged);
  return merged;
}

} // namespace gpt2
