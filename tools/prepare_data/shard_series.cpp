#include "tools/prepare_data/shard_series.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "engine/system/files.h"

namespace gpt2 {
namespace fs = std::filesystem;
namespace {

constexpr size_t kDigits = 6;
constexpr size_t kBufferTokens = size_t{1} << 20;

} // namespace

std::string shard_name(const std::string& prefix, size_t number, const std::string& extension) {
  std::string digits = std::to_string(number);
  digits.insert(0, kDigits - std::min(kDigits, digits.size()), '0');
  return prefix + "_" + digits + "." + extension;
}

int64_t ShardSeries::State::tokens() const {
  int64_t tokens = open_tokens;
  for (const ShardEntry& shard : shards) tokens += shard.tokens;
  return tokens;
}

ShardSeries::ShardSeries(Options options, State state) : options_(std::move(options)), state_(std::move(state)) {
  if (state_.open_tokens == 0) return;
  open_ = File::update(raw_path(state_.shards.size()));
  const int64_t bytes = kBinHeaderBytes + state_.open_tokens * 2;
  if (open_->size() < bytes)
    throw Error(ExitCode::data, open_->path() + " is damaged: it is too short", "start over with --overwrite");
  open_->resize(bytes);
}

std::string ShardSeries::path(size_t shard) const {
  return options_.folder + "/" + shard_name(options_.prefix, shard, options_.format);
}

std::string ShardSeries::raw_path(size_t shard) const {
  return options_.format == "bin" ? path(shard) : options_.folder + "/" + shard_name(options_.prefix, shard, "tokens");
}

void ShardSeries::append(std::span<const uint16_t> tokens) {
  while (!tokens.empty()) {
    if (!open_) (open_ = File::update(raw_path(state_.shards.size())))->resize(kBinHeaderBytes);
    const auto count = std::min(tokens.size(), static_cast<size_t>(options_.shard_tokens - state_.open_tokens));
    buffer_.insert(buffer_.end(), tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(count));
    state_.open_tokens += static_cast<int64_t>(count);
    tokens = tokens.subspan(count);
    if (state_.open_tokens == options_.shard_tokens)
      close_shard();
    else if (buffer_.size() >= kBufferTokens)
      flush();
  }
}

void ShardSeries::flush() {
  const int64_t before = state_.open_tokens - static_cast<int64_t>(buffer_.size());
  if (open_) open_->write_at(kBinHeaderBytes + before * 2, std::as_bytes(std::span(buffer_)));
  buffer_.clear();
}

void ShardSeries::sync() {
  flush();
  if (open_) open_->sync();
}

void ShardSeries::finish() {
  if (state_.open_tokens > 0) close_shard();
}

void ShardSeries::close_shard() {
  flush();
  const size_t shard = state_.shards.size();
  if (options_.format == "bin") {
    const auto header = bin_header(state_.open_tokens);
    open_->write_at(0, std::as_bytes(std::span(header)));
    open_->sync();
  } else {
    std::vector<uint16_t> tokens(static_cast<size_t>(state_.open_tokens));
    open_->read_at(kBinHeaderBytes, std::as_writable_bytes(std::span(tokens)));
    write_hdf5_shard(path(shard), tokens, options_.metadata);
  }
  open_.reset();
  state_.shards.push_back(describe_shard(path(shard), state_.open_tokens));
  state_.open_tokens = 0;
}

void ShardSeries::forget() {
  for (; forgotten_ < state_.shards.size(); ++forgotten_) {
    std::error_code ignored; // the whole folder is removed at the end
    if (raw_path(forgotten_) != path(forgotten_)) fs::remove(raw_path(forgotten_), ignored);
  }
}

void ShardSeries::publish(const std::string& folder) const {
  for (const ShardEntry& shard : state_.shards) {
    const fs::path from = fs::path(options_.folder) / shard.name, to = fs::path(folder) / shard.name;
    std::error_code error;
    if (!fs::exists(from, error) && fs::exists(to, error)) continue;
    if (!renamed(from, to)) throw_system_error(ExitCode::disk, "make", to.string(), errno);
  }
}

} // namespace gpt2
