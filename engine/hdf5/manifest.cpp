#include "engine/hdf5/manifest.h"

#include <algorithm>
#include <filesystem>

#include "engine/base/formatted.h"
#include "engine/base/json_reader.h"
#include "engine/hdf5/parallel_for.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json; // keeps the order of keys

const std::string kFormat = "GPT-2 training checkpoint, manifest", kOptions = "options.toml";
constexpr int64_t kOldest = 1, kVersion = 2;                 // 1: without a summary
constexpr int64_t kLargest = int64_t{1} << 53;               // of any number
constexpr uintmax_t kLargestManifest = uintmax_t{256} << 20; // bytes: 100 TB of checkpoint
constexpr int kDeepest = 4;                                  // manifest, files, file, hashes

size_t block_count(int64_t bytes) { return static_cast<size_t>((bytes + kBlockBytes - 1) / kBlockBytes); }

// ---- as JSON ----

std::string own_hash(const Json& without_it) {
  const std::string text = without_it.dump(1);
  return hash_of(std::as_bytes(std::span(text)));
}

Json to_json(const FileHashes& file) { return {{"name", file.name}, {"bytes", file.bytes}, {"xxh3_128", file.blocks}}; }

Json to_json(const Manifest& manifest) {
  Json json = {{"format", kFormat},
               {"version", manifest.summary ? kVersion : kOldest},
               {"step", manifest.step},
               {"ranks", manifest.ranks}};
  if (const auto& summary = manifest.summary) {
    json["written"] = summary->written;
    json["model"] = summary->model;
    json["precision"] = summary->precision;
    json["val_loss"] = summary->val_loss;
    json["val_step"] = summary->val_step;
  }
  json["block_bytes"] = kBlockBytes;
  json["files"] = Json::array();
  for (const FileHashes& file : manifest.files) json["files"].push_back(to_json(file));
  return json;
}

// Checks every value before its use; errors name the path.
class Parser {
 public:
  explicit Parser(std::string path) : path_(std::move(path)) {}

  Manifest manifest(const std::string& text) const {
    auto json = parse_json<Json>(text, {.bytes = kLargestManifest, .depth = kDeepest});
    if (!json.is_object()) fail("it is not a JSON object like that of a manifest");
    const std::string expected = this->text(json, "xxh3_128");
    json.erase("xxh3_128");
    if (own_hash(json) != expected) fail("it does not have its own hash");
    // The hash is right: from here on, the text is what a program wrote.
    if (this->text(json, "format") != kFormat) fail("it is not the manifest of a checkpoint");
    const int64_t version = number(json, "version", 0, kLargest);
    if (version < kOldest || version > kVersion) {
      throw Error(ExitCode::checkpoint,
                  path_ + " has version " + std::to_string(version) + "; this program reads versions " +
                      std::to_string(kOldest) + " to " + std::to_string(kVersion),
                  "resume with the version of the program that wrote it");
    }
    Manifest manifest;
    manifest.step = number(json, "step", 0, kLargest);
    manifest.ranks = static_cast<int>(number(json, "ranks", 1, kMostRanks));
    if (version > kOldest) manifest.summary = summary(json);
    number(json, "block_bytes", kBlockBytes, kBlockBytes);
    const Json& files = member(json, "files");
    if (!files.is_array()) fail("files is not a list");
    for (const Json& entry : files) manifest.files.push_back(file(entry));
    check_names(manifest);
    if (to_text(manifest) != text) fail("it has unknown keys, or keys in another order");
    return manifest;
  }

  ManifestSummary summary(const Json& json) const {
    ManifestSummary summary{
        .written = text(json, "written"), .model = text(json, "model"), .precision = text(json, "precision")};
    const Json &loss = member(json, "val_loss"), &step = member(json, "val_step");
    if (summary.written.empty()) fail("written is empty");
    if (!loss.is_number()) fail("val_loss is " + loss.dump());
    if (!step.is_number_integer()) fail("val_step is " + step.dump());
    summary.val_loss = loss.get<double>();
    summary.val_step = step.get<int64_t>();
    return summary;
  }

  FileHashes file(const Json& json) const {
    if (!json.is_object()) fail("a file's entry is not an object");
    FileHashes file;
    file.name = text(json, "name");
    file.bytes = number(json, "bytes", 0, kLargest);
    const Json& blocks = member(json, "xxh3_128");
    if (!blocks.is_array() || blocks.size() != block_count(file.bytes))
      fail(file.name + " of " + std::to_string(file.bytes) + " bytes has " + std::to_string(block_count(file.bytes)) +
           " blocks, but another number of hashes");
    for (const Json& block : blocks) {
      if (!block.is_string() || !is_hash(block.get_ref<const std::string&>())) fail(file.name + " has a bad hash");
      file.blocks.push_back(block.get<std::string>());
    }
    return file;
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw Error(ExitCode::checkpoint, path_ + " is damaged: " + why);
  }

 private:
  static bool is_hash(const std::string& text) {
    return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
  }

  const Json& member(const Json& json, const char* name) const {
    const auto found = json.find(name);
    if (found == json.end()) fail(std::string("it has no ") + name);
    return *found;
  }
  std::string text(const Json& json, const char* name) const {
    const Json& value = member(json, name);
    if (!value.is_string()) fail(std::string(name) + " is not a text");
    return value.get<std::string>();
  }
  int64_t number(const Json& json, const char* name, int64_t least, int64_t most) const {
    const Json& value = member(json, name);
    if (!value.is_number_unsigned() || value.get<uint64_t>() < static_cast<uint64_t>(least) ||
        value.get<uint64_t>() > static_cast<uint64_t>(most))
      fail(std::string(name) + " is " + value.dump());
    return value.get<int64_t>();
  }

  void check_names(const Manifest& manifest) const {
    if (manifest.files.size() != static_cast<size_t>(manifest.ranks) + 1)
      fail("it names " + std::to_string(manifest.files.size()) + " files of " + std::to_string(manifest.ranks) +
           " ranks");
    for (int rank = 0; rank <= manifest.ranks; ++rank) {
      const std::string expected = rank < manifest.ranks ? fs::path(rank_file("", rank)).filename().string() : kOptions;
      if (manifest.of_rank(rank).name != expected)
        fail(manifest.of_rank(rank).name + " is in the place of " + expected);
    }
  }

  std::string path_;
};

// ---- files of the folder ----

void check_file(const std::string& folder, const FileHashes& file) {
  const std::string path = folder + "/" + file.name;
  std::error_code unreadable;
  const bool exists = fs::exists(path, unreadable);
  if (unreadable) throw_system_error(ExitCode::checkpoint, "examine", path, unreadable.value());
  if (!exists) throw Error(ExitCode::checkpoint, path + " is missing: manifest.json lists it");
  if (!fs::is_regular_file(path, unreadable)) throw Error(ExitCode::checkpoint, path + " is not a file");
  const auto bytes = static_cast<int64_t>(fs::file_size(path, unreadable));
  if (bytes == file.bytes) return;
  throw Error(ExitCode::checkpoint, path + " is damaged: it has " + std::to_string(bytes) + " bytes, not the " +
                                        std::to_string(file.bytes) + " in manifest.json");
}

// Other names are allowed: network file systems create their own.
void check_no_others(const std::string& folder, const Manifest& manifest) {
  std::error_code unreadable;
  for (const auto& entry : fs::directory_iterator(folder, unreadable)) {
    const std::string name = entry.path().filename().string();
    const auto has_name = [&](const FileHashes& file) { return file.name == name; };
    if (!name.ends_with(".h5") || std::ranges::any_of(manifest.files, has_name)) continue;
    throw Error(ExitCode::checkpoint,
                folder + "/" + name + " does not belong to the checkpoint: manifest.json does not name it",
                "move that file elsewhere: the checkpoint itself may be valid");
  }
}

} // namespace

std::string rank_file(const std::string& folder, int rank) {
  return folder + (rank == 0 ? "/state.h5" : formatted("/rank_%05d.h5", rank));
}

int64_t FileHashes::block_bytes(size_t block) const {
  return std::min(kBlockBytes, bytes - static_cast<int64_t>(block) * kBlockBytes);
}

FileHashes hash_file(const std::string& path) {
  const File file = File::open(path, ExitCode::disk);
  FileHashes hashes{.name = fs::path(path).filename().string(), .bytes = file.size(), .blocks = {}};
  hashes.blocks.resize(block_count(hashes.bytes));
  parallel_for(hashes.blocks.size(), [&](size_t block) {
    hashes.blocks[block] = hash_of_range(file, static_cast<int64_t>(block) * kBlockBytes, hashes.block_bytes(block));
  });
  return hashes;
}

Error damaged_block(const std::string& path, const FileHashes& hashes, size_t block) {
  const int64_t begin = static_cast<int64_t>(block) * kBlockBytes;
  return Error(ExitCode::checkpoint, path + " is damaged: bytes " + std::to_string(begin) + " to " +
                                         std::to_string(begin + hashes.block_bytes(block) - 1) +
                                         " do not match their hash in manifest.json");
}

std::string manifest_entry(const std::string& path) { return to_json(hash_file(path)).dump(); }

void write_manifest(const std::string& folder, int64_t step, const std::vector<std::string>& entries,
                    const std::optional<ManifestSummary>& summary) {
  Manifest manifest{.step = step, .ranks = static_cast<int>(entries.size()), .summary = summary, .files = {}};
  for (const std::string& entry : entries)
    manifest.files.push_back(Parser(manifest_path(folder)).file(parse_json<Json>(entry)));
  manifest.files.push_back(hash_file(folder + "/" + kOptions));
  write_file_atomic(manifest_path(folder), to_text(manifest));
}

std::string manifest_path(const std::string& folder) { return folder + "/manifest.json"; }

std::string to_text(const Manifest& manifest) {
  Json json = to_json(manifest);
  json["xxh3_128"] = own_hash(json);
  return json.dump(1) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& path) { return Parser(path).manifest(text); }

Manifest read_manifest(const std::string& folder) {
  const std::string path = manifest_path(folder);
  std::error_code unreadable;
  if (!fs::exists(path, unreadable))
    throw Error(ExitCode::checkpoint, path + " is missing: the checkpoint cannot be verified");
  if (const uintmax_t bytes = fs::file_size(path, unreadable); !unreadable && bytes > kLargestManifest)
    Parser(path).fail("it is larger than any manifest");
  const Manifest manifest = parse_manifest(read_text_file(path, ExitCode::checkpoint), path);
  for (const FileHashes& file : manifest.files) check_file(folder, file);
  check_no_others(folder, manifest);
  return manifest;
}

} // namespace gpt2
