#include "tools/compare/run_groups.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "tools/report/run_state.h"
#include "tools/report/run_table.h"

namespace gpt2 {
namespace {

using Json = nlohmann::json;

// Options that may differ within a group: they do not affect the loss, or are the seed.
const std::set<std::string> kPerRunOptions = {"seed", "run_name", "log_dir", "checkpoint_dir", "resume", "plan_cache"};

const Json& options_of(const RunReader& run) { return run.metrics().lives.back()["options"]; }

Json compared_options(const RunReader& run) {
  Json options = options_of(run);
  for (const std::string& name : kPerRunOptions) options.erase(name);
  return options;
}

std::string shown(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

// "max_lr=0.001", or only the value where it explains itself: "fp8".
std::string name_by(const std::vector<std::string>& differing, const Json& options) {
  std::vector<std::string> parts;
  for (const std::string& key : differing) {
    const std::string value = shown(options.value(key, Json("none")));
    const bool plain = key == "precision" || key == "model" || key == "dataset" || key == "lr_schedule";
    parts.push_back(plain ? value : key + "=" + value);
  }
  return listed(parts, " ");
}

std::vector<std::string> differing_options(const std::vector<Json>& all) {
  std::set<std::string> names, differing;
  for (const Json& options : all)
    for (const auto& [name, value] : options.items()) names.insert(name);
  for (const std::string& name : names)
    for (const Json& options : all)
      if (options.value(name, Json()) != all.front().value(name, Json())) differing.insert(name);
  if (differing.contains("precision")) differing.erase("use_fp8"); // the same setting
  return {differing.begin(), differing.end()};
}

} // namespace

int64_t seed_of(const RunReader& run) {
  const Json seed = options_of(run).value("seed", Json());
  return seed.is_number_integer() ? seed.get<int64_t>() : 0;
}

std::vector<RunGroup> group_by_options(const std::vector<RunReader>& runs) {
  std::vector<RunGroup> groups;
  std::vector<Json> options;
  for (const RunReader& run : runs) {
    const Json own = compared_options(run);
    const size_t at = static_cast<size_t>(std::find(options.begin(), options.end(), own) - options.begin());
    if (at == options.size()) options.push_back(own), groups.emplace_back();
    groups[at].runs.push_back(&run);
  }
  if (groups.size() < 2)
    throw Error(ExitCode::usage, "these runs differ only in their seeds",
                "name the groups: bin/compare A=RUN,RUN B=RUN,RUN");
  const std::vector<std::string> differing = differing_options(options);
  for (size_t i = 0; i < groups.size(); ++i)
    groups[i].name = differing.size() <= 2 ? name_by(differing, options[i]) : groups[i].runs.front()->name();
  return groups;
}

void check_groups(const std::vector<RunGroup>& groups) {
  std::set<std::string> names;
  for (const RunGroup& group : groups) {
    if (!names.insert(group.name).second)
      throw Error(ExitCode::usage, "two groups are named " + group.name, "give each group its own name");
    std::set<int64_t> seeds;
    for (const RunReader* run : group.runs)
      if (!seeds.insert(seed_of(*run)).second)
        throw Error(
            ExitCode::usage,
            run->name() + " has the same seed as another run of " + group.name + ": " + std::to_string(seed_of(*run)),
            "remove one of them");
  }
}

bool has_diverged(const RunReader& run) {
  return state_of(run) == "diverged" || (!run.metrics().validations.at.empty() && !std::isfinite(last_validation(run)));
}

bool any_diverged(const RunGroup& group) {
  return std::any_of(group.runs.begin(), group.runs.end(), [](const RunReader* run) { return has_diverged(*run); });
}

std::string trouble_of(const RunGroup& group) {
  std::map<std::string, int> states;
  for (const RunReader* run : group.runs) ++states[has_diverged(*run) ? "diverged" : state_of(*run)];
  std::vector<std::string> parts;
  for (const auto& [state, words] : {std::pair{"diverged", "diverged"},
                                     {"failed", "failed"},
                                     {"stopped", "stopped early"},
                                     {"running", "still running"}})
    if (states[state] > 0) parts.push_back(std::to_string(states[state]) + " " + words);
  return listed(parts);
}

std::vector<std::string> doubts(const std::vector<RunGroup>& groups) {
  std::vector<std::string> notes;
  std::vector<std::string> data;
  for (const char* name : {"dataset", "data_dir", "train_data", "val_data", "eval_sequences", "seq_len", "tokenizer"}) {
    std::set<Json> values;
    for (const RunGroup& group : groups) values.insert(options_of(*group.runs.front()).value(name, Json()));
    if (values.size() > 1) data.emplace_back(name);
  }
  if (!data.empty())
    notes.push_back("the groups use different data (" + listed(data) + "): their losses are not comparable");
  std::set<std::string> devices;
  for (const RunGroup& group : groups)
    for (const RunReader* run : group.runs)
      devices.insert(shown(run->metrics().lives.back().value("device", Json(""))));
  if (devices.size() > 1) notes.push_back("the runs used different devices: speed and time compare the devices");
  return notes;
}

} // namespace gpt2
