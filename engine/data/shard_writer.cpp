#include "engine/data/shard_writer.h"

#include <algorithm>
#include <filesystem>

namespace gpt2 {
namespace fs = std::filesystem;
namespace {
constexpr size_t kDigits = 6;
} // namespace

ShardWriter::ShardWriter(std::string prefix, std::string extension, int64_t shard_tokens, ShardMetadata metadata)
    : prefix_(std::move(prefix)),
      extension_(std::move(extension)),
      shard_tokens_(static_cast<size_t>(shard_tokens)),
      metadata_(std::move(metadata)) {}

void ShardWriter::append(std::span<const uint16_t> tokens) {
  tokens_ += static_cast<int64_t>(tokens.size());
  while (!tokens.empty()) {
    const size_t count = std::min(tokens.size(), shard_tokens_ - buffer_.size());
    buffer_.insert(buffer_.end(), tokens.begin(), tokens.begin() + count);
    tokens = tokens.subspan(count);
    if (buffer_.size() == shard_tokens_) write();
  }
}

void ShardWriter::finish() {
  if (!buffer_.empty()) write();
}

void ShardWriter::write() {
  std::string number = std::to_string(paths_.size());
  number.insert(0, kDigits - std::min(kDigits, number.size()), '0');
  paths_.push_back(prefix_ + "_" + number + "." + extension_);
  if (extension_ == "h5") {
    write_hdf5_shard(paths_.back(), buffer_, metadata_);
  } else {
    write_bin_shard(paths_.back(), buffer_);
  }
  buffer_.clear();
}

std::vector<std::string> existing_shards(const std::string& prefix, const std::string& extension) {
  const fs::path path(prefix);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::string start = path.filename().string() + "_", end = "." + extension;
  std::vector<std::string> found;
  std::error_code missing_folder;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, missing_folder)) {
    const std::string name = entry.path().filename().string();
    if (name.size() != start.size() + kDigits + end.size() || !name.starts_with(start) || !name.ends_with(end))
      continue;
    const std::string number = name.substr(start.size(), kDigits);
    if (std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; }))
      found.push_back(entry.path().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

} // namespace gpt2
