// GPT-2 as transformers saves it: config.json next to model.safetensors, or next to its shards and their index.
//
// Tensor names equal ours, mostly with the prefix "transformer.". Its Conv1D stores (in, out), we use (out, in): block
// matrices are transposed while reading, one at a time.
#include <algorithm>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/json_reader.h"
#include "engine/model/parameters.h"
#include "engine/pretrained/safetensors.h"
#include "engine/pretrained/weight_source.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kPrefix = "transformer.", kHead = "lm_head.weight", kIndex = "model.safetensors.index.json";
constexpr size_t kLargestIndex = size_t{64} << 20; // bytes: 500,000 tensors

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ExitCode::checkpoint, "cannot use " + path + ": " + why, "only GPT-2 models can be imported");
}

Json read_json(const std::string& path) {
  const JsonLimits limits{.bytes = kLargestIndex, .unique_keys = true};
  std::string why = "it is not a JSON object";
  const Json json = parse_json(read_text_file(path, ExitCode::checkpoint, limits.bytes), limits, &why);
  if (!json.is_object()) refuse(path, why);
  return json;
}

class HuggingFaceWeights : public WeightSource {
 public:
  explicit HuggingFaceWeights(const std::string& file_or_folder) : WeightSource(file_or_folder) {
    const bool is_file = fs::path(path_).extension() == ".safetensors";
    const std::string folder = is_file ? fs::path(path_).parent_path().string() : path_;
    std::error_code absent;
    if (!is_file && fs::is_regular_file(folder + "/" + kIndex, absent))
      open_parts(folder);
    else
      files_.emplace_back(is_file ? path_ : folder + "/model.safetensors");
    find_places();
    const std::string config = (folder.empty() ? "." : folder) + "/config.json";
    if (fs::is_regular_file(config, absent))
      read_config(config);
    else
      config_from_shapes();
    expect_every_tensor();
    expect_tied_head();
  }

 private:
  struct Place {
    size_t file;
    std::string name; // in the file
  };

  // Opens the files of the index and checks that each holds the tensors that the index lists.
  void open_parts(const std::string& folder) {
    const std::string path = folder + "/" + kIndex;
    const Json index = read_json(path);
    if (!index.contains("weight_map") || !index["weight_map"].is_object() || index["weight_map"].empty())
      refuse(path, "it names no files");
    std::map<std::string, size_t> opened;
    for (const auto& [tensor, file] : index["weight_map"].items()) {
      const std::string name = file.is_string() ? file.get<std::string>() : "";
      if (name.empty() || fs::path(name).filename() != name) refuse(path, tensor + " is in no file of that folder");
      const auto [part, is_new] = opened.try_emplace(name, files_.size());
      if (is_new) files_.emplace_back((fs::path(folder) / name).string());
      if (!files_[part->second].tensors().contains(tensor))
        refuse(path, "it lists " + tensor + " in " + name + ", and " + name + " has no such tensor");
    }
  }

  // A tensor must occur once: of two copies, neither is known to be the right one.
  void find_places() {
    for (size_t file = 0; file < files_.size(); ++file) {
      for (const auto& [name, tensor] : files_[file].tensors()) {
        const std::string ours = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
        const auto [place, is_new] = places_.try_emplace(ours, Place{file, name});
        if (!is_new)
          refuse(path_,
                 ours + " occurs twice, in " + files_[place->second.file].path() + " and in " + files_[file].path());
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
      if (!json.contains(used) || !json[used].is_number_integer()) refuse(path, std::string("it has no ") + key);
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

  // Without config.json: the shapes give everything except the number of heads.
  void config_from_shapes() {
    config_.layers = 0;
    while (find("h." + std::to_string(config_.layers) + ".ln_1.weight")) config_.layers += 1;
    for (const char* table : {"wte.weight", "wpe.weight"}) {
      if (stored_shape(table).size() != 2) refuse(path_, std::string(table) + " is not a matrix");
    }
    config_.channels = static_cast<int>(stored_shape("wte.weight")[1]);
    config_.vocab = static_cast<int>(stored_shape("wte.weight")[0]);
    config_.seq_len = static_cast<int>(stored_shape("wpe.weight")[0]);
    config_.heads = std::max(1, config_.channels / 64);
    notes_.push_back("no config.json next to " + path_ + ": " + std::to_string(config_.heads) +
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

  static bool is_transposed(const std::string& name) { return name.starts_with("h.") && name.ends_with(".weight"); }

  void expect_every_tensor() const {
    const ParameterTable table(config_);
    for (const ParameterTensor& tensor : table.tensors()) {
      std::vector<int64_t> expected = tensor.shape();
      if (tensor.name == "wte.weight") expected[0] = config_.vocab;
      if (is_transposed(tensor.name)) std::ranges::reverse(expected);
      if (stored_shape(tensor.name) != expected)
        refuse(path_, tensor.name + " has another shape than the rest of the model requires");
    }
  }

  // A stored LM head must equal the embedding: our weights are tied.
  void expect_tied_head() {
    if (!find(kHead)) return;
    constexpr int64_t kRowsAtOnce = 1024;
    bool same = stored_shape(kHead) == stored_shape("wte.weight");
    for (int64_t row = 0; same && row < config_.vocab; row += kRowsAtOnce) {
      const int64_t rows = std::min(kRowsAtOnce, config_.vocab - row);
      const std::vector<float> head = read_rows(kHead, row, rows), embedding = read_rows("wte.weight", row, rows);
      same = head == embedding;
    }
    if (!same) refuse(path_, "its LM head is not its token embedding");
  }

  std::vector<float> read_rows(const std::string& name, int64_t first, int64_t rows) const {
    std::vector<float> values(static_cast<size_t>(rows * config_.channels));
    read_stored(name, first * config_.channels, values);
    expect_finite(name, values);
    return values;
  }

  void read_stored(const std::string& name, int64_t begin, std::span<float> values) const {
    const Place& place = places_.at(name);
    files_[place.file].read(place.name, begin, values);
  }

  void fetch(const std::string& name, int64_t begin, std::span<float> values) override {
    const std::vector<int64_t>& shape = stored_shape(name);
    if (!is_transposed(name) || shape.size() == 1) return read_stored(name, begin, values);
    if (transposed_name_ != name) transpose(name, shape[0], shape[1]);
    std::copy_n(transposed_.begin() + begin, values.size(), values.begin());
  }

  // Stored (in, out), returned (out, in).
  void transpose(const std::string& name, int64_t in, int64_t out) {
    std::vector<float> stored(static_cast<size_t>(in * out));
    read_stored(name, 0, stored);
    transposed_.resize(stored.size());
    for (int64_t i = 0; i < in; ++i)
      for (int64_t o = 0; o < out; ++o)
        transposed_[static_cast<size_t>(o * in + i)] = stored[static_cast<size_t>(i * out + o)];
    transposed_name_ = name;
  }

  std::string file_of(const std::string& name) const override { return files_[places_.at(name).file].path(); }

  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place> places_; // by our name
  std::string transposed_name_;
  std::vector<float> transposed_; // the last matrix read
};

} // namespace

std::unique_ptr<WeightSource> open_hugging_face(const std::string& file_or_folder) {
  return std::make_unique<HuggingFaceWeights>(file_or_folder);
}

} // namespace gpt2
