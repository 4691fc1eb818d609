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

// The first byte of a message names the call that sent it: detects ranks that make different calls.
enum class Call : char { gather = 'g', broadcast = 'b', all_gather = 'a', sum = 's' };

struct LocalRank {
  int rank, ranks;
};

LocalRank count_on_this_host(const std::vector<Member>& members, int rank) {
  const auto here = [&](const Member& member) { return member.host == members[static_cast<size_t>(rank)].host; };
  return {static_cast<int>(std::count_if(members.begin(), members.begin() + rank, here)),
          static_cast<int>(std::count_if(members.begin(), members.end(), here))};
}

std::string bytes_of(std::span<const double> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

} // namespace

struct RankGroup::Impl {
  Impl(const Launch& launch, Rendezvous joined, const JoinOptions& options)
      : rank(launch.rank),
        ranks(launch.ranks),
        key(joined.key),
        on_one_host(joined.on_one_host),
        local(count_on_this_host(joined.members, rank)),
        channel(rank, std::move(joined), options) {
    local.rank = launch.local_rank.value_or(local.rank);
    local.ranks = launch.local_ranks.value_or(local.ranks);
  }

  std::vector<std::string> gather(Call call, std::string_view mine);
  std::string broadcast(Call call, std::string_view of_rank_0);
  std::string receive(Call call, int from);
  [[noreturn]] void fail_at(int from, const std::string& what) { // an invalid message
    channel.fail(to_string(from, channel.members()[static_cast<size_t>(from)]) + what);
  }

  const int rank, ranks;
  const Key key;
  const bool on_one_host;
  LocalRank local;
  ControlChannel channel;
  std::vector<Socket> mesh;
  std::vector<int> mesh_descriptors;
};

std::string RankGroup::Impl::receive(Call call, int from) {
  std::string message = channel.receive(from);
  if (message.empty() || message[0] != static_cast<char>(call)) {
    fail_at(from, " is at another point than " + to_string(rank, channel.members()[static_cast<size_t>(rank)]) +
                      ": the ranks run different programs");
  }
  return message.substr(1);
}

std::vector<std::string> RankGroup::Impl::gather(Call call, std::string_view mine) {
  if (rank != 0) {
    channel.send(0, static_cast<char>(call) + std::string(mine));
    return {};
  }
  std::vector<std::string> texts{std::string(mine)};
  for (int from = 1; from < ranks; ++from) texts.push_back(receive(call, from));
  return texts;
}

std::string RankGroup::Impl::broadcast(Call call, std::string_view of_rank_0) {
  if (rank != 0) return receive(call, 0);
  for (int to = 1; to < ranks; ++to) channel.send(to, static_cast<char>(call) + std::string(of_rank_0));
  return std::string(of_rank_0);
}

RankGroup::RankGroup() = default;
RankGroup::~RankGroup() = default;
RankGroup::RankGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

std::unique_ptr<RankGroup> RankGroup::join(const Launch& launch, const JoinOptions& options) {
  if (launch.ranks == 1) return std::make_unique<RankGroup>();
  auto impl = std::make_unique<Impl>(launch, rendezvous(launch, options.deadline), options);
  return std::unique_ptr<RankGroup>(new RankGroup(std::move(impl)));
}

int RankGroup::rank() const { return impl_ ? impl_->rank : 0; }
int RankGroup::ranks() const { return impl_ ? impl_->ranks : 1; }
int RankGroup::local_rank() const { return impl_ ? impl_->local.rank : 0; }
int RankGroup::local_ranks() const { return impl_ ? impl_->local.ranks : 1; }

std::string RankGroup::name_of(int rank) const {
  return impl_ ? to_string(rank, impl_->channel.members()[static_cast<size_t>(rank)]) : "rank " + std::to_string(rank);
}

// ---- messages ----

std::vector<std::string> RankGroup::gather(const std::string& mine) {
  if (alone()) return {mine};
  const Scope scope = waiting();
  return impl_->gather(Call::gather, mine);
}

std::string RankGroup::broadcast(const std::string& of_rank_0) {
  if (alone()) return of_rank_0;
  const Scope scope = waiting();
  return impl_->broadcast(Call::broadcast, of_rank_0);
}

std::vector<std::string> RankGroup::all_gather(const std::string& mine) {
  if (alone()) return {mine};
  const Scope scope = waiting();
  const std::vector<std::string> gathered = impl_->gather(Call::all_gather, mine);
  const auto all = read_texts(impl_->broadcast(Call::all_gather, to_bytes(gathered)), ranks());
  if (!all) impl_->fail_at(0, " sent a message that cannot be read");
  return *all;
}

void RankGroup::sum(std::span<double> values) {
  if (alone()) return;
  const Scope scope = waiting();
  const std::vector<std::string> gathered = impl_->gather(Call::sum, bytes_of(values));
  for (size_t from = 1; from < gathered.size(); ++from) {
    if (gathered[from].size() != values.size_bytes()) {
      impl_->fail_at(static_cast<int>(from), " sums another number of values than rank 0");
    }
    std::vector<double> theirs(values.size());
    std::memcpy(theirs.data(), gathered[from].data(), values.size_bytes());
    for (size_t i = 0; i < values.size(); ++i) values[i] += theirs[i];
  }
  const std::string sums = impl_->broadcast(Call::sum, bytes_of(values));
  if (sums.size() != values.size_bytes()) impl_->fail_at(0, " sums another number of values than " + name_of(rank()));
  std::memcpy(values.data(), sums.data(), values.size_bytes());
}

void RankGroup::barrier() { all_gather(""); }

// ---- watchdog ----

void RankGroup::check() const {
  if (impl_) impl_->channel.check();
}

void RankGroup::check_within(std::chrono::milliseconds limit) const {
  const Clock::time_point deadline = Clock::now() + limit;
  for (check(); Clock::now() < deadline; check()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

RankGroup::Scope::Scope(RankGroup& group, int state)
    : group_(group),
      before_(group.impl_ ? static_cast<int>(group.impl_->channel.enter(static_cast<Activity>(state))) : state) {}

RankGroup::Scope::~Scope() {
  if (group_.impl_) group_.impl_->channel.enter(static_cast<Activity>(before_));
}

RankGroup::Scope RankGroup::waiting() { return {*this, static_cast<int>(Activity::waiting)}; }
RankGroup::Scope RankGroup::busy() { return {*this, static_cast<int>(Activity::busy)}; }

void RankGroup::announce_failure(const std::string& reason) {
  if (impl_) impl_->channel.announce_failure(reason);
}

// ---- all pairs ----

std::span<const int> RankGroup::mesh() {
  if (alone()) return {};
  if (!impl_->mesh.empty()) return impl_->mesh_descriptors;
  const Scope scope = waiting();
  const Socket listener = listen_at(0, impl_->on_one_host ? Reach::this_host : Reach::everywhere);
  const std::vector<std::string> ports = all_gather(std::to_string(local_port(listener)));
  MeshPlan plan{.rank = rank(), .key = impl_->key, .endpoints = {}};
  for (size_t i = 0; i < ports.size(); ++i) {
    const std::optional<int> port = read_port(ports[i]);
    if (!port) impl_->fail_at(static_cast<int>(i), " sent a message that cannot be read");
    plan.endpoints.push_back({impl_->channel.members()[i].address, *port});
  }
  std::string problem;
  impl_->mesh = connect_mesh(
      plan, listener, [this] { return impl_->channel.has_failed(); }, problem);
  check();
  for (int other = 0; other < ranks(); ++other) {
    const Socket& socket = impl_->mesh[static_cast<size_t>(other)];
    if (other != rank() && !socket.is_open()) {
      impl_->channel.fail(name_of(rank()) + " cannot connect to " + name_of(other) + ": " + problem);
    }
    impl_->mesh_descriptors.push_back(socket.descriptor());
  }
  barrier(); // all ranks have read the last frame of the handshake
  return impl_->mesh_descriptors;
}

} // namespace gpt2
