// Is a checkpoint still what was written, and which other one is?
#pragma once

#include <string>
#include <vector>

#include "engine/dist/rank_group.h"

namespace gpt2 {

// "" if a checkpoint is valid: every file is there, every block has the hash that its manifest says, and the header can
// be read. Else one line that names the file and what is wrong with it. Of a checkpoint from before manifests only the
// header is looked at (is_unverified()).
std::string why_invalid(const std::string& checkpoint);
// The same on every rank: each hashes its share of the blocks.
std::string why_invalid(const std::string& checkpoint, RankGroup& group);

bool is_unverified(const std::string& checkpoint); // it has no manifest

// The other checkpoints of its run that look usable, the one that was written last first. None has been verified.
std::vector<std::string> others_of_run(const std::string& checkpoint);

// What to do about a damaged checkpoint: "resume from ..." with the newest valid older one of its run.
std::string hint_if_damaged(const std::string& checkpoint);

} // namespace gpt2
