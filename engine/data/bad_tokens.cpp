#include "engine/data/bad_tokens.h"

#include <algorithm>

#include "engine/base/error.h"

namespace gpt2 {

std::optional<std::string> DataWatch::check(const HostBatch& batch) {
  std::optional<std::string> line;
  for (const BadToken& token : batch.bad) {
    bad_ += 1;
    recent_.push_back(seen_);
    if (static_cast<int64_t>(recent_.size()) > kMostBad) {
      throw Error(ExitCode::data,
                  token.text() + ", and so are tokens in " + std::to_string(recent_.size()) + " of the last " +
                      std::to_string(std::min(kWindow, seen_ + batch.batch_size)) + " sequences",
                  kBadTokenHint);
    }
    if (logged_.size() < kMostLines && logged_.insert(token.shard).second) {
      line = token.text() +
             ": its sequence is masked, as are others with such tokens; compare the file with its source "
             "(sha256sum), and make or copy it again" +
             (logged_.size() == kMostLines ? "; further shards are not named" : "");
    }
  }
  seen_ += batch.batch_size;
  while (!recent_.empty() && recent_.front() <= seen_ - kWindow) recent_.pop_front();
  return line;
}

} // namespace gpt2
