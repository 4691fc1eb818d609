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

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string taken_for(const std::string& theirs, const std::string& ours) { return theirs + " is " + ours + " here"; }

std::vector<std::string> option_names() {
  std::vector<std::string> names;
  for (const OptionField& field : option_fields()) names.push_back(field.name);
  return names;
}

// Every line sets its option of `file`.
void apply_lines(const std::vector<TomlLine>& lines, const std::string& origin, const std::set<std::string>& retired,
                 CommandLine& file) {
  for (const TomlLine& line : lines) {
    const std::string place = origin + ":" + std::to_string(line.line) + ": ";
    const OptionField* field = find_field(line.key);
    const PeerFlag* const peer = field ? nullptr : find_peer_flag(line.key);
    if (!field && retired.contains(line.key)) continue;
    if (peer && peer->ours) {
      field = find_field(peer->ours);
      file.notes.push_back(place + taken_for(line.key, peer->ours));
    }
    if (!field)
      throw Error(ExitCode::usage, place + "unknown key " + line.key,
                  peer ? peer->instead : did_you_mean(line.key, option_names()));
    try {
      field->set(file.options, line.value);
    } catch (const BadValue& bad) {
      throw Error(ExitCode::usage, place + line.key + ": " + bad.what());
    }
    file.given.insert(field->name);
  }
}

// Options that say the same thing in other words: whoever gives the first takes back the others of a weaker source.
struct Replacement {
  const char* given;
  std::vector<const char*> takes_back;
};
const std::vector<Replacement>& replacements() {
  static const std::vector<Replacement> all{
      {"max_steps", {"num_epochs"}}, {"num_epochs", {"max_steps"}},           {"precision", {"use_fp8"}},
      {"use_fp8", {"precision"}},    {"dataset", {"train_data", "val_data"}}, {"train_data", {"dataset"}}};
  return all;
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

// `comment` is what follows a field's value.
template <class Comment>
std::string write_toml(const Options& options, Comment comment) {
  std::string out = "# train_gpt2_fp8 --config THIS_FILE\n";
  std::string group;
  for (const OptionField& field : option_fields()) {
    if (field.of_this_start) continue;
    if (field.group != group) out += "\n# " + (group = field.group) + "\n";
    out += field.name + " = " + field.toml(options) + comment(field) + "\n";
  }
  return out;
}

class CommandLineParser {
 public:
  CommandLineParser() {
    app_.allow_extras();    // we word the error ourselves
    app_.set_help_flag(""); // and the help
    for (const OptionField& field : option_fields()) declare(field);
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
    if (asked("help") || asked("help_all")) return print_help(), false;
    check_extras();
    apply_flags();
    refuse_empty_origin();
    if (asked("config")) {
      const std::string path = app_["--config"]->results().back();
      apply_lines(read_option_file(path), path, {}, line);
    }
    override_options(line.options, line.given, flags_, line.typed = given_);
    line.options.print_config = asked("print_config");
    line.options.list_checkpoints = asked("list_checkpoints");
    line.options.eval_only = asked("eval_only");
    line.options.plan = asked("plan");
    line.options.json = asked("json");
    if (asked("measure")) line.options.measure = positive_seconds(app_["--measure"]->results().back());
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
  void print_help() {
    try {
      apply_flags();
      config_by_name(flags_.model == "auto" ? "nano" : flags_.model);
    } catch (const Error&) {
      flags_.model = "auto";
    }
    const auto columns = static_cast<size_t>(std::clamp(terminal_columns(), 40, 120)); // wider is hard to read
    std::cout << (asked("help_all") ? help_all_text(flags_, columns) : help_text(flags_, columns));
  }

  void declare(const OptionField& field) {
    const std::string flag = "--" + field.name;
    CLI::Option* option = field.is_switch() ? app_.add_flag(flag + ",!--no-" + field.name) : app_.add_option(flag);
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }

  // In the order that CLI11 wants, last first, and in our words: dashes become underscores, a flag of another trainer
  // that means the same becomes ours. `--x=` becomes `--x ""`, for it would take the next word as the value.
  std::vector<std::string> words_of(int argc, const char* const* argv, std::vector<std::string>& notes) {
    std::vector<std::string> words;
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      const size_t name_begin = word.find_first_not_of('-');
      if (word.starts_with('-') && (name_begin == std::string::npos || word[name_begin] == '='))
        throw Error(ExitCode::usage, "'" + word + "' names no flag", "see --help");
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
    const OptionField* const field = find_field(name);
    return field ? !field->is_switch() : name == "config" || name == "completion" || name == "measure";
  }

  // What is not known even so stays as it was typed.
  std::string our_name(const std::string& typed, std::vector<std::string>& notes) {
    const bool off = typed.rfind("no-", 0) == 0 || typed.rfind("no_", 0) == 0;
    for (const bool negated : {false, true}) {
      if (negated && !off) break;
      const std::string name = with_underscores(negated ? typed.substr(3) : typed), no = negated ? "no-" : "";
      const OptionField* field = find_field(name);
      if (!field && !negated && app_.get_option_no_throw("--" + name)) return name; // an action
      const PeerFlag* const peer = field ? nullptr : find_peer_flag(name);
      if (peer && peer->ours && name.size() > 1) field = find_field(peer->ours);
      if (!field || (negated && !field->is_switch())) continue;
      if (peer) notes.push_back(taken_for("--" + typed, "--" + no + field->name));
      return no + field->name;
    }
    return typed;
  }

  void apply_flags() {
    for (const OptionField& field : option_fields()) {
      const CLI::Option& option = *app_["--" + field.name];
      if (option.count() == 0) continue;
      try {
        field.set(flags_, option.results().back());
      } catch (const BadValue& bad) {
        throw Error(ExitCode::usage, "--" + field.name + ": " + bad.what());
      }
      given_.insert(field.name);
    }
    if (given_.contains("use_fp8") && !flags_.use_fp8 && flags_.precision == PrecisionChoice::fp8)
      throw Error(ExitCode::usage, "--no-use_fp8 and --precision fp8 contradict each other", "give one of the two");
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
    for (const OptionField& field : option_fields()) {
      names.push_back("--" + field.name);
      if (field.is_switch()) names.push_back("--no-" + field.name);
    }
    throw Error(ExitCode::usage, "unknown flag " + word, did_you_mean(word, names, "see --help"));
  }

  Options flags_;
  std::set<std::string> given_; // by flags
  CLI::App app_;
};

} // namespace

std::optional<CommandLine> parse_options(int argc, const char* const* argv, const std::string& version) {
  CommandLine line;
  if (!CommandLineParser().parse(argc, argv, version, line)) return std::nullopt;
  check_conflicts(line.options);
  return line;
}

std::string to_toml(const Options& options) {
  return write_toml(options, [](const OptionField&) { return std::string(); });
}

std::string to_explained_toml(const Options& options) {
  return write_toml(options, [&](const OptionField& field) {
    const std::string numbers = field.text(options) == "auto" ? meaning_of_auto(field.name, options) : "";
    return numbers.empty() ? "" : " # " + numbers;
  });
}

CommandLine from_toml(const std::string& text, const std::string& origin, const std::set<std::string>& retired) {
  CommandLine line;
  apply_lines(read_toml(text, origin), origin, retired, line);
  override_options(line.options, line.given, {}, {});
  check_conflicts(line.options);
  return line;
}

const std::set<std::string>& retired_keys() {
  static const std::set<std::string> keys; // none so far
  return keys;
}

void override_options(Options& options, std::set<std::string>& given, const Options& stronger,
                      const std::set<std::string>& given_by_stronger) {
  for (const auto& [name, takes_back] : replacements()) {
    if (!given_by_stronger.contains(name)) continue;
    // --no-use_fp8 says only what the precision is not.
    if (name == std::string("use_fp8") && !stronger.use_fp8 && options.precision != PrecisionChoice::fp8) continue;
    for (const char* other : takes_back) {
      find_field(other)->copy(Options{}, options);
      given.erase(other);
    }
  }
  for (const std::string& name : given_by_stronger) find_field(name)->copy(stronger, options);
  given.insert(given_by_stronger.begin(), given_by_stronger.end());
  if (options.use_fp8 && options.precision == PrecisionChoice::automatic) options.precision = PrecisionChoice::fp8;
}

void check_conflicts(const Options& options) {
  if (options.use_fp8 && options.precision != PrecisionChoice::fp8) {
    throw Error(ExitCode::usage, "--use_fp8 and --precision " + name_of(options.precision) + " contradict each other",
                "give one of the two");
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
  if (options.resume.empty() && options.train_data.empty() && options.dataset.empty() && !options.val_data.empty()) {
    throw Error(ExitCode::usage, "--val_data is given but --train_data is not",
                "give both, or neither for the built-in sample");
  }
}

} // namespace gpt2
