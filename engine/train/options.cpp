#include "engine/train/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iostream>

#include "engine/base/error.h"
#include "engine/base/files.h"
#include "engine/base/nearest_name.h"
#include "engine/base/terminal.h"
#include "engine/base/toml.h"
#include "engine/dist/launch.h"
#include "engine/model/config.h"
#include "engine/train/help.h"
#include "engine/train/option_fields.h"
#include "engine/train/peer_flags.h"

namespace gpt2 {
namespace {

OptionField* find_field(std::vector<OptionField>& fields, const std::string& name) {
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const auto& field) { return field.name == name; });
  return found == fields.end() ? nullptr : &*found;
}

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string taken_for(const std::string& theirs, const std::string& ours) { return theirs + " is " + ours + " here"; }

// Of two ways to say which data to train on, that of the stronger place counts; none: "".
std::string rival_of(const std::string& name) {
  if (name == "dataset") return "train_data";
  return name == "train_data" || name == "val_data" ? "dataset" : "";
}

// Sets every key of `lines` that is not in `command_line.given` yet, and adds it there.
void apply_lines(const std::vector<TomlLine>& lines, const std::string& origin, std::vector<OptionField>& fields,
                 CommandLine& command_line) {
  const std::set<std::string> stronger = command_line.given;
  for (const TomlLine& line : lines) {
    const std::string place = origin + ":" + std::to_string(line.line) + ": ";
    OptionField* field = find_field(fields, line.key);
    const PeerFlag* const peer = field ? nullptr : find_peer_flag(line.key);
    if (peer && peer->ours) {
      field = find_field(fields, peer->ours);
      command_line.notes.push_back(place + taken_for(line.key, peer->ours));
    }
    if (!field) {
      std::vector<std::string> names;
      for (const auto& f : fields) names.push_back(f.name);
      throw Error(ExitCode::usage, place + "unknown key " + line.key,
                  peer ? peer->instead : did_you_mean(line.key, names));
    }
    if (stronger.contains(field->name) || stronger.contains(rival_of(field->name))) continue;
    try {
      field->set(line.value);
    } catch (const BadValue& bad) {
      throw Error(ExitCode::usage, place + line.key + ": " + bad.what());
    }
    command_line.given.insert(field->name);
  }
}

std::vector<TomlLine> read_option_file(const std::string& path) {
  const std::string text = read_text_file(path, ExitCode::usage);
  const bool yaml = path.ends_with(".yaml") || path.ends_with(".yml");
  return yaml ? read_yaml(text, path) : read_toml(text, path);
}

// A word that belongs to no flag: what its writer will have meant.
std::string advice_for_word(const std::string& word) {
  const std::string ending = std::filesystem::path(word).extension();
  const std::vector<std::string> models = config_names();
  std::error_code ignored;
  if (ending == ".toml" || ending == ".yaml" || ending == ".yml") return "use --config " + word;
  if (ending == ".bin" || ending == ".h5") return "use --train_data " + word;
  if (ending == ".txt" || ending == ".jsonl" || ending == ".parquet")
    return "make shards of it with bin/prepare_data " + word + " --dataset NAME, then --dataset NAME";
  if (std::filesystem::is_directory(word, ignored))
    return "use --train_data '" + word + "/train_*.bin' for data, or --resume " + word + " for a checkpoint";
  if (std::find(models.begin(), models.end(), word) != models.end()) return "use --model " + word;
  return "values follow their flag; a switch takes none, or --switch=false";
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
  if (!options.plan && (options.measure > 0 || options.json)) {
    throw Error(ExitCode::usage, std::string(options.json ? "--json" : "--measure") + " goes with --plan",
                "give both, or neither");
  }
  if (options.plan && options.eval_only)
    throw Error(ExitCode::usage, "--plan and --eval_only both say what to do instead of training",
                "give one of the two");
  if ((options.ranks > 0) != (options.rank >= 0)) {
    throw Error(ExitCode::usage, "--ranks and --rank belong together", "give both, and --master; or --gpus N alone");
  }
  if (options.ranks > 0) {
    explicit_launch(options.ranks, options.rank, options.master); // refuses what is no rank of them
    if (!options.gpus.empty())
      throw Error(ExitCode::usage, "--gpus starts all ranks itself", "give --gpus, or --ranks, --rank and --master");
  }
  if (options.train_data.empty() && options.dataset.empty() && !options.val_data.empty()) {
    throw Error(ExitCode::usage, "--val_data is given but --train_data is not",
                "give both, or neither for the built-in sample");
  }
}

// `comment` is what follows a field's value.
template <class Comment>
std::string write_toml(const Options& options, Comment comment) {
  Options copy = options;
  std::string out = "# train_gpt2_fp8 --config THIS_FILE\n";
  std::string group;
  for (const OptionField& field : option_fields(copy)) {
    if (field.of_this_start) continue;
    if (field.group != group) out += "\n# " + (group = field.group) + "\n";
    out += field.name + " = " + field.toml() + comment(field) + "\n";
  }
  return out;
}

class CommandLineParser {
 public:
  explicit CommandLineParser(Options& options) : options_(options), fields_(option_fields(options)) {
    app_.allow_extras();    // we word the error ourselves
    app_.set_help_flag(""); // and the help
    for (const OptionField& field : fields_) declare(field);
    for (const Action& action : actions()) {
      const std::string flags = (action.name == "help" ? "-h,--" : "--") + action.name;
      if (action.value_name.empty())
        app_.add_flag(flags);
      else
        app_.add_option(flags);
    }
  }

  // False after --help, --version and the like, which have printed what was asked for.
  bool parse(int argc, const char* const* argv, const std::string& version, CommandLine& line) {
    try {
      app_.parse(words_of(argc, argv, line.notes));
    } catch (const CLI::ParseError& error) {
      throw Error(ExitCode::usage, error.what(), "see --help");
    }
    if (asked("version")) return std::cout << version << "\n", false;
    if (asked("completion")) return std::cout << completion_script(app_["--completion"]->results().back()), false;
    if (asked("man_page")) return std::cout << man_page(version), false;
    if (asked("help") || asked("help_all")) return print_help(line.given), false;
    check_extras();
    apply_flags(line.given);
    line.typed = line.given;
    refuse_empty_origin();
    if (asked("config")) {
      const std::string path = app_["--config"]->results().back();
      apply_lines(read_option_file(path), path, fields_, line);
    }
    options_.print_config = asked("print_config");
    options_.list_checkpoints = asked("list_checkpoints");
    options_.eval_only = asked("eval_only");
    options_.plan = asked("plan");
    options_.json = asked("json");
    if (asked("measure")) options_.measure = positive_seconds(app_["--measure"]->results().back());
    return true;
  }

 private:
  static double positive_seconds(const std::string& text) {
    double seconds = 0;
    const char* const end = text.data() + text.size();
    const auto [stopped, status] = std::from_chars(text.data(), end, seconds);
    if (status != std::errc() || stopped != end || !(seconds > 0 && seconds <= 86400))
      throw Error(ExitCode::usage, "--measure: '" + text + "' is no time in seconds", "as in --measure 60");
    return seconds;
  }

  bool asked(const std::string& action) const { return app_["--" + action]->count() > 0; }

  // With the numbers of the model that is asked for, whatever else is wrong with the command line.
  void print_help(std::set<std::string>& given) {
    try {
      apply_flags(given);
      config_by_name(options_.model == "auto" ? "nano" : options_.model);
    } catch (const Error&) {
      options_.model = "auto";
    }
    const auto columns = static_cast<size_t>(std::clamp(terminal_columns(), 40, 120)); // wider is hard to read
    std::cout << (asked("help_all") ? help_all_text(options_, columns) : help_text(options_, columns));
  }

  void declare(const OptionField& field) {
    const std::string flag = "--" + field.name;
    CLI::Option* option = field.is_switch() ? app_.add_flag(flag + ",!--no-" + field.name) : app_.add_option(flag);
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    declared_.push_back(option);
  }

  // In the order that CLI11 wants, last first, and in our words: dashes become underscores, a flag of another trainer
  // that means the same becomes ours. `--x=` becomes `--x ""`, for it would take the next word as the value.
  std::vector<std::string> words_of(int argc, const char* const* argv, std::vector<std::string>& notes) {
    std::vector<std::string> words;
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      if (word.size() < 3 || word.rfind("--", 0) != 0) {
        words.push_back(word);
        continue;
      }
      const size_t equals = std::min(word.find('='), word.size());
      const std::string name = our_name(word.substr(2, equals - 2), notes), value = word.substr(equals);
      words.push_back("--" + name + (value == "=" ? "" : value));
      if (value == "=") words.emplace_back();
      if (value.empty() && takes_value(name) && i + 1 < argc) words.emplace_back(argv[++i]); // whatever it looks like
    }
    std::reverse(words.begin(), words.end());
    return words;
  }

  bool takes_value(const std::string& name) {
    const OptionField* const field = find_field(fields_, name);
    return field ? !field->is_switch() : name == "config" || name == "completion" || name == "measure";
  }

  // What is not known even so stays as it was typed.
  std::string our_name(const std::string& typed, std::vector<std::string>& notes) {
    const bool off = typed.rfind("no-", 0) == 0 || typed.rfind("no_", 0) == 0;
    for (const bool negated : {false, true}) {
      if (negated && !off) break;
      const std::string name = with_underscores(negated ? typed.substr(3) : typed), no = negated ? "no-" : "";
      const OptionField* field = find_field(fields_, name);
      if (!field && !negated && app_.get_option_no_throw("--" + name)) return name; // an action
      const PeerFlag* const peer = field ? nullptr : find_peer_flag(name);
      if (peer && peer->ours && name.size() > 1) field = find_field(fields_, peer->ours);
      if (!field || (negated && !field->is_switch())) continue;
      if (peer) notes.push_back(taken_for("--" + typed, "--" + no + field->name));
      return no + field->name;
    }
    return typed;
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

  // --resume "$RUN" where RUN is not set: not a new run by mistake.
  void refuse_empty_origin() const {
    for (const char* name : {"resume", "init_from"}) {
      const CLI::Option& option = *app_["--" + std::string(name)];
      if (option.count() > 0 && option.results().back().empty())
        throw Error(ExitCode::usage, "--" + std::string(name) + " is given without a value",
                    "leave it out for a new run");
    }
  }

  void check_extras() const {
    const std::vector<std::string> extras = app_.remaining();
    if (extras.empty()) return;
    const std::string word = extras.front().substr(0, extras.front().find('='));
    if (word.substr(0, 1) != "-") {
      throw Error(ExitCode::usage, "unexpected argument '" + extras.front() + "'", advice_for_word(extras.front()));
    }
    if (const PeerFlag* const peer = find_peer_flag(with_underscores(word.substr(word.find_first_not_of('-'))));
        peer && peer->instead) {
      throw Error(ExitCode::usage, "unknown flag " + word, peer->instead);
    }
    std::vector<std::string> names;
    for (const Action& action : actions()) names.push_back("--" + action.name);
    for (const auto& field : fields_) {
      names.push_back("--" + field.name);
      if (field.is_switch()) names.push_back("--no-" + field.name);
    }
    throw Error(ExitCode::usage, "unknown flag " + word, did_you_mean(word, names, "see --help"));
  }

  Options& options_;
  std::vector<OptionField> fields_;
  std::vector<CLI::Option*> declared_; // one per field
  CLI::App app_;
};

} // namespace

std::optional<CommandLine> parse_options(int argc, const char* const* argv, const std::string& version) {
  CommandLine line;
  CommandLineParser parser(line.options);
  if (!parser.parse(argc, argv, version, line)) return std::nullopt;
  check_conflicts(line.options);
  return line;
}

std::string to_toml(const Options& options) {
  return write_toml(options, [](const OptionField&) { return std::string(); });
}

std::string to_explained_toml(const Options& options) {
  return write_toml(options, [&](const OptionField& field) {
    const std::string numbers = field.toml() == toml_string("auto") ? meaning_of_auto(field.name, options) : "";
    return numbers.empty() ? "" : " # " + numbers;
  });
}

CommandLine from_toml(const std::string& text, const std::string& origin) {
  CommandLine line;
  std::vector<OptionField> fields = option_fields(line.options);
  apply_lines(read_toml(text, origin), origin, fields, line);
  check_conflicts(line.options);
  return line;
}

Options merge_for_resume(const CommandLine& now, const Options& of_checkpoint) {
  Options merged = of_checkpoint;
  // Either flag of these pairs replaces both of the checkpoint's.
  if (now.given.contains("max_steps") || now.given.contains("num_epochs")) merged.max_steps = 0, merged.num_epochs = 0;
  if (now.given.contains("optimizer") && now.options.optimizer != of_checkpoint.optimizer)
    merged.max_lr = 0, merged.adamw_lr = 0; // another optimizer has other rates
  if (now.given.contains("dataset")) merged.train_data.clear(), merged.val_data.clear();
  if (now.given.contains("train_data")) merged.dataset.clear();
  if (now.given.contains("precision") || now.given.contains("use_fp8")) {
    merged.precision = PrecisionChoice::automatic;
    merged.use_fp8 = false;
  }

  Options source = now.options;
  std::vector<OptionField> from = option_fields(source), to = option_fields(merged);
  for (size_t i = 0; i < from.size(); ++i) {
    if (!now.given.contains(from[i].name)) continue;
    if (from[i].name == "model" && source.model == "auto") continue; // a checkpoint's model is no longer a choice
    to[i].set(read_toml("x = " + from[i].toml(), from[i].name).front().value);
  }
  check_conflicts(merged);
  return merged;
}

} // namespace gpt2
