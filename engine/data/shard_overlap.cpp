#include "engine/data/shard_overlap.h"

#include <algorithm>
#include <map>

#include "engine/base/error.h"
#include "engine/data/shard.h"
#include "engine/system/content_hash.h"

namespace gpt2 {
namespace {

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

[[noreturn]] void refuse(const std::string& train, const std::string& validation) {
  throw Error(
      ExitCode::data,
      train + " is given for training and for validation" + (train == validation ? "" : ", there as " + validation),
      "let --train_data and --val_data match different files, such as train_*.bin and val_*.bin");
}

} // namespace

void refuse_shared_shards(const std::vector<std::string>& train, const std::vector<std::string>& validation) {
  struct Held {
    std::string path;
    uint64_t hash;
  };
  std::multimap<int64_t, Held> by_length; // validation shards by tokens: the shorter list
  for (const std::string& path : validation) {
    const auto shard = open_shard(path);
    by_length.emplace(shard->tokens(), Held{path, probe_hash(*shard)});
  }
  for (const std::string& path : train) {
    const auto shard = open_shard(path);
    const auto [first, last] = by_length.equal_range(shard->tokens());
    if (first == last) continue;
    const uint64_t hash = probe_hash(*shard);
    for (auto held = first; held != last; ++held) {
      if (held->second.hash == hash) refuse(path, held->second.path);
    }
  }
}

} // namespace gpt2
