#include "tools/compare/compare_runs.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <set>

#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/base/parse_number.h"
#include "engine/base/split.h"
#include "tools/common/output_kinds.h"
#include "tools/common/shell_words.h"
#include "tools/compare/comparison.h"
#include "tools/compare/comparison_text.h"
#include "tools/report/page.h"
#include "tools/report/page_data.h"
#include "tools/sweep/run_set.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostSeeds = 1000;

std::vector<std::string> between_commas(const std::string& text) {
  std::vector<std::string> words = split(text, ',');
  std::erase(words, "");
  return words;
}

// ---- training ----

std::vector<int64_t> seeds_of(const std::string& text) {
  std::vector<int64_t> seeds;
  for (const std::string& word : between_commas(text)) {
    const int64_t seed = parse_number<int64_t>(word).value_or(-1);
    if (seed < 0)
      throw Error(ExitCode::usage, "--seeds " + text + ": '" + word + "' is not a seed",
                  "give a number of seeds, or 1,5,9");
    seeds.push_back(seed);
  }
  if (text.find(',') == std::string::npos && seeds.size() == 1) { // how many
    const int64_t count = seeds.front();
    seeds.clear();
    for (int64_t seed = 1; seed <= std::min(count, kMostSeeds + 1); ++seed) seeds.push_back(seed);
  }
  if (static_cast<int64_t>(seeds.size()) > kMostSeeds)
    throw Error(ExitCode::usage, "--seeds " + text + " exceeds " + std::to_string(kMostSeeds), "use fewer seeds");
  if (seeds.empty())
    throw Error(ExitCode::usage, "--seeds " + text + ": no seed given", "give a number of seeds, or 1,5,9");
  if (std::set(seeds.begin(), seeds.end()).size() != seeds.size())
    throw Error(ExitCode::usage, "--seeds " + text + ": repeated seed", "give each seed once");
  return seeds;
}

struct OptionSet {
  std::string name;
  std::vector<std::string> flags;
};

// The unquantized precision of this machine, and FP8.
std::vector<OptionSet> default_sets(const CompareCommand& command) {
  const RunSpec any = make_run_spec("any", command.flags, "after --");
  for (const char* name : {"precision", "use_fp8"})
    if (any.given.contains(name))
      throw Error(ExitCode::usage, std::string("--") + name + " distinguishes the two default sets",
                  "give your own sets: --set \"NAME: FLAGS\"");
  const bool gpu = any.options.device != DeviceKind::cpu && gpu_count() > 0;
  const std::string full = gpu ? "bf16" : "fp32";
  return {{full, {"--precision", full}}, {"fp8", {"--precision", "fp8"}}};
}

std::vector<OptionSet> sets_of(const CompareCommand& command) {
  if (command.sets.empty()) return default_sets(command);
  std::vector<OptionSet> sets;
  std::set<std::string> names;
  for (const std::string& text : command.sets) {
    const size_t colon = text.find(':');
    const std::string name = folder_name(text.substr(0, colon));
    if (colon == std::string::npos || name.empty())
      throw Error(ExitCode::usage, "--set \"" + text + "\" has no name",
                  "write --set \"NAME: FLAGS\", as --set \"e4m3: --use_fp8 --fp8_format e4m3\"");
    if (!names.insert(name).second)
      throw Error(ExitCode::usage, "two sets are named " + name, "give each --set its own name");
    sets.push_back({name, shell_words(text.substr(colon + 1), "--set \"" + text + "\"")});
  }
  if (sets.size() < 2) throw Error(ExitCode::usage, "only one --set", "give two or more");
  return sets;
}

RunSet run_set_of(const CompareCommand& command, const std::vector<OptionSet>& sets) {
  std::vector<RunSpec> runs;
  for (const int64_t seed : seeds_of(command.seeds)) // seed by seed: the first results are comparable early
    for (const OptionSet& set : sets) {
      std::vector<std::string> flags{"--seed", std::to_string(seed)};
      flags.insert(flags.end(), command.flags.begin(), command.flags.end());
      flags.insert(flags.end(), set.flags.begin(), set.flags.end());
      runs.push_back(make_run_spec(set.name + "-seed" + std::to_string(seed), flags, "set " + set.name));
      if (runs.back().options.seed != static_cast<uint64_t>(seed))
        throw Error(ExitCode::usage, "--seed is set for each run by --seeds", "remove it");
    }
  return RunSet(command.dir, find_trainer(command.program), std::move(runs));
}

// ---- groups ----

struct Groups {
  std::vector<RunReader> runs; // the groups point into this
  std::vector<RunGroup> groups;
};

Groups trained_groups(std::vector<RunSet::Result> results, const std::vector<OptionSet>& sets) {
  Groups out;
  std::vector<size_t> set_of;
  for (RunSet::Result& result : results) {
    if (result.reader.metrics().steps.at.empty()) continue;
    out.runs.push_back(std::move(result.reader));
    set_of.push_back(result.index % sets.size());
  }
  for (size_t set = 0; set < sets.size(); ++set) {
    RunGroup group{sets[set].name, {}};
    for (size_t i = 0; i < out.runs.size(); ++i)
      if (set_of[i] == set) group.runs.push_back(&out.runs[i]);
    if (!group.runs.empty()) out.groups.push_back(std::move(group));
  }
  return out;
}

// The end of the group name; npos: no group name. A folder name may contain =.
size_t end_of_name(const std::string& word) { return fs::exists(word) ? std::string::npos : word.find('='); }

Groups named_groups(const CompareCommand& command) {
  Groups out;
  const bool has_names = end_of_name(command.runs.front()) != std::string::npos; // the first decides for all
  std::vector<std::pair<std::string, size_t>> names;                             // and number of runs
  for (const std::string& word : command.runs) {
    const size_t equals = end_of_name(word);
    const bool has_name = equals != std::string::npos;
    if (has_name != has_names)
      throw Error(ExitCode::usage, "some runs are in a named group, others are not",
                  "give NAME=RUN,RUN for all or for none");
    const std::vector<std::string> folders = has_name ? between_commas(word.substr(equals + 1)) : std::vector{word};
    if (has_name) names.emplace_back(word.substr(0, equals), folders.size());
    for (const std::string& folder : folders) out.runs.emplace_back(find_run(folder, command.log_dir));
  }
  if (!has_names) {
    out.groups = group_by_options(out.runs);
    return out;
  }
  size_t at = 0;
  for (const auto& [name, count] : names) {
    RunGroup group{name, {}};
    for (size_t i = 0; i < count; ++i) group.runs.push_back(&out.runs[at++]);
    if (name.empty()) throw Error(ExitCode::usage, "a group has no name", "write NAME=RUN,RUN");
    if (count == 0) throw Error(ExitCode::usage, "group " + name + " has no run", "write NAME=RUN,RUN");
    out.groups.push_back(std::move(group));
  }
  if (names.size() < 2) throw Error(ExitCode::usage, "only one group", "give two or more");
  return out;
}

void show(const CompareCommand& command, const std::vector<RunGroup>& groups, const std::string& path) {
  const Comparison comparison = compare(groups, command.margin);
  nlohmann::json data = page_data(groups);
  data["comparison"] = comparison_json(comparison);
  std::vector<std::string> names;
  for (const RunGroup& group : groups) names.push_back(group.name);
  const std::string written = write_page(path, data, listed(names, " and "));
  if (command.json) {
    std::cout << data["comparison"].dump() << "\n" << std::flush;
    return;
  }
  for (const std::string& line : comparison_table(comparison)) log_info(line);
  log_info(written);
}

// ---- commands ----

ExitCode compare_finished(const CompareCommand& command) {
  if (!command.sets.empty() || !command.flags.empty() || command.list)
    throw Error(ExitCode::usage, "finished runs take no --set, --list or trainer flags",
                "remove --set, --list and everything after --");
  const Groups found = named_groups(command);
  const fs::path beside = fs::weakly_canonical(found.runs.front().folder()).parent_path() / "compare.html";
  const std::string path =
      command.output.empty() ? beside.lexically_proximate(fs::current_path()).string() : command.output;
  refuse_foreign_file(path, kPageOutput, command.overwrite);
  show(command, found.groups, path);
  return ExitCode::done;
}

ExitCode train_and_compare(const CompareCommand& command) {
  const std::vector<OptionSet> sets = sets_of(command);
  const RunSet run_set = run_set_of(command, sets);
  if (command.list) {
    for (const RunSpec& run : run_set.runs()) log_info(run.name + ": " + describe(run_set.progress(run)));
    return ExitCode::done;
  }
  if (const fs::path place = fs::path(command.output).parent_path(); !place.empty() && !fs::is_directory(place))
    throw Error(ExitCode::disk, "no folder " + place.string() + " for the page", "create it, or choose another -o");
  const std::string path = command.output.empty() ? command.dir + "/compare.html" : command.output;
  refuse_foreign_file(path, kPageOutput, command.overwrite);
  RunSet::Ending ending = run_set.train();
  const Groups trained = trained_groups(run_set.results(ending), sets);
  if (trained.groups.size() >= 2) show(command, trained.groups, path);
  return report_ending(ending, run_set);
}

} // namespace

ExitCode compare_runs(const CompareCommand& command) {
  return command.runs.empty() ? train_and_compare(command) : compare_finished(command);
}

} // namespace gpt2
