// Is a checkpoint still what was written, and which other one is?
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/ranks/rank_group.h"

namespace gpt2 {

// "" if a checkpoint is valid: every file is there, every block has the hash that its manifest says, and the header can
// be read. Else one line that names the file and what is wrong with it. Of a checkpoint from before manifests only the
// header is read (is_unverified()). Throws where the machine and not the checkpoint is at fault: out of memory.
std::string why_invalid(const std::string& checkpoint);

// The same with what to do about it, if that is not to take another checkpoint: nullopt if it is valid. Every rank
// calls it and hashes its share of the blocks; all get the same answer.
std::optional<Error> find_fault(const std::string& checkpoint, RankGroup& group);

bool is_unverified(const std::string& checkpoint); // it has no manifest

// A run prunes while others read. What to say of a checkpoint that could not be read and is not there any more.
Error removed_meanwhile(const std::string& checkpoint);
bool is_removal(const Error& fault); // is it that?

// Has this fault left nothing to keep? True for damage (a hash, a size, a missing file) and for a removal. False for a
// checkpoint of a newer program and for a file that cannot be read now: their errors have a hint of their own.
bool is_lost(const Error& fault);

// The other checkpoints of its run, unread: the highest step first.
std::vector<std::string> others_of_run(const std::string& checkpoint);

// The newest older one of its run that is valid; "": none.
std::string valid_one_before(const std::string& checkpoint);

// What to do about a damaged checkpoint: "resume from ..." that one.
std::string hint_if_damaged(const std::string& checkpoint);

} // namespace gpt2
