// GPT-2 as transformers saves it: config.json beside model.safetensors, or beside its parts and their index.
//
// Names are ours, mostly with "transformer." before them. Its Conv1D keeps (in, out), we keep (out, in): matrices of
// the blocks are turned while they are read, one at a time.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/error.h"
#include "engine/exchange/safetensors.h"
#include "engine/exchange/weight_source.h"
#include "engine/model/parameters.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kPrefix = "transformer.", kHead = "lm_head.weight", kIndex = "model.safetensors.index.json";

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ExitCode::checkpoint, "cannot use " + path + ": " + why, "only GPT-2 models can be taken over");
}

Json read_json(const std::string& path) {
  const Json json = Json::parse(read_text_file(path, ExitCode::checkpoint), nullptr, false);
  if (!json.is_object()) refuse(path, "it is not a JSON object");
  return json;
}

class HuggingFaceWeights : public WeightSource {
 public:
  explicit HuggingFaceWeights(const std::string& file_or_folder) : WeightSource(file_or_folder) {
    const bool is_file = fs::path(path_).extension() == ".safetensors";
    const std::string folder = is_file ? fs::path(path_).parent_path().string() : path_;
    for (const std::string& file : is_file ? std::vector{path_} : files_of(folder)) files_.emplace_back(file);
    index();
    const std::string config = (folder.empty() ? "." : folder) + "/config.json";
    std::error_code absent;
    if (fs::is_regular_file(config, absent))
      read_config(config);
    else
      guess_config();
    expect_every_tensor();
    expect_tied_head();
  }

 private:
  struct Place {
    size_t file;
    std::string name; // in the file
  };

  static std::vector<std::string> files_of(const std::string& folder) {
    std::error_code absent;
    if (!fs::is_regular_file(folder + "/" + kIndex, absent)) return {folder + "/model.safetensors"};
    const Json index = read_json(folder + "/" + kIndex);
    std::set<std::string> names;
    if (index.contains("weight_map") && index["weight_map"].is_object()) {
      for (const auto& [tensor, file] : index["weight_map"].items())
        if (file.is_string() && fs::path(file.get<std::string>()).filename() == file.get<std::string>())
          names.insert(folder + "/" + file.get<std::string>());
    }
    if (names.empty()) refuse(folder + "/" + kIndex, "it names no files");
    return {names.begin(), names.end()};
  }

  void index() {
    for (size_t file = 0; file < files_.size(); ++file) {
      for (const auto& [name, tensor] : files_[file].tensors()) {
        const bool prefixed = name.starts_with(kPrefix);
        places_[prefixed ? name.substr(kPrefix.size()) : name] = {file, name};
      }
    }
  }

  const StoredTensor* find(const std::string& name) const {
    const auto place = places_.find(name);
    return place == places_.end() ? nullptr : &files_[place->second.file].tensors().at(place->second.name);
  }

  const std::vector<int64_t>& stored_shape(const std::string& name) const {
    if (const StoredTensor* tensor = find(name)) return tensor->shape;
    refuse(path_, "it has no tensor " + name);
  }

  void read_config(const std::string& path) {
    const Json json = read_json(path);
    const auto number = [&](const char* key, const char* otherwise) {
      const char* used = json.contains(key) ? key : otherwise;
      if (!json.contains(used) || !json[used].is_number_integer()) refuse(path, std::string("it does not say ") + key);
      const auto value = json[used].get<int64_t>();
      if (value < 1 || value > (1 << 20)) refuse(path, std::string(key) + " is " + std::to_string(value));
      return static_cast<int>(value);
    };
    config_.layers = number("n_layer", "num_hidden_layers");
    config_.heads = number("n_head", "num_attention_heads");
    config_.channels = number("n_embd", "hidden_size");
    config_.seq_len = number("n_positions", "n_ctx");
    config_.vocab = number("vocab_size", "vocab_size");
    const auto expect = [&](const char* key, const Json& ours) {
      if (json.contains(key) && !json[key].is_null() && json[key] != ours)
        refuse(path, std::string(key) + " is " + json[key].dump() + ", and GPT-2's is " + ours.dump());
    };
    expect("model_type", "gpt2");
    expect("activation_function", "gelu_new");
    expect("layer_norm_epsilon", 1e-5);
    expect("scale_attn_weights", true);
    expect("scale_attn_by_inverse_layer_idx", false);
    expect("add_cross_attention", false);
    expect("tie_word_embeddings", true);
    expect("n_inner", 4 * config_.channels);
    finish_config();
  }

  // All but the number of heads can be seen.
  void guess_config() {
    config_.layers = 0;
    while (find("h." + std::to_string(config_.layers) + ".ln_1.weight")) config_.layers += 1;
    for (const char* table : {"wte.weight", "wpe.weight"}) {
      if (stored_shape(table).size() != 2) refuse(path_, std::string(table) + " is not a matrix");
    }
    config_.channels = static_cast<int>(stored_shape("wte.weight")[1]);
    config_.vocab = static_cast<int>(stored_shape("wte.weight")[0]);
    config_.seq_len = static_cast<int>(stored_shape("wpe.weight")[0]);
    config_.heads = std::max(1, config_.channels / 64);
    notes_.push_back("no config.json beside " + path_ + ": " + std::to_string(config_.heads) +
                     " heads of 64 channels are assumed, as in GPT-2");
    finish_config();
  }

  void finish_config() {
    config_.name = fs::path(path_).filename().string();
    config_.padded_vocab = (config_.vocab + 127) / 128 * 128;
    try {
      validate(config_);
    } catch (const Error& error) {
      refuse(path_, error.what());
    }
  }

  static bool is_turned(const std::string& name) { return name.starts_with("h.") && name.ends_with(".weight"); }

  void expect_every_tensor() const {
    const ParameterTable table(config_);
    for (const ParameterTensor& tensor : table.tensors()) {
      std::vector<int64_t> expected = tensor.shape();
      if (tensor.name == "wte.weight") expected[0] = config_.vocab;
      if (is_turned(tensor.name)) std::ranges::reverse(expected);
      if (stored_shape(tensor.name) != expected)
        refuse(path_, tensor.name + " does not have the shape that the rest of the model asks for");
    }
  }

  // Where the LM head is saved too, it must be the embedding: ours is.
  void expect_tied_head() {
    if (!find(kHead)) return;
    constexpr int64_t kRowsAtOnce = 1024;
    const auto C = static_cast<size_t>(config_.channels);
    bool same = stored_shape(kHead) == stored_shape("wte.weight");
    std::vector<float> head(kRowsAtOnce * C), embedding(head.size());
    for (int64_t row = 0; same && row < config_.vocab; row += kRowsAtOnce) {
      const size_t count = static_cast<size_t>(std::min(kRowsAtOnce, config_.vocab - row)) * C;
      read_stored(kHead, row * config_.channels, std::span(head).first(count));
      read_stored("wte.weight", row * config_.channels, std::span(embedding).first(count));
      same = std::equal(head.begin(), head.begin() + static_cast<int64_t>(count), embedding.begin());
    }
    if (!same) refuse(path_, "its LM head is not its token embedding");
  }

  void read_stored(const std::string& name, int64_t begin, std::span<float> values) const {
    const Place& place = places_.at(name);
    files_[place.file].read(place.name, begin, values);
  }

  void fetch(const std::string& name, int64_t begin, std::span<float> values) override {
    const std::vector<int64_t>& shape = stored_shape(name);
    if (!is_turned(name) || shape.size() == 1) return read_stored(name, begin, values);
    if (turned_name_ != name) turn(name, shape[0], shape[1]);
    std::copy_n(turned_.begin() + begin, values.size(), values.begin());
  }

  // (in, out) as it is stored, (out, in) as we want it.
  void turn(const std::string& name, int64_t in, int64_t out) {
    std::vector<float> stored(static_cast<size_t>(in * out));
    read_stored(name, 0, stored);
    turned_.resize(stored.size());
    for (int64_t i = 0; i < in; ++i)
      for (int64_t o = 0; o < out; ++o)
        turned_[static_cast<size_t>(o * in + i)] = stored[static_cast<size_t>(i * out + o)];
    turned_name_ = name;
  }

  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place> places_; // by our name
  std::string turned_name_;
  std::vector<float> turned_; // the last matrix that was asked for
};

} // namespace

std::unique_ptr<WeightSource> open_hugging_face(const std::string& file_or_folder) {
  return std::make_unique<HuggingFaceWeights>(file_or_folder);
}

} // namespace gpt2
