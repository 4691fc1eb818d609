#include "engine/options/parse_options.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <limits>
#include <map>
#include <tuple>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/base/nearest_name.h"
#include "engine/base/parse_number.h"
#include "engine/base/toml.h"
#include "engine/model/config.h"
#include "engine/options/flag_aliases.h"
#include "engine/options/help.h"
#include "engine/options/option_fields.h"
#include "engine/options/run_plan.h"
#include "engine/rendezvous/launcher.h"
#include "engine/system/files.h"
#include "engine/system/terminal.h"

namespace gpt2 {
namespace {

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::vector<std::string> option_names() {
  std::vector<std::string> names;
  for (const OptionField& field : option_fields()) names.push_back(field.name);
  return names;
}

// `shown` is the flag or key as the user typed it.
void set_option(const OptionField& field, const std::string& value, const std::string& shown, Options& options) {
  try {
    field.set(options, value);
  } catch (const BadValue& bad) {
    throw Error(ExitCode::usage, shown + ": " + bad.what());
  }
}

// Sets the option of every line in `file`. Returns the size of a step if it is given in micro-batches. `stored`: the
// lines come from a checkpoint.
GivenAlias apply_lines(const std::vector<TomlLine>& lines, const std::string& origin, bool stored, CommandLine& file) {
  Unresolved unresolved;
  for (const TomlLine& line : lines) {
    const std::string place = origin + ":" + std::to_string(line.line) + ": ";
    std::string name = line.key, value = line.value;
    if (stored && name == "muon_iteration") { // a former option
      if (value == "newton_schulz") continue;
      throw Error(ExitCode::usage, place + "muon_iteration = " + value + " is not supported any more",
                  "use the version that saved the checkpoint");
    }
    const FlagAlias* const alias = find_field(name) ? nullptr : find_flag_alias(name);
    if (alias && alias->kind != AliasKind::unsupported) {
      std::tie(name, value) = translate({alias, place + line.key, line.value}, "", file.notes, unresolved);
      if (name.empty()) continue;
    }
    const OptionField* const field = find_field(name);
    if (!field)
      throw Error(ExitCode::usage, place + "unknown key " + line.key,
                  alias ? alias->sentence : did_you_mean(line.key, option_names()));
    set_option(*field, value, place + line.key, file.options);
    file.given.insert(field->name);
  }
  take_dataset_part(unresolved.dataset_part, file.options.dataset, file.given, file.notes);
  return unresolved.accumulation;
}

// Ranks of the job that this process starts or belongs to.
int ranks_of_job(const Options& options) {
  if (options.ranks > 0) return options.ranks;
  const std::optional<Launch> launch = find_launch(process_environment());
  if (launch && (options.gpus.empty() || launch->ranks > 1)) return launch->ranks;
  if (options.gpus == "all") return std::max(1, gpu_count());
  return std::max(1, parse_number<int>(options.gpus).value_or(1));
}

// --gradient_accumulation_steps: target_batch_size = batch_size x micro-batches x ranks, of all sources of options.
void set_target(const GivenAlias& given, CommandLine& line, bool by_flag) {
  if (!given.alias) return;
  Options& options = line.options;
  if (!by_flag && line.typed.contains("target_batch_size")) return; // the flag wins over the file
  if ((by_flag ? line.typed : line.given).contains("target_batch_size"))
    throw Error(ExitCode::usage, given.shown + " and --target_batch_size both give the size of a step",
                "give one of the two");
  Options steps; // read as --target_batch_size is
  set_option(*find_field("target_batch_size"), given.value, given.shown, steps);
  if (steps.target_batch_size == 0) return; // auto
  if (options.batch_size == 0)
    throw Error(ExitCode::usage, given.shown + " needs --batch_size, the sequences of a micro-batch",
                "give both, or --target_batch_size, the sequences of a step");
  const int ranks = ranks_of_job(options);
  const int64_t target = int64_t{options.batch_size} * steps.target_batch_size;
  if (target > std::numeric_limits<int>::max() / ranks)
    throw Error(ExitCode::usage, given.shown + ": " + given.value + " is too large");
  options.target_batch_size = static_cast<int>(target) * ranks;
  line.given.insert("target_batch_size");
  if (by_flag) line.typed.insert("target_batch_size");
  line.notes.push_back(concat(given.shown, " ", given.value, " is --target_batch_size ", options.target_batch_size,
                              " here: ", options.batch_size, " sequences x ", given.value, " micro-batches",
                              ranks > 1 ? concat(" x ", ranks, " ranks") : ""));
}

// Options with overlapping meaning: `given` in a stronger source resets the others of a weaker source.
struct Replacement {
  const char* given;
  std::vector<const char*> resets;
  bool by_default_too = false; // --precision auto is a choice; --max_steps auto defers to --num_epochs
};
const std::vector<Replacement>& replacements() {
  static const std::vector<Replacement> all{{"max_steps", {"num_epochs"}},
                                            {"num_epochs", {"max_steps"}},
                                            {"batch_ramp", {"target_batch_size"}},
                                            {"target_batch_size", {"batch_ramp"}},
                                            {"precision", {"use_fp8"}, true},
                                            {"use_fp8", {"precision"}, true},
                                            {"dataset", {"val_data", "train_data"}, true},
                                            {"train_data", {"dataset"}, true},
                                            {"gpus", {"ranks", "rank", "master"}},
                                            {"ranks", {"gpus"}}};
  return all;
}

// Should `other` of the weaker source survive `given` of the stronger one?
bool still_holds(const std::string& given, const std::string& other, const Options& weaker, const Options& stronger) {
  if (given == "use_fp8")
    return !stronger.use_fp8 && weaker.precision != PrecisionChoice::fp8; // --no-use_fp8 only excludes FP8
  return given == "dataset" && other == "val_data" &&
         weaker.train_data.empty(); // val_data does not belong to a train_data
}

std::vector<TomlLine> read_option_file(const std::string& path) {
  const bool yaml = path.ends_with(".yaml") || path.ends_with(".yml");
  const std::string toml = std::filesystem::path(path).replace_extension(".toml").string();
  std::error_code ignored;
  if (yaml && !std::filesystem::exists(path, ignored) && std::filesystem::exists(toml, ignored))
    throw Error(ExitCode::usage, "there is no " + path, "did you mean --config " + toml + "?");
  const std::string text = read_text_file(path, ExitCode::usage);
  return yaml ? read_yaml(text, path) : read_toml(text, path);
}

// A hint for an argument that belongs to no flag.
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

std::string write_toml(const Options& options, bool explained) {
  std::string out = "# train_gpt2_fp8 --config THIS_FILE\n", group;
  for (const OptionField& field : option_fields()) {
    if (field.not_stored) continue;
    if (field.group != group) out += "\n# " + (group = field.group) + "\n";
    const bool is_auto = explained && field.text(options) == "auto";
    const std::string numbers = is_auto ? meaning_of_auto(field.name, options) : "";
    out += field.name + " = " + field.toml(options) + (numbers.empty() ? "" : " # " + numbers) + "\n";
  }
  return out;
}

const Action* find_action(const std::string& name) {
  const auto found = std::ranges::find(actions(), name, &Action::name);
  return found == actions().end() ? nullptr : &*found;
}

double positive_seconds(const std::string& text) {
  const std::optional<double> seconds = parse_number<double>(text);
  if (!seconds || !(*seconds > 0 && *seconds <= 86400))
    throw Error(ExitCode::usage, "--measure: '" + text + "' is not a number of seconds", "as in --measure 60");
  return *seconds;
}

// A split command line; the last value of each flag counts.
struct Words {
  std::map<std::string, std::string> options, actions; // by name
  std::vector<std::string> others;                     // not flags, or unknown
  std::vector<std::string> notes;
  Unresolved unresolved;
};

// The option or action of a flag. Dashes count as underscores; flags of other trainers map to ours.
struct Meaning {
  const OptionField* field = nullptr;
  const Action* action = nullptr;
  const FlagAlias* alias = nullptr;
  bool negated = false;

  bool is_known() const { return field || action || alias; }
  bool is_switch() const {
    return field ? field->is_switch() : action ? action->value_name.empty() : alias && alias->is_switch;
  }
};

Meaning meaning_of(const std::string& typed) {
  const bool off = typed.starts_with("no-") || typed.starts_with("no_");
  for (const bool negated : {false, true}) {
    if (negated && !off) break;
    const std::string name = with_underscores(negated ? typed.substr(3) : typed);
    Meaning meaning{.field = find_field(name), .negated = negated};
    if (!meaning.field && !negated) meaning.action = find_action(name);
    if (!meaning.is_known()) meaning.alias = find_flag_alias(name);
    if (meaning.alias && meaning.alias->kind == AliasKind::unsupported) meaning.alias = nullptr;
    if (meaning.alias && meaning.alias->kind == AliasKind::renamed) meaning.field = find_field(meaning.alias->option);
    if (meaning.is_known() && (!negated || meaning.is_switch())) return meaning;
  }
  return {};
}

[[noreturn]] void throw_missing_value(const OptionField* field, const std::string& flag) {
  const std::string name = field ? field->name : "";
  throw Error(ExitCode::usage,
              flag + " needs a value" +
                  (name == "resume"      ? ": latest, best, a step, a run or a path"
                   : name == "init_from" ? ": a path, or a name in --hf_cache"
                                         : ""),
              name == "resume" || name == "init_from" ? "leave it out for a new run" : "see --help");
}

// --bf16 True, as Hugging Face's scripts take it.
bool is_truth_value(const std::string& word) {
  return word == "true" || word == "True" || word == "false" || word == "False";
}

Words split_words(int argc, const char* const* argv) {
  Words words;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t name_begin = word.find_first_not_of('-'), equals = std::min(word.find('='), word.size());
    if (word.starts_with('-') && (name_begin == std::string::npos || name_begin == equals))
      throw Error(ExitCode::usage, "'" + word + "' names no flag", "see --help");
    const bool is_flag = word.starts_with("--"), has_value = equals < word.size();
    const Meaning meaning = word == "-h" ? Meaning{.action = find_action("help")}
                            : is_flag    ? meaning_of(word.substr(2, equals - 2))
                                         : Meaning{};
    if (!meaning.is_known() || (meaning.negated && has_value)) {
      words.others.push_back(word);
      continue;
    }
    std::string value = has_value ? word.substr(equals + 1) : meaning.negated ? "false" : "true";
    if (!meaning.is_switch() && !has_value) {
      if (++i == argc) throw_missing_value(meaning.field, word);
      value = argv[i]; // even if it begins with a dash
    } else if (meaning.alias && !has_value && i + 1 < argc && is_truth_value(argv[i + 1])) {
      value = argv[++i];
    }
    if (meaning.action) {
      words.actions[meaning.action->name] = value;
    } else if (meaning.alias) {
      const auto [option, ours] = translate({meaning.alias, word.substr(0, equals), value},
                                            meaning.negated ? "--no-" : "--", words.notes, words.unresolved);
      if (!option.empty()) words.options[option] = ours;
    } else {
      words.options[meaning.field->name] = value;
    }
  }
  return words;
}

[[noreturn]] void refuse_word(const std::string& other) {
  const std::string word = other.substr(0, other.find('='));
  if (!word.starts_with('-'))
    throw Error(ExitCode::usage, "unexpected argument '" + other + "'", advice_for_word(other));
  const FlagAlias* const alias = find_flag_alias(with_underscores(word.substr(word.find_first_not_of('-'))));
  if (alias && alias->kind == AliasKind::unsupported)
    throw Error(ExitCode::usage, "unknown flag " + word, alias->sentence);
  std::vector<std::string> names;
  for (const Action& action : actions()) names.push_back("--" + action.name);
  for (const OptionField& field : option_fields()) {
    names.push_back("--" + field.name);
    if (field.is_switch()) names.push_back("--no-" + field.name);
  }
  throw Error(ExitCode::usage, "unknown flag " + word, did_you_mean(word, names, "see --help"));
}

Options apply_flags(const Words& words) {
  Options flags;
  for (const OptionField& field : option_fields()) { // in the order of the help
    const auto given = words.options.find(field.name);
    if (given != words.options.end()) set_option(field, given->second, "--" + field.name, flags);
  }
  for (const std::string name : {"resume", "init_from"}) { // --resume "$RUN" with RUN unset must not start a new run
    const auto given = words.options.find(name);
    if (given != words.options.end() && given->second.empty()) throw_missing_value(find_field(name), "--" + name);
  }
  if (words.options.contains("use_fp8") && !flags.use_fp8 && flags.precision == PrecisionChoice::fp8)
    throw Error(ExitCode::usage, "--no-use_fp8 and --precision fp8 contradict each other", "give one of the two");
  return flags;
}

// With the numbers of the given --model; errors of the command line are ignored.
std::string help_for(const Words& words) {
  Options options;
  try {
    options = apply_flags(words);
    config_by_name(options.model == "auto" ? "nano" : options.model);
  } catch (const Error&) {
    options.model = "auto";
  }
  const auto columns = static_cast<size_t>(std::clamp(terminal_columns(), 40, 120)); // longer lines are hard to read
  return words.actions.contains("help_all") ? help_all_text(options, columns) : help_text(options, columns);
}

} // namespace

std::optional<CommandLine> parse_options(int argc, const char* const* argv, const std::string& version) {
  const Words words = split_words(argc, argv);
  const auto asked = [&](const char* action) { return words.actions.contains(action); };
  if (asked("version") || asked("help") || asked("help_all")) {
    std::cout << (asked("version") ? version + "\n" : help_for(words));
    return std::nullopt;
  }
  if (!words.others.empty()) refuse_word(words.others.front());
  Options flags = apply_flags(words);
  CommandLine line{.options = {}, .given = {}, .notes = words.notes};
  for (const auto& [name, value] : words.options) line.typed.insert(name);
  take_dataset_part(words.unresolved.dataset_part, flags.dataset, line.typed, line.notes);
  GivenAlias accumulation = words.unresolved.accumulation;
  if (asked("config")) {
    const std::string& path = words.actions.at("config");
    const GivenAlias of_file = apply_lines(read_option_file(path), path, false, line);
    if (!accumulation.alias) accumulation = of_file;
  }
  override_options(line.options, line.given, flags, line.typed);
  set_target(accumulation, line, words.unresolved.accumulation.alias != nullptr);
  Options& options = line.options;
  options.print_config = asked("print_config");
  options.list_checkpoints = asked("list_checkpoints");
  options.eval_only = asked("eval_only");
  options.plan = asked("plan");
  options.json = asked("json");
  if (asked("man_page")) line.manual = "man";
  if (asked("completion")) line.manual = words.actions.at("completion");
  if (asked("measure")) options.measure = positive_seconds(words.actions.at("measure"));
  if (asked("for") && (options.plan_for = words.actions.at("for")).empty()) throw_missing_value(nullptr, "--for");
  check_conflicts(options);
  return line;
}

std::string to_toml(const Options& options) { return write_toml(options, false); }
std::string to_explained_toml(const Options& options) { return write_toml(options, true); }

CommandLine from_toml(const std::string& text, const std::string& origin) {
  CommandLine line;
  const GivenAlias accumulation = apply_lines(read_toml(text, origin), origin, true, line);
  override_options(line.options, line.given, {}, {});
  set_target(accumulation, line, false);
  check_conflicts(line.options);
  return line;
}

void override_options(Options& options, std::set<std::string>& given, const Options& stronger,
                      const std::set<std::string>& given_by_stronger) {
  for (const auto& [name, resets, by_default_too] : replacements()) {
    if (!given_by_stronger.contains(name)) continue;
    if (!by_default_too && find_field(name)->same(stronger, Options{})) continue;
    for (const char* other : resets) {
      if (still_holds(name, other, options, stronger)) continue;
      find_field(other)->copy(Options{}, options);
      given.erase(other);
    }
  }
  for (const std::string& name : given_by_stronger) find_field(name)->copy(stronger, options);
  given.insert(given_by_stronger.begin(), given_by_stronger.end());
  if (options.use_fp8 && options.precision == PrecisionChoice::automatic) options.precision = PrecisionChoice::fp8;
}

void check_conflicts(const Options& o) {
  const auto refuse_if = [](bool conflict, const std::string& what, const std::string& hint = "give one of the two") {
    if (conflict) throw Error(ExitCode::usage, what, hint);
  };
  refuse_if(o.use_fp8 && o.precision != PrecisionChoice::fp8,
            "--use_fp8 and --precision " + name_of(o.precision) + " contradict each other");
  refuse_if(o.max_steps > 0 && o.num_epochs > 0, "--max_steps and --num_epochs both set the length of the run");
  refuse_if(o.target_batch_size > 0 && o.target_batch_size != ramp_of(o).last(),
            "--batch_ramp and --target_batch_size both give the size of a step");
  const std::string of_plan = o.json ? "--json" : o.measure > 0 ? "--measure" : !o.plan_for.empty() ? "--for" : "";
  refuse_if(!o.plan && !of_plan.empty(), of_plan + " needs --plan", "give both, or neither");
  refuse_if(o.measure > 0 && !o.plan_for.empty(), "--measure measures this machine, not --for " + o.plan_for);
  refuse_if(o.plan && o.eval_only, "--plan and --eval_only exclude each other");
  refuse_if((o.ranks > 0) != (o.rank >= 0), "--ranks and --rank need each other",
            "give both, and --master; or only --gpus N");
  if (o.ranks > 0) explicit_launch(o.ranks, o.rank, o.master); // throws for an invalid rank
  refuse_if(o.ranks > 0 && !o.gpus.empty(), "--gpus starts all ranks itself",
            "give --gpus, or --ranks, --rank and --master");
  refuse_if(o.resume.empty() && o.train_data.empty() && o.dataset.empty() && !o.val_data.empty(),
            "--val_data needs --train_data", "give both, or neither for the built-in sample");
}

} // namespace gpt2
