#include "tools/prepare_data/known_datasets.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/base/json_reader.h"
#include "tools/common/child_process.h"

namespace gpt2 {
namespace fs = std::filesystem;
namespace {

constexpr const char* kSeparator = "<|endoftext|>";
// Tokens: llm.c's fineweb.py (10B sample), the data set's card (100B), nanoGPT's README (the others).
constexpr KnownDataset kKnown[] = {
    {"fineweb-edu", "HuggingFaceFW/fineweb-edu", "sample/10BT", nullptr, 0.001, kSeparator, 9'953'989'344},
    {"fineweb-edu-100B", "HuggingFaceFW/fineweb-edu", "sample/100BT", nullptr, 0.0001, kSeparator, 100'000'000'000},
    {"openwebtext", "Skylion007/openwebtext", "plain_text", nullptr, 0.0005, kSeparator, 9'040'017'095},
    {"tinyshakespeare", nullptr, "input.txt",
     "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt", 0.1, "", 338'025},
};

bool is_address(const std::string& from) { return from.find("://") != std::string::npos; }

std::string in_folder(const KnownDataset& dataset, const std::string& from) {
  const std::string path = (fs::path(from) / dataset.path).string();
  std::error_code ignored;
  if (fs::exists(path, ignored)) return path;
  throw Error(ExitCode::data, "--from " + from + " holds no " + dataset.path,
              "give the folder that contains it, or the address of a mirror (https://...)");
}

std::vector<std::string> download_command(const KnownDataset& dataset, const std::string& from,
                                          const std::string& folder) {
  std::vector<std::string> command = {"python3", find_script("tools/download_dataset.py", "downloads datasets"), "--to",
                                      folder};
  const auto add = [&](std::initializer_list<std::string> words) { command.insert(command.end(), words); };
  if (dataset.repository) {
    add({"--hub", dataset.repository, "--path", dataset.path});
    if (!from.empty()) add({"--endpoint", from});
  } else {
    add({"--url", from.empty() ? dataset.address : from + "/" + dataset.path});
  }
  return command;
}

void report_progress(const std::string& line, const DownloadHooks& hooks) {
  const auto json = parse_json(line);
  if (hooks.progress && json.is_object())
    hooks.progress(json.value("done", int64_t{0}), json.value("total", int64_t{0}));
}

} // namespace

const KnownDataset* find_known_dataset(const std::string& name) {
  const auto* const found = std::ranges::find(kKnown, name, &KnownDataset::name);
  return found == std::end(kKnown) ? nullptr : found;
}

std::string known_dataset_names() {
  std::vector<std::string> names;
  for (const KnownDataset& dataset : kKnown) names.emplace_back(dataset.name);
  return listed(names, ", ", " and ");
}

std::string fetch_dataset(const KnownDataset& dataset, const std::string& from, const std::string& folder,
                          const DownloadHooks& hooks) {
  if (!from.empty() && !is_address(from)) return in_folder(dataset, from);
  ChildProcess download(download_command(dataset, from, folder));
  for (std::string line; download.next_line(line);) {
    report_progress(line, hooks);
    if (hooks.stop && hooks.stop()) return ""; // the script's next line hits a closed pipe
  }
  const ChildProcess::Ending ending = download.wait();
  if (ending.status == static_cast<int>(ExitCode::stopped_early) || (hooks.stop && hooks.stop())) return "";
  if (ending.status != 0) {
    throw Error(ending.status == static_cast<int>(ExitCode::disk) ? ExitCode::disk : ExitCode::data,
                ending.error_line.empty() ? "tools/download_dataset.py exited with " + std::to_string(ending.status)
                                          : without_error_prefix(ending.error_line));
  }
  return (fs::path(folder) / dataset.path).string();
}

} // namespace gpt2
