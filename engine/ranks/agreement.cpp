#include "engine/ranks/agreement.h"

#include <algorithm>
#include <string>
#include <vector>

#include "engine/rendezvous/messages.h"

namespace gpt2 {

bool any_rank(RankGroup& group, bool mine) {
  double count[] = {mine ? 1.0 : 0.0};
  group.sum(count);
  return count[0] > 0;
}

bool agree_to_stop(RankGroup& group, size_t round, bool requested) {
  constexpr size_t kRoundsToAgreement = 16;
  return (group.alone() || round % kRoundsToAgreement == 0) && any_rank(group, requested);
}

std::optional<Error> first_error(RankGroup& group, const std::optional<Error>& mine) {
  const std::vector<std::string> all = group.all_gather(mine ? to_bytes(*mine) : "");
  const auto failed = std::find_if(all.begin(), all.end(), [](const std::string& message) { return !message.empty(); });
  if (failed == all.end()) return std::nullopt;
  const std::string sender = group.name_of(static_cast<int>(failed - all.begin()));
  const Error unreadable(ExitCode::communication, sender + ": sent an error that cannot be read",
                         "start every rank with the same program");
  return read_error(*failed).value_or(unreadable);
}

std::optional<Error> agree(RankGroup& group, const std::optional<Error>& mine) {
  if (group.alone()) return mine;
  std::optional<Error> named;
  if (mine) named.emplace(mine->code(), group.name_of(group.rank()) + ": " + mine->what(), mine->hint());
  return first_error(group, named);
}

void throw_agreed(RankGroup& group, const Error& error) {
  attempt([&] { group.barrier(); });
  throw AgreedError(error.code(), error.what(), error.hint());
}

} // namespace gpt2
