#include "tools/export_hf/export_hf.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/json_reader.h"
#include "engine/checkpoint/atomic_folder.h"
#include "engine/checkpoint/names.h"
#include "engine/model/parameters.h"
#include "tools/export_hf/safetensors_writer.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kEndOfText = 50256, kGpt2Vocabulary = 50257;
constexpr size_t kLongestConfig = 1 << 20; // bytes

// ---- weights ----

struct Part { // one file
  std::string name;
  std::vector<ParameterTensor> tensors;
  std::vector<NewTensor> stored; // the same, with the file's names and shapes
};

std::string stored_name(const ParameterTensor& tensor) { return "transformer." + tensor.name; }

bool is_conv1d(const ParameterTensor& tensor) { return tensor.cols > 0 && tensor.name.starts_with("h."); }

NewTensor to_stored(const ParameterTensor& tensor, const GPT2Config& config) {
  std::vector<int64_t> shape = tensor.shape();
  if (tensor.name == "wte.weight") shape[0] = config.vocab; // without the padding
  if (is_conv1d(tensor)) std::swap(shape[0], shape[1]);
  return {stored_name(tensor), shape};
}

std::vector<Part> cut(const GPT2Config& config, const ExportOptions& options) {
  std::vector<Part> parts;
  int64_t bytes = 0;
  const ParameterTable table(config);
  for (const ParameterTensor& tensor : table.tensors()) {
    const NewTensor stored = to_stored(tensor, config);
    const int64_t more = SafetensorsWriter::data_bytes(std::span(&stored, 1), options.type);
    if (parts.empty() || bytes + more > options.file_bytes) {
      parts.emplace_back();
      bytes = 0;
    }
    bytes += more;
    parts.back().tensors.push_back(tensor);
    parts.back().stored.push_back(stored);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    char name[64] = "model.safetensors";
    if (parts.size() > 1) std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, parts.size());
    parts[i].name = name;
  }
  return parts;
}

void check_stop(const ExportOptions& options) {
  if (options.stop()) throw Error(ExitCode::stopped_early, "stopped: " + options.output + " was not written");
}

void append_rows(SafetensorsWriter& writer, WeightSource& weights, const ParameterTensor& tensor, int64_t count,
                 const ExportOptions& options) {
  constexpr int64_t kAtOnce = 1 << 22; // elements
  std::vector<float> values(static_cast<size_t>(std::min(kAtOnce, count)));
  for (int64_t begin = 0; begin < count; begin += kAtOnce) {
    check_stop(options);
    const std::span<float> now = std::span(values).first(static_cast<size_t>(std::min(kAtOnce, count - begin)));
    weights.read_range("params/" + tensor.name, begin, now);
    writer.append(now);
  }
}

// (out, in) to Conv1D's (in, out).
void append_turned(SafetensorsWriter& writer, WeightSource& weights, const ParameterTensor& tensor) {
  std::vector<float> ours(static_cast<size_t>(tensor.count())), turned(ours.size());
  weights.read_floats("params/" + tensor.name, ours);
  for (int64_t out = 0; out < tensor.rows; ++out)
    for (int64_t in = 0; in < tensor.cols; ++in)
      turned[static_cast<size_t>(in * tensor.rows + out)] = ours[static_cast<size_t>(out * tensor.cols + in)];
  writer.append(turned);
}

void write_part(const std::string& folder, const Part& part, WeightSource& weights, const ExportOptions& options) {
  SafetensorsWriter writer(folder + "/" + part.name, part.stored, options.type);
  for (size_t i = 0; i < part.tensors.size(); ++i) {
    check_stop(options);
    if (is_conv1d(part.tensors[i]))
      append_turned(writer, weights, part.tensors[i]);
    else
      append_rows(writer, weights, part.tensors[i], element_count(part.stored[i].shape), options);
  }
  writer.close();
}

Json index_of(const std::vector<Part>& parts, WeightType type) {
  Json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", Json::object()}};
  int64_t bytes = 0;
  for (const Part& part : parts) {
    bytes += SafetensorsWriter::data_bytes(part.stored, type);
    for (const NewTensor& tensor : part.stored) index["weight_map"][tensor.name] = part.name;
  }
  index["metadata"]["total_size"] = bytes;
  return index;
}

// ---- config, tokenizer and index files ----

Json config_json(const GPT2Config& config, WeightType type) {
  Json json = {{"architectures", {"GPT2LMHeadModel"}},
               {"model_type", "gpt2"},
               {"activation_function", "gelu_new"},
               {"n_layer", config.layers},
               {"n_head", config.heads},
               {"n_embd", config.channels},
               {"n_positions", config.seq_len},
               {"n_ctx", config.seq_len},
               {"n_inner", nullptr},
               {"vocab_size", config.vocab},
               {"layer_norm_epsilon", 1e-5},
               {"initializer_range", 0.02},
               {"attn_pdrop", 0.0}, // trained without dropout
               {"embd_pdrop", 0.0},
               {"resid_pdrop", 0.0},
               {"scale_attn_weights", true},
               {"tie_word_embeddings", true},
               {"use_cache", true},
               {"torch_dtype", type == WeightType::f32 ? "float32" : "bfloat16"}};
  if (config.vocab == kGpt2Vocabulary) json["bos_token_id"] = json["eos_token_id"] = kEndOfText;
  return json;
}

void write_json(const std::string& path, const Json& json) { write_file_atomic(path, json.dump(2) + "\n"); }

void write_tokenizer(const std::string& folder, const GPT2Config& config, const std::string& tables) {
  const std::string end = "<|endoftext|>";
  write_file_atomic(folder + "/vocab.json", read_text_file(tables + "/encoder.json"));
  write_file_atomic(folder + "/merges.txt", read_text_file(tables + "/vocab.bpe"));
  const Json special = {{"bos_token", end}, {"eos_token", end}, {"unk_token", end}};
  write_json(folder + "/special_tokens_map.json", special);
  Json settings = {
      {"tokenizer_class", "GPT2Tokenizer"}, {"model_max_length", config.seq_len}, {"add_prefix_space", false}};
  settings.update(special);
  write_json(folder + "/tokenizer_config.json", settings);
  write_json(folder + "/generation_config.json", {{"bos_token_id", kEndOfText}, {"eos_token_id", kEndOfText}});
}

// ---- --overwrite: replaces an earlier export, never other files ----

bool is_part_name(std::string_view name) { // model-00001-of-00002.safetensors
  constexpr std::string_view kPattern = "model-#####-of-#####.safetensors";
  const auto fits = [](char c, char pattern) { return pattern == '#' ? c >= '0' && c <= '9' : c == pattern; };
  return std::ranges::equal(name, kPattern, fits);
}

bool is_name_of_ours(const std::string& name) {
  constexpr std::array<std::string_view, 8> kNames = {
      "config.json",           "generation_config.json",       "merges.txt",
      "model.safetensors",     "model.safetensors.index.json", "vocab.json",
      "tokenizer_config.json", "special_tokens_map.json"};
  return std::ranges::count(kNames, name) > 0 || is_part_name(name);
}

bool is_gpt2_config(const std::string& path) {
  std::error_code unreadable;
  if (!fs::is_regular_file(path, unreadable)) return false;
  const auto config = parse_json<Json>(read_text_file(path, ExitCode::usage, kLongestConfig));
  return config.is_object() && config.contains("model_type") && config["model_type"] == "gpt2";
}

// Why the folder is not an earlier export; empty: it is one.
std::string why_no_export(const std::string& folder) {
  std::error_code unreadable;
  for (const auto& entry : fs::directory_iterator(folder, unreadable)) {
    const std::string name = entry.path().filename().string();
    if (!is_name_of_ours(name) || !entry.is_regular_file(unreadable))
      return folder + " holds " + name + ", which is not part of an export";
  }
  return is_gpt2_config(folder + "/config.json") ? "" : folder + " holds no config.json of a GPT-2 model";
}

void expect_free(const std::string& folder, bool overwrite) {
  std::error_code unreadable;
  if (!fs::exists(folder, unreadable)) return;
  if (!fs::is_directory(folder, unreadable))
    throw Error(ExitCode::usage, folder + " exists and is not a folder", "choose another --output");
  if (fs::is_empty(folder, unreadable)) return;
  const std::string obstacle = why_no_export(folder);
  if (overwrite && obstacle.empty()) return;
  if (overwrite)
    throw Error(ExitCode::usage, obstacle, "--overwrite replaces only an earlier export: choose another --output");
  throw Error(ExitCode::usage, folder + " is not empty",
              obstacle.empty() ? "choose another --output, or give --overwrite to replace the model"
                               : "choose another --output");
}

} // namespace

std::vector<std::string> export_hugging_face(WeightSource& weights, const ExportOptions& options) {
  const std::string output = resolve_links(without_slashes(options.output));
  if (output.empty()) throw Error(ExitCode::usage, "--output is empty", "name a folder");
  expect_free(output, options.overwrite);
  PendingFolder pending(output);
  const std::string& folder = pending.temporary_path();
  const std::vector<Part> parts = cut(weights.config(), options);
  for (const Part& part : parts) write_part(folder, part, weights, options);
  if (parts.size() > 1) write_json(folder + "/model.safetensors.index.json", index_of(parts, options.type));
  write_json(folder + "/config.json", config_json(weights.config(), options.type));
  if (!options.tokenizer.empty()) write_tokenizer(folder, weights.config(), options.tokenizer);
  std::vector<std::string> written;
  for (const auto& entry : fs::directory_iterator(folder))
    written.push_back(output + "/" + entry.path().filename().string());
  std::ranges::sort(written);
  check_stop(options);
  expect_free(output, options.overwrite); // created meanwhile: not replaced
  pending.commit();
  return written;
}

} // namespace gpt2
