#include "engine/ranks/rank_group.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "engine/base/error.h"
#include "engine/rendezvous/control_channel.h"
#include "engine/rendezvous/mesh.h"
#include "engine/rendezvous/messages.h"
#include "engine/rendezvous/rendezvous.h"

namespace gpt2 {
namespace {

std::string bytes_of(std::span<const double> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

} // namespace

RankGroup::RankGroup() = default;
RankGroup::~RankGroup() = default;

RankGroup::RankGroup(const Launch& launch, Rendezvous joined, const JoinOptions& options)
    : rank_(launch.rank), ranks_(launch.ranks), key_(joined.key), on_one_host_(joined.on_one_host) {
  const std::vector<Member>& members = joined.members;
  const auto me = members.begin() + rank_;
  const auto is_here = [&](const Member& member) { return member.host == me->host; };
  const auto before = static_cast<int>(std::count_if(members.begin(), me, is_here));
  const auto all = static_cast<int>(std::count_if(members.begin(), members.end(), is_here));
  local_rank_ = launch.local_rank.value_or(before);
  local_ranks_ = launch.local_ranks.value_or(all);
  channel_ = std::make_unique<ControlChannel>(rank_, std::move(joined), options);
}

std::unique_ptr<RankGroup> RankGroup::join(const Launch& launch, const JoinOptions& options) {
  if (launch.ranks == 1) return std::make_unique<RankGroup>();
  return std::unique_ptr<RankGroup>(new RankGroup(launch, rendezvous(launch, options.deadline), options));
}

std::string RankGroup::name_of(int rank) const {
  return channel_ ? channel_->name_of(rank) : "rank " + std::to_string(rank);
}

// ---- messages ----

void RankGroup::fail_at(int from, const std::string& what) { channel_->fail(name_of(from) + what); }

std::string RankGroup::receive(Call call, int from) {
  std::string message = channel_->receive(from);
  if (message.empty() || message[0] != static_cast<char>(call)) {
    fail_at(from, " is at a different point than " + name_of(rank_) + ": the ranks run different programs");
  }
  return message.substr(1);
}

std::vector<std::string> RankGroup::gather(Call call, std::string_view mine) {
  const Scope scope = waiting();
  if (!leads()) {
    channel_->send(0, static_cast<char>(call) + std::string(mine));
    return {};
  }
  std::vector<std::string> texts{std::string(mine)};
  for (int from = 1; from < ranks_; ++from) texts.push_back(receive(call, from));
  return texts;
}

std::string RankGroup::broadcast(Call call, std::string_view of_rank_0) {
  const Scope scope = waiting();
  if (!leads()) return receive(call, 0);
  for (int to = 1; to < ranks_; ++to) channel_->send(to, static_cast<char>(call) + std::string(of_rank_0));
  return std::string(of_rank_0);
}

std::vector<std::string> RankGroup::gather(const std::string& mine) { return gather(Call::gather, mine); }

std::string RankGroup::broadcast(const std::string& of_rank_0) { return broadcast(Call::broadcast, of_rank_0); }

std::vector<std::string> RankGroup::all_gather(const std::string& mine) {
  if (alone()) return {mine};
  const std::vector<std::string> gathered = gather(Call::all_gather, mine);
  const auto all = read_texts(broadcast(Call::all_gather, to_bytes(gathered)), ranks());
  if (!all) fail_at(0, " sent a message that cannot be read");
  return *all;
}

void RankGroup::sum(std::span<double> values) {
  if (alone()) return;
  const std::vector<std::string> gathered = gather(Call::sum, bytes_of(values));
  for (size_t from = 1; from < gathered.size(); ++from) {
    if (gathered[from].size() != values.size_bytes()) {
      fail_at(static_cast<int>(from), " sums a different number of values than rank 0");
    }
    std::vector<double> theirs(values.size());
    std::memcpy(theirs.data(), gathered[from].data(), values.size_bytes());
    for (size_t i = 0; i < values.size(); ++i) values[i] += theirs[i];
  }
  const std::string sums = broadcast(Call::sum, bytes_of(values));
  if (sums.size() != values.size_bytes()) fail_at(0, " sums a different number of values than " + name_of(rank()));
  std::memcpy(values.data(), sums.data(), values.size_bytes());
}

void RankGroup::barrier() { all_gather(""); }

// ---- watchdog ----

void RankGroup::check() const {
  if (channel_) channel_->check();
}

void RankGroup::check_within(std::chrono::milliseconds limit) const {
  const Clock::time_point deadline = Clock::now() + limit;
  for (check(); Clock::now() < deadline; check()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

RankGroup::Scope::Scope(RankGroup& group, Activity activity)
    : group_(group), before_(group.channel_ ? group.channel_->enter(activity) : activity) {}

RankGroup::Scope::~Scope() {
  if (group_.channel_) group_.channel_->enter(before_);
}

RankGroup::Scope RankGroup::waiting() { return {*this, Activity::waiting}; }
RankGroup::Scope RankGroup::busy() { return {*this, Activity::busy}; }

void RankGroup::announce_failure(const std::string& reason) {
  if (channel_) channel_->announce_failure(reason);
}

// ---- all pairs ----

std::span<const Socket> RankGroup::mesh() {
  if (alone() || !mesh_.empty()) return mesh_;
  const Scope scope = waiting();
  const Socket listener = listen_at(0, on_one_host_ ? Reach::this_host : Reach::everywhere);
  const std::vector<std::string> ports = all_gather(std::to_string(local_port(listener)));
  MeshPlan plan{.rank = rank_, .key = key_, .endpoints = {}};
  for (int from = 0; from < ranks_; ++from) {
    const std::optional<int> port = read_port(ports[static_cast<size_t>(from)]);
    if (!port) fail_at(from, " sent a message that cannot be read");
    plan.endpoints.push_back({channel_->members()[static_cast<size_t>(from)].address, *port});
  }
  std::string problem;
  mesh_ = connect_mesh(
      plan, listener, [this] { return channel_->has_failed(); }, problem);
  check();
  for (int other = 0; other < ranks_; ++other) {
    if (other != rank_ && !mesh_[static_cast<size_t>(other)].is_open())
      channel_->fail(name_of(rank_) + " cannot connect to " + name_of(other) + ": " + problem);
  }
  barrier(); // all ranks have read the last frame of the handshake
  return mesh_;
}

} // namespace gpt2
