// Work that any rank may fail at, and after which all go on or all give up.
#pragma once

#include <new>
#include <optional>

#include "engine/base/error.h"
#include "engine/ranks/rank_group.h"

namespace gpt2 {

// What went wrong, if anything. Exceptions of the standard library are the machine's: its memory, its threads, its
// disks.
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

bool any_rank(RankGroup& group, bool mine); // every rank calls it: is it so on any of them?

// Asked in every round of a loop that has equally many on each rank. One process obeys at once; ranks agree on it every
// few rounds, for a message to each costs a fraction of one.
bool agree_to_stop(RankGroup& group, size_t round, bool requested);

// Every rank hears how the others fared: the error of the first that failed, on all of them.
struct RankError {
  int rank;
  Error error;
};
std::optional<RankError> first_error(RankGroup& group, const std::optional<Error>& mine);
// The same with the rank's name before it, where there are several.
std::optional<Error> agree(RankGroup& group, const std::optional<Error>& mine);

// Whoever throws what was agreed may end at once, and would be taken for the failure by those that have not heard the
// reason yet: all wait for each other first.
[[noreturn]] void throw_agreed(RankGroup& group, const Error& error);

} // namespace gpt2
