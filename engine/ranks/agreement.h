// Agreement on failures: after work that may fail on any rank, all ranks continue or all stop.
#pragma once

#include <new>
#include <optional>

#include "engine/base/error.h"
#include "engine/ranks/rank_group.h"

namespace gpt2 {

// The error of `work`, if any. Exceptions of the standard library come from the machine: memory, threads, disks.
template <class Work>
std::optional<Error> attempt(const Work& work) {
  try {
    work();
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ExitCode::device, "out of memory", "free some of the host's memory");
  } catch (const std::exception& error) {
    return Error(ExitCode::disk, error.what());
  }
}

bool any_rank(RankGroup& group, bool mine); // collective: logical or

// Called in every round of a loop with the same number of rounds on each rank. One process stops at once; several ranks
// agree every 16 rounds, to save messages.
bool agree_to_stop(RankGroup& group, size_t round, bool requested);

// Collective: the error of the lowest rank that failed, on all ranks.
std::optional<Error> first_error(RankGroup& group, const std::optional<Error>& mine);
// The same, prefixed by the rank's name if there are several ranks.
std::optional<Error> agree(RankGroup& group, const std::optional<Error>& mine);

// Throws AgreedError after a barrier: a rank that ended earlier would be reported as dead by ranks that have not
// received the reason yet.
[[noreturn]] void throw_agreed(RankGroup& group, const Error& error);

} // namespace gpt2
