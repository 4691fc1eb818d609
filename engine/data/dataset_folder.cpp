#include "engine/data/dataset_folder.h"

#include <algorithm>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/formatted.h"

namespace gpt2 {
namespace fs = std::filesystem;
namespace {

bool is_shard_name(const std::string& name, const std::string& prefix, const std::string& extension) {
  const std::string start = prefix + "_", end = "." + extension;
  if (name.size() < start.size() + 6 + end.size() || !name.starts_with(start) || !name.ends_with(end)) return false;
  const std::string number = name.substr(start.size(), name.size() - start.size() - end.size());
  return std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; });
}

bool has_shards(const std::string& folder, const std::string& prefix, const std::string& extension) {
  return !existing_shards(folder, prefix, extension).empty();
}

// Datasets in a folder: "books, fineweb-edu".
std::string names_in(const std::string& data_dir) {
  std::vector<std::string> names;
  std::error_code missing_folder;
  for (const auto& entry : fs::directory_iterator(data_dir, missing_folder)) {
    const std::string folder = entry.path().string();
    if (has_shards(folder, "train", "bin") || has_shards(folder, "train", "h5"))
      names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return listed(names);
}

} // namespace

void check_dataset_name(const std::string& name) {
  if (name != "." && name != ".." && name.find('/') == std::string::npos) return;
  const std::string last = fs::path(name).filename().string(); // of HuggingFaceFW/fineweb-edu
  const bool usable = !last.empty() && last != "." && last != "..";
  throw Error(ExitCode::usage, "--dataset takes a name, not a path: " + name,
              usable ? "use --dataset " + last + ", and --data_dir for its parent folder"
                     : "give the name of a folder in --data_dir");
}

DatasetPatterns find_dataset(const std::string& data_dir, const std::string& name) {
  check_dataset_name(name);
  const std::string folder = (fs::path(data_dir) / name).string();
  const bool bin = has_shards(folder, "train", "bin"), h5 = has_shards(folder, "train", "h5");
  if (!bin && !h5) {
    refuse_unfinished(folder);
    const std::string others = names_in(data_dir);
    throw Error(ExitCode::data, "there is no dataset " + name + ": no " + folder + "/train_*.bin or .h5",
                std::string("make it with bin/prepare_data --dataset ") + name +
                    " (your own text: bin/prepare_data FILE... --dataset " + name + ")" +
                    (others.empty() ? "" : ", or use one of those in " + data_dir + ": " + others));
  }
  if (bin && h5) {
    throw Error(ExitCode::data, folder + " holds training shards of both formats, .bin and .h5",
                "remove the shards of one format, or select shards by --train_data and --val_data");
  }
  const std::string extension = bin ? "bin" : "h5";
  const bool val = has_shards(folder, "val", extension);
  return {folder + "/train_*." + extension, val ? folder + "/val_*." + extension : ""};
}

bool is_shard_name(const std::string& name) {
  for (const char* const prefix : {"train", "val"})
    for (const char* const extension : {"bin", "h5"})
      if (is_shard_name(name, prefix, extension)) return true;
  return false;
}

std::vector<std::string> existing_shards(const std::string& folder, const std::string& prefix,
                                         const std::string& extension) {
  std::vector<std::string> found;
  std::error_code missing_folder;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, missing_folder)) {
    if (is_shard_name(entry.path().filename().string(), prefix, extension)) found.push_back(entry.path().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string prepare_folder(const std::string& output) { return output + "/.prepare"; }

bool is_being_prepared(const std::string& output) {
  std::error_code unreadable;
  return fs::exists(prepare_folder(output) + "/journal", unreadable);
}

void refuse_unfinished(const std::string& output) {
  if (is_being_prepared(output))
    throw Error(ExitCode::data, "the dataset in " + output + " is not finished",
                "run its bin/prepare_data command again: it resumes");
}

} // namespace gpt2
