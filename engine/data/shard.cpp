#include "engine/data/shard.h"

#include <glob.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "engine/base/shell_quote.h"
#include "engine/base/split.h"
#include "engine/data/shard_formats.h"
#include "engine/system/content_hash.h"
#include "engine/system/files.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "tokens are little-endian in the file");

const char* const kExpected = "give llm.c .bin shards (GPT-2 tokens) or .h5 shards; bin/prepare_data writes both";

void check_range(const TokenSource& source, int64_t position, size_t count) {
  if (position >= 0 && position + static_cast<int64_t>(count) <= source.tokens()) return;
  throw Error(ExitCode::data, source.path() + " holds " + std::to_string(source.tokens()) + " tokens, but " +
                                  std::to_string(count) + " were requested at " + std::to_string(position));
}

// The first read of a block compares its hash, if the file has hashes: 1 MiB is read for the first sample of each
// block.
class FileShard : public TokenSource {
 public:
  FileShard(File file, TokenExtent extent)
      : file_(std::move(file)), extent_(std::move(extent)), verified_(extent_.block_hashes.size()) {}

  int64_t tokens() const override { return extent_.tokens; }
  const std::string& path() const override { return file_.path(); }
  void read(int64_t position, std::span<uint16_t> out) const override {
    if (!verified_.empty() && !out.empty()) {
      const int64_t last = std::min(position + static_cast<int64_t>(out.size()), tokens()) - 1;
      for (int64_t block = position / extent_.block_tokens; block <= last / extent_.block_tokens; ++block)
        verify(block);
    }
    read_chunks(position, out);
  }

 private:
  void read_chunks(int64_t position, std::span<uint16_t> out) const {
    check_range(*this, position, out.size());
    while (!out.empty()) {
      const int64_t chunk = position / extent_.chunk_tokens, inside = position % extent_.chunk_tokens;
      const auto count = std::min(out.size(), static_cast<size_t>(extent_.chunk_tokens - inside));
      file_.read_at(extent_.offsets[static_cast<size_t>(chunk)] + inside * 2, std::as_writable_bytes(out.first(count)));
      position += static_cast<int64_t>(count);
      out = out.subspan(count);
    }
  }
  void verify(int64_t block) const {
    const auto i = static_cast<size_t>(block);
    if (verified_[i]) return; // two threads may both compare it: same result
    const int64_t first = block * extent_.block_tokens;
    std::vector<uint16_t> block_of_tokens(static_cast<size_t>(std::min(extent_.block_tokens, tokens() - first)));
    read_chunks(first, block_of_tokens);
    if (xxh64(std::as_bytes(std::span(block_of_tokens))) != extent_.block_hashes[i]) {
      const int64_t last = first + static_cast<int64_t>(block_of_tokens.size()) - 1;
      refuse_shard(path(), "is damaged: block " + std::to_string(block) + " (tokens " + std::to_string(first) + " to " +
                               std::to_string(last) + ") does not match its hash");
    }
    verified_[i] = true;
  }

  File file_;
  TokenExtent extent_;
  mutable std::vector<std::atomic<bool>> verified_; // by block
};

class MemoryShard : public TokenSource {
 public:
  MemoryShard(std::string name, std::vector<uint16_t> tokens) : name_(std::move(name)), tokens_(std::move(tokens)) {}

  int64_t tokens() const override { return static_cast<int64_t>(tokens_.size()); }
  const std::string& path() const override { return name_; }
  void read(int64_t position, std::span<uint16_t> out) const override {
    check_range(*this, position, out.size());
    std::copy_n(tokens_.begin() + position, out.size(), out.begin());
  }

 private:
  std::string name_;
  std::vector<uint16_t> tokens_;
};

// ---- hints for a path that is not a shard ----

// The extensions that bin/prepare_data reads.
bool is_text_file(fs::path path) {
  if (path.extension() == ".gz" || path.extension() == ".zst") path.replace_extension();
  const std::string ending = path.extension();
  return ending == ".txt" || ending == ".json" || ending == ".jsonl" || ending == ".parquet";
}

std::string prepare_first(const fs::path& input, const std::string& name) {
  const std::string dataset = "--dataset " + shell_quote(name);
  return "make shards of it: bin/prepare_data " + shell_quote(input.string()) + " " + dataset + ", then " + dataset;
}

std::string hint_for_folder(const fs::path& folder) {
  std::error_code ignored; // an unreadable folder gets the general hint
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string ending = entry.path().extension();
    if (is_text_file(entry.path())) return prepare_first(folder / ("*" + ending), folder.filename());
    if ((ending == ".bin" || ending == ".h5") && entry.path().stem().string().rfind("train_", 0) == 0)
      return "give a pattern, such as '" + (folder / ("train_*" + ending)).string() + "'";
  }
  return "give a pattern, such as '" + (folder / "*.bin").string() + "'";
}

// ---- opening ----

TokenExtent find_tokens(const File& file) {
  const int64_t size = file.size();
  if (size == 0) refuse_shard(file.path(), "is empty");
  char start[8] = {};
  file.read_at(0, std::as_writable_bytes(std::span(start, static_cast<size_t>(std::min<int64_t>(size, 8)))));
  if (std::string_view(start, sizeof start) == kHdf5Magic) return find_hdf5_tokens(file);
  int32_t magic = 0;
  std::memcpy(&magic, start, sizeof magic);
  if (magic == kBinMagic) return find_bin_tokens(file);
  throw Error(ExitCode::data,
              file.path() + " is not a token shard: it starts neither with " + std::to_string(kBinMagic) +
                  " (llm.c) nor with the HDF5 signature",
              is_text_file(file.path()) ? prepare_first(file.path(), fs::path(file.path()).stem()) : kExpected);
}

std::set<std::string> expand_glob(const std::string& pattern) {
  std::error_code ignored;
  if (fs::exists(pattern, ignored)) return {pattern}; // a file name may contain [ or *
  glob_t matches{};
  const int status = ::glob(pattern.c_str(), GLOB_TILDE, nullptr, &matches);
  std::set<std::string> paths;
  if (status == 0) paths.insert(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  ::globfree(&matches);
  if (paths.empty()) {
    throw Error(ExitCode::data, "no file matches " + pattern, "check the path, and quote the pattern in the shell");
  }
  return paths;
}

// ---- shards in both lists ----

constexpr int64_t kProbe = 2048; // tokens at the start, in the middle and at the end

uint64_t probe_hash(const TokenSource& shard) {
  const int64_t count = std::min(kProbe, shard.tokens());
  uint64_t hash = 0;
  std::vector<uint16_t> tokens(static_cast<size_t>(count));
  for (const int64_t position : {int64_t{0}, (shard.tokens() - count) / 2, shard.tokens() - count}) {
    shard.read(position, tokens);
    hash = xxh64(std::as_bytes(std::span(tokens)), hash);
  }
  return hash;
}

} // namespace

void refuse_shard(const std::string& path, const std::string& why) {
  throw Error(ExitCode::data, path + " " + why, "make or copy the shard again");
}

std::unique_ptr<TokenSource> open_shard(const std::string& path) {
  std::error_code ignored; // File::open reports it
  if (fs::is_directory(path, ignored)) {
    throw Error(ExitCode::data, path + " is a folder, not a token shard",
                hint_for_folder(fs::path(path + "/").parent_path()));
  }
  File file = File::open(path, ExitCode::data);
  TokenExtent extent = find_tokens(file);
  return std::make_unique<FileShard>(std::move(file), std::move(extent));
}

std::unique_ptr<TokenSource> memory_shard(std::string name, std::vector<uint16_t> tokens) {
  return std::make_unique<MemoryShard>(std::move(name), std::move(tokens));
}

std::vector<std::string> expand_globs(const std::string& patterns) {
  std::set<std::string> paths; // patterns may overlap
  for (const std::string& pattern : split(patterns, ',')) {
    if (!pattern.empty()) paths.merge(expand_glob(pattern));
  }
  if (paths.empty()) throw Error(ExitCode::data, "an empty list of data files was given", kExpected);
  return {paths.begin(), paths.end()};
}

void refuse_shared_shards(const std::vector<std::string>& train, const std::vector<std::string>& validation) {
  std::map<int64_t, std::map<uint64_t, std::string>> held; // validation shards by tokens and hash: the shorter list
  for (const std::string& path : validation) {
    const auto shard = open_shard(path);
    held[shard->tokens()].emplace(probe_hash(*shard), path);
  }
  for (const std::string& path : train) {
    const auto shard = open_shard(path);
    const auto same_length = held.find(shard->tokens());
    if (same_length == held.end()) continue;
    const auto same = same_length->second.find(probe_hash(*shard));
    if (same == same_length->second.end()) continue;
    throw Error(
        ExitCode::data,
        path + " is given for training and for validation" + (path == same->second ? "" : ", there as " + same->second),
        "let --train_data and --val_data match different files, such as train_*.bin and val_*.bin");
  }
}

} // namespace gpt2
