#include "tools/sweep/sweep_file.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "engine/base/nearest_name.h"
#include "engine/options/option_fields.h"
#include "engine/system/files.h"
#include "tools/sweep/toml_tables.h"

namespace gpt2 {
namespace {

constexpr size_t kMostRuns = 1000, kLongestName = 150;

using Entry = TomlTable::Entry;

[[noreturn]] void fail(const std::string& path, int line, const std::string& what, const std::string& hint = "") {
  throw Error(ExitCode::usage, path + ":" + std::to_string(line) + ": " + what, hint);
}

void check_key(const std::string& path, const Entry& entry, const std::set<std::string>& more) {
  std::vector<std::string> names(more.begin(), more.end());
  for (const OptionField& field : option_fields()) names.push_back(field.name);
  if (std::find(names.begin(), names.end(), entry.key) != names.end()) return;
  fail(path, entry.line, "unknown option " + entry.key, did_you_mean(entry.key, names));
}

// One option as a flag; this form works for switches too.
std::string flag(const std::string& key, const std::string& value) { return "--" + key + "=" + value; }

struct Variant { // options of one run beyond the common ones
  std::string name;
  std::vector<std::string> flags;
  int line;
};

std::string joined(const std::string& left, const std::string& right) {
  return left + (left.empty() || right.empty() ? "" : "-") + right;
}

std::vector<std::string> flags_of(const std::string& path, const TomlTable& table, const std::set<std::string>& more,
                                  std::string& name) {
  std::vector<std::string> flags;
  for (const Entry& entry : table.entries) {
    check_key(path, entry, more);
    if (entry.is_list) fail(path, entry.line, entry.key + " is a list", "put lists into [grid]");
    if (entry.key == "name")
      name = entry.values.front();
    else
      flags.push_back(flag(entry.key, entry.values.front()));
  }
  return flags;
}

Variant listed_run(const std::string& path, const TomlTable& table) {
  std::string name;
  std::vector<std::string> flags = flags_of(path, table, {"name"}, name);
  if (flags.empty() && name.empty()) fail(path, table.line, "empty [[run]]", "give it options or a name");
  if (name.empty())
    for (const Entry& entry : table.entries) name = joined(name, folder_name(entry.key + "_" + entry.values.front()));
  return {name, flags, table.line};
}

std::vector<Variant> on_grid(const std::string& path, const TomlTable& grid, std::vector<Variant> variants) {
  for (const Entry& entry : grid.entries) {
    check_key(path, entry, {});
    if (entry.values.empty())
      fail(path, entry.line, "the list of " + entry.key + " is empty", "give values, or remove the key");
    if (variants.size() * entry.values.size() > kMostRuns)
      fail(path, entry.line, "the grid has more than " + std::to_string(kMostRuns) + " points",
           "split it into several sweeps");
    std::vector<Variant> more;
    for (const Variant& variant : variants)
      for (const std::string& value : entry.values) {
        const std::string shown = std::filesystem::path(value).filename().string(); // the last part of a path
        if (std::any_of(variant.flags.begin(), variant.flags.end(),
                        [&](const std::string& given) { return given.rfind(flag(entry.key, ""), 0) == 0; }))
          fail(path, entry.line, entry.key + " is in [grid] and in a [[run]]", "remove one of them");
        more.push_back({joined(variant.name, folder_name(entry.key + "_" + shown)), variant.flags, entry.line});
        more.back().flags.push_back(flag(entry.key, value));
      }
    variants = std::move(more);
  }
  return variants;
}

} // namespace

Sweep read_sweep(const std::string& path) {
  if (path.ends_with(".yaml") || path.ends_with(".yml"))
    throw Error(ExitCode::usage, "a sweep file is TOML, and " + path + " is YAML",
                "write it as key = value with [grid] and [[run]]: docs/tools.md has an example");
  const std::vector<TomlTable> tables = read_toml_tables(read_text_file(path, ExitCode::usage), path);
  Sweep sweep{std::filesystem::path(path).stem().string(), {}};
  const std::vector<std::string> common = flags_of(path, tables.front(), {"name", "config"}, sweep.name);
  sweep.name = folder_name(sweep.name);
  if (sweep.name.empty()) fail(path, 1, "the name of the sweep has no letter or digit", "choose another name");
  std::vector<Variant> variants;
  const TomlTable* grid = nullptr;
  for (size_t i = 1; i < tables.size(); ++i) {
    const TomlTable& table = tables[i];
    if (table.name == "run" && table.repeats)
      variants.push_back(listed_run(path, table));
    else if (table.name == "grid" && !table.repeats)
      grid = &table;
    else
      fail(path, table.line, "unknown section " + table.name, "a sweep has [grid] and [[run]]");
  }
  if (variants.empty()) variants.push_back({"", {}, 0});
  if (grid) variants = on_grid(path, *grid, std::move(variants));
  if (variants.size() == 1 && variants.front().line == 0)
    throw Error(ExitCode::usage, path + " has neither a [grid] nor a [[run]]", "for a single run call train_gpt2_fp8");

  std::set<std::string> names;
  for (const Variant& variant : variants) {
    std::vector<std::string> flags = common;
    flags.insert(flags.end(), variant.flags.begin(), variant.flags.end());
    const std::string name = folder_name(variant.name);
    if (name.empty()) fail(path, variant.line, "the name of a run has no letter or digit", "choose another name");
    if (name.size() > kLongestName)
      fail(path, variant.line, "the name " + name + " is too long", "give each [[run]] a short name");
    if (!names.insert(name).second)
      fail(path, variant.line, "two runs are named " + name, "give each [[run]] a name, and no value twice");
    sweep.runs.push_back(make_run_spec(name, flags, path + ", run " + name));
  }
  return sweep;
}

} // namespace gpt2
