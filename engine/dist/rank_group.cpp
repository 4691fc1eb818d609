#include "engine/dist/rank_group.h"

#include "engine/base/error.h"

namespace gpt2 {

struct RankGroup::Impl {};

RankGroup::RankGroup() = default;
RankGroup::~RankGroup() = default;

std::unique_ptr<RankGroup> RankGroup::join(const Launch& launch, const JoinOptions&) {
  if (launch.ranks > 1) {
    throw Error(ExitCode::communication,
                "started by " + launch.program + " as rank " + std::to_string(launch.rank) + " of " +
                    std::to_string(launch.ranks) + ", but this build trains in one process",
                "start one process, without " + launch.program);
  }
  return std::make_unique<RankGroup>();
}

int RankGroup::rank() const { return 0; }
int RankGroup::ranks() const { return 1; }
int RankGroup::local_rank() const { return 0; }
int RankGroup::local_ranks() const { return 1; }
std::string RankGroup::name_of(int rank) const { return "rank " + std::to_string(rank); }

std::vector<std::string> RankGroup::gather(const std::string& mine) { return {mine}; }
std::string RankGroup::broadcast(const std::string& of_rank_0) { return of_rank_0; }
std::vector<std::string> RankGroup::all_gather(const std::string& mine) { return {mine}; }
void RankGroup::sum(std::span<double>) {}
void RankGroup::barrier() {}
void RankGroup::check() const {}

RankGroup::Scope::Scope(RankGroup& group, int state) : group_(group), before_(state) {}
RankGroup::Scope::~Scope() = default;
RankGroup::Scope RankGroup::waiting() { return {*this, 0}; }
RankGroup::Scope RankGroup::busy() { return {*this, 0}; }
void RankGroup::announce_failure(const std::string&) {}
std::span<const int> RankGroup::mesh() { return {}; }

} // namespace gpt2
