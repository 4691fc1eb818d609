// Refuses training shards that are also validation shards: the validation loss would measure memorization.
#pragma once

#include <string>
#include <vector>

namespace gpt2 {

// Throws Error(data) that names the first shard found in both lists of paths. Compares contents, so it finds links and
// copies: equal token counts, and equal tokens at the start, in the middle and at the end. Opens every shard; reads
// 12 KiB of each validation shard and of each training shard of the same length.
void refuse_shared_shards(const std::vector<std::string>& train, const std::vector<std::string>& validation);

} // namespace gpt2
