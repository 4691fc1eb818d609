#include "engine/pretrained/weight_source.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <stdexcept>

#include "engine/base/error.h"
#include "engine/base/float_formats.h"
#include "engine/base/formatted.h"
#include "engine/base/split.h"
#include "engine/checkpoint/names.h"
#include "engine/checkpoint/search.h"
#include "engine/model/parameters.h"
#include "engine/system/files.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;

// nullopt: not a tensor of GPT-2.
std::optional<ParameterTensor> find_tensor(const GPT2Config& config, const std::string& name) {
  const ParameterTable table(config);
  const auto found = std::ranges::find_if(
      table.tensors(), [&](const ParameterTensor& tensor) { return "params/" + tensor.name == name; });
  return found == table.tensors().end() ? std::nullopt : std::optional(*found);
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string default_cache() {
  if (const std::string cache = variable("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = variable("HF_HOME"); !home.empty()) return home + "/hub";
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/huggingface/hub";
  return variable("HOME") + "/.cache/huggingface/hub";
}

// CACHE/models--OWNER--NAME/snapshots/COMMIT: the snapshot of "main", or the only one; "": none.
std::string find_in_cache(const std::string& cache, const std::string& name) {
  std::vector<std::string> names = {name};
  if (name.find('/') == std::string::npos) names.insert(names.begin(), "openai-community/" + name);
  for (const std::string& full : names) {
    const std::string model = cache + "/models--" + listed(split(full, '/'), "--"), main = model + "/refs/main";
    std::error_code absent;
    if (fs::is_regular_file(main, absent)) {
      std::string commit = read_text_file(main, ExitCode::checkpoint);
      commit.erase(commit.find_last_not_of(" \n\r\t") + 1);
      if (fs::is_directory(model + "/snapshots/" + commit, absent)) return model + "/snapshots/" + commit;
    }
    std::vector<std::string> snapshots;
    for (const auto& entry : fs::directory_iterator(model + "/snapshots", absent))
      snapshots.push_back(entry.path().string());
    if (snapshots.size() == 1) return snapshots.front();
  }
  return "";
}

// A checkpoint by the forms of --resume: latest, best, a run's name, RUN/STEP; "": none.
std::string find_own_checkpoint(const std::string& which) {
  try {
    return find_checkpoint(default_checkpoint_dirs(), "", which);
  } catch (const Error&) {
    return "";
  }
}

const char* const kHint =
    "give a checkpoint, a folder with config.json and model.safetensors, llm.c's .bin, or a name that "
    "`hf download` has fetched (--hf_cache: its folder); bin/ckpt list shows the checkpoints here";

} // namespace

void WeightSource::use_positions(int seq_len) {
  if (seq_len > config_.seq_len) {
    throw Error(ExitCode::usage,
                "--seq_len " + std::to_string(seq_len) + " is longer than the " + std::to_string(config_.seq_len) +
                    " positions that " + path_ + " was trained with",
                "use --seq_len " + std::to_string(config_.seq_len) + " or less");
  }
  if (seq_len < config_.seq_len)
    notes_.push_back("the first " + std::to_string(seq_len) + " of the " + std::to_string(config_.seq_len) +
                     " positions of " + path_ + " are used");
  config_.seq_len = seq_len;
}

bool WeightSource::has(const std::string& name) const { return find_tensor(config_, name).has_value(); }

std::vector<int64_t> WeightSource::shape(const std::string& name) { return find_tensor(config_, name).value().shape(); }

void WeightSource::read_floats(const std::string& name, std::span<float> values) { read_range(name, 0, values); }

void WeightSource::read_range(const std::string& name, int64_t begin, std::span<float> values) {
  const ParameterTensor tensor = find_tensor(config_, name).value();
  const auto count = static_cast<int64_t>(values.size());
  if (begin < 0 || begin + count > tensor.count()) throw std::out_of_range(name + " has no such elements");
  const int64_t real = tensor.name == "wte.weight" ? int64_t{config_.vocab} * config_.channels : tensor.count();
  const auto there = static_cast<size_t>(std::clamp<int64_t>(real - begin, 0, count));
  if (there > 0) fetch(tensor.name, begin, values.first(there));
  expect_finite(tensor.name, values.first(there));
  std::ranges::fill(values.subspan(there), 0.0f);
}

void WeightSource::expect_finite(const std::string& name, std::span<const float> values) const {
  if (all_finite(values)) return;
  throw Error(ExitCode::checkpoint,
              "cannot use " + file_of(name) + ": " + name + " holds values that are not finite (NaN or infinity)",
              "use an earlier checkpoint of that model, or copy or download it again");
}

int64_t WeightSource::read_int(const std::string& name) { throw std::out_of_range("weights hold no number " + name); }
std::string WeightSource::read_text(const std::string& name) {
  throw std::out_of_range("weights hold no text " + name);
}

std::unique_ptr<WeightSource> open_weights(const std::string& path_or_name, const std::string& hf_cache) {
  std::error_code absent;
  const std::string path = without_slashes(path_or_name);
  if (fs::exists(path, absent)) {
    const fs::path extension = fs::path(path).extension();
    if (extension == ".safetensors") return open_hugging_face(path);
    if (extension == ".bin") return open_llmc(path);
    if (fs::is_regular_file(path + "/config.json", absent)) return open_hugging_face(path);
  }
  if (path == kLatest || path == kBest || fs::exists(path, absent))
    return open_checkpoint_weights(find_checkpoint(default_checkpoint_dirs(), "", path, kHint));
  const std::string cache = hf_cache.empty() ? default_cache() : without_slashes(hf_cache);
  if (const std::string snapshot = find_in_cache(cache, path); !snapshot.empty()) return open_hugging_face(snapshot);
  if (const std::string checkpoint = find_own_checkpoint(path); !checkpoint.empty())
    return open_checkpoint_weights(checkpoint);
  throw Error(ExitCode::checkpoint,
              "there are no weights at \"" + path_or_name + "\", and none of that name in " + cache, kHint);
}

} // namespace gpt2
