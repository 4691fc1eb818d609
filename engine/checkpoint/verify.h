// Verifies checkpoints against their manifests, and finds a valid one to replace a damaged one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/ranks/rank_group.h"

namespace gpt2 {

// "" if a checkpoint is valid: every file exists, every block has its hash, and the header can be read. Otherwise one
// line that names the file and the fault. Throws if the machine is at fault, not the checkpoint: out of memory.
std::string why_invalid(const std::string& checkpoint);

// nullopt if valid. The error has a hint unless the checkpoint is damaged. Every rank calls this and hashes its share
// of the blocks; all ranks get the same result.
std::optional<Error> find_fault(const std::string& checkpoint, RankGroup& group);

// The error for a checkpoint that its run pruned while it was read.
Error removed_meanwhile(const std::string& checkpoint);
bool is_removal(const Error& fault); // from removed_meanwhile()

// True for damage (a hash, a size, a missing file) and for a removal: the checkpoint may be replaced. False for another
// format version and for a file that cannot be read now: these errors have a hint.
bool is_lost(const Error& fault);

// The other checkpoints of its run, the highest step first. Opens none.
std::vector<std::string> others_of_run(const std::string& checkpoint);

// The newest valid older checkpoint of its run; "" if none.
std::string valid_one_before(const std::string& checkpoint);

// The hint for a damaged checkpoint: "resume from the one before it: --resume ...".
std::string hint_if_damaged(const std::string& checkpoint);

} // namespace gpt2
