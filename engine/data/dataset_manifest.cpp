#include "engine/data/dataset_manifest.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "engine/base/json_reader.h"
#include "engine/data/dataset_folder.h"
#include "engine/data/dataset_json.h"
#include "engine/system/content_hash.h"

namespace gpt2 {
namespace fs = std::filesystem;
namespace {

const std::string kFormat = "GPT-2 token shards";
constexpr int kVersion = 1;
constexpr int64_t kEnd = 4096;                          // bytes
constexpr int64_t kLargestManifest = int64_t{64} << 20; // bytes: 300,000 shards

void visit_shard(auto& shard, auto visit) {
  visit("name", shard.name);
  visit("bytes", shard.bytes);
  visit("tokens", shard.tokens);
  visit("xxh3_128", shard.hash);
  visit("ends", shard.ends);
}

void visit_source(auto& source, auto visit) {
  visit("path", source.path);
  visit("bytes", source.bytes);
  visit("documents", source.documents);
  visit("text_bytes", source.text_bytes);
}

// All fields except name, tokenizer and options.
void visit_content(auto& manifest, auto visit) {
  visit("sources", manifest.sources);
  visit("documents", manifest.documents);
  visit("duplicates", manifest.duplicates);
  visit("bad_lines", manifest.bad_lines);
  visit("train_tokens", manifest.train_tokens);
  visit("val_tokens", manifest.val_tokens);
  visit("shards", manifest.shards);
}

void check_folder(const std::string& folder, const DatasetManifest& manifest,
                  const std::vector<const TokenSource*>& given, int vocabulary) {
  if (manifest.vocabulary > vocabulary) {
    throw Error(ExitCode::data,
                folder + " was made with a vocabulary of " + std::to_string(manifest.vocabulary) +
                    " tokens, the model has " + std::to_string(vocabulary),
                "prepare the data with the model's tokenizer");
  }
  for (const TokenSource* const shard : given) {
    const std::string name = fs::path(shard->path()).filename().string();
    const auto entry = std::ranges::find(manifest.shards, name, &ShardEntry::name);
    if (entry == manifest.shards.end())
      throw Error(
          ExitCode::data,
          shard->path() + " does not belong to the dataset: " + manifest_of_dataset(folder) + " does not list it",
          "remove it, or give a pattern that does not match it");
    check_shard(*shard, *entry);
  }
  for (const ShardEntry& shard : manifest.shards) {
    std::error_code ignored;
    if (!fs::exists(fs::path(folder) / shard.name, ignored))
      throw Error(ExitCode::data, folder + "/" + shard.name + " is missing, and dataset.json lists it", kRemakeDataset);
  }
}

} // namespace

void to_json(OrderedJson& json, const ShardEntry& shard) { visit_shard(shard, WriteFields{json}); }
void from_json(const OrderedJson& json, ShardEntry& shard) { visit_shard(shard, ReadFields{json}); }
void to_json(OrderedJson& json, const SourceEntry& source) { visit_source(source, WriteFields{json}); }
void from_json(const OrderedJson& json, SourceEntry& source) { visit_source(source, ReadFields{json}); }

std::string to_text(const DatasetManifest& manifest) {
  OrderedJson json = {
      {"format", kFormat},
      {"version", kVersion},
      {"name", manifest.name},
      {"tokenizer", {{"name", "gpt2"}, {"vocabulary", manifest.vocabulary}, {"xxh3_128", manifest.tokenizer_hash}}},
      {"options", parse_json<OrderedJson>(manifest.options)}};
  visit_content(manifest, WriteFields{json});
  return json.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n"; // a path need not be UTF-8
}

DatasetManifest parse_dataset_manifest(const std::string& text, const std::string& path) {
  const auto damaged = [&](const std::string& why) {
    return Error(ExitCode::data, path + " is damaged: " + why, kRemakeDataset);
  };
  try {
    std::string why;
    const auto json = parse_json<OrderedJson>(text, {}, &why);
    if (json.is_discarded()) throw damaged(why);
    if (json.at("format") != kFormat) throw damaged("it is not the manifest of a dataset");
    if (const int version = json.at("version").get<int>(); version != kVersion)
      throw Error(
          ExitCode::data,
          path + " has version " + std::to_string(version) + "; this program reads version " + std::to_string(kVersion),
          "use the version of the program that wrote it");
    DatasetManifest manifest;
    json.at("name").get_to(manifest.name);
    json.at("tokenizer").at("vocabulary").get_to(manifest.vocabulary);
    json.at("tokenizer").at("xxh3_128").get_to(manifest.tokenizer_hash);
    manifest.options = json.at("options").dump();
    visit_content(manifest, ReadFields{json});
    for (const ShardEntry& shard : manifest.shards)
      if (!is_shard_name(shard.name)) throw damaged("a shard is named \"" + shard.name + "\"");
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    throw damaged(error.what());
  }
}

std::optional<DatasetManifest> read_dataset_manifest(const std::string& folder) {
  const std::string path = manifest_of_dataset(folder);
  std::error_code unreadable;
  if (!fs::exists(path, unreadable)) return std::nullopt;
  if (File::open(path).size() > kLargestManifest) // refuses a pipe, too
    throw Error(ExitCode::data, path + " is larger than any manifest of a dataset", kRemakeDataset);
  return parse_dataset_manifest(read_text_file(path), path);
}

std::string hash_of_ends(const File& file) {
  const int64_t bytes = file.size(), end = std::min(kEnd, bytes);
  std::vector<std::byte> ends(static_cast<size_t>(2 * end));
  file.read_at(0, std::span(ends).first(static_cast<size_t>(end)));
  file.read_at(bytes - end, std::span(ends).last(static_cast<size_t>(end)));
  return hash_of(ends);
}

void check_shard(const TokenSource& shard, const ShardEntry& entry) {
  const std::string& path = shard.path();
  const File file = File::open(path);
  const auto expect = [&](const std::string& what, int64_t found, int64_t expected) {
    if (found == expected) return;
    throw Error(ExitCode::data,
                path + " has " + std::to_string(found) + " " + what + ", dataset.json says " + std::to_string(expected),
                kRemakeDataset);
  };
  expect("bytes", file.size(), entry.bytes);
  expect("tokens", shard.tokens(), entry.tokens);
  if (hash_of_ends(file) != entry.ends)
    throw Error(ExitCode::data, path + " is not the shard that dataset.json lists: its first or last tokens differ",
                kRemakeDataset);
}

void check_shards(const std::vector<std::unique_ptr<TokenSource>>& shards, int vocabulary) {
  std::map<std::string, std::vector<const TokenSource*>> by_folder;
  for (const auto& shard : shards) {
    const std::string folder = fs::path(shard->path()).parent_path().string();
    by_folder[folder.empty() ? "." : folder].push_back(shard.get());
  }
  for (const auto& [folder, given] : by_folder) {
    if (const auto manifest = read_dataset_manifest(folder))
      check_folder(folder, *manifest, given, vocabulary);
    else
      refuse_unfinished(folder);
  }
}

} // namespace gpt2
