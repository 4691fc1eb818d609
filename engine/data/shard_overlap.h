// Training shards that are validation shards too: the validation loss would measure memory, and nobody would notice.
#pragma once

#include <string>
#include <vector>

namespace gpt2 {

// Throws Error(data) that names the first shard found in both lists of paths. What counts is the content, so links and
// copies are found too: as many tokens, and the same ones at the start, in the middle and at the end. Opens every
// shard, and reads 12 KiB of those of validation and of those of training that have an equal in length.
void refuse_shared_shards(const std::vector<std::string>& train, const std::vector<std::string>& validation);

} // namespace gpt2
