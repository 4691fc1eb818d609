#include "engine/rendezvous/master_address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/rendezvous/job_token.h"
#include "engine/rendezvous/mpi_broadcast.h"
#include "engine/system/content_hash.h"

namespace gpt2 {
namespace {

constexpr int kCandidates = 16, kFirstPort = 20000, kPorts = 32000;
constexpr std::string_view kFile = "file:";

uint64_t hash_of(const std::string& job) {
  return xxh64(std::as_bytes(std::span(job.data(), job.size())), ::geteuid());
}

// Addresses of this host: those that other hosts may reach, then loopback for ranks on this host.
std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) interfaces = nullptr;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* i = interfaces; i; i = i->ifa_next) {
      if (!i->ifa_addr || i->ifa_addr->sa_family != family || !(i->ifa_flags & IFF_UP)) continue;
      if (i->ifa_flags & IFF_LOOPBACK) continue;
      const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      char text[NI_MAXHOST];
      if (::getnameinfo(i->ifa_addr, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) continue;
      const bool on_one_link_only = std::string_view(text).find('%') != std::string_view::npos;
      if (!on_one_link_only) addresses.emplace_back(text);
    }
  }
  if (interfaces) ::freeifaddrs(interfaces);
  addresses.emplace_back("127.0.0.1");
  return addresses;
}

// File with the key of a job without a token: all ranks know its name, only their user can read it.
std::string key_file(const Launch& launch, bool one_host) {
  const std::string name = formatted("%016llx", static_cast<unsigned long long>(hash_of(launch.job)));
  if (one_host) return runtime_folder() + "/" + name;
  if (launch.shared_folder.empty()) {
    throw Error(ExitCode::usage, "the ranks share no secret", kTokenHint);
  }
  return launch.shared_folder + "/.ranks-" + name;
}

} // namespace

std::vector<int> candidate_ports(const std::string& job, int avoid_port) {
  const uint64_t hash = hash_of(job);
  std::minstd_rand next(static_cast<uint32_t>(hash ^ hash >> 32));
  std::vector<int> ports;
  while (ports.size() < kCandidates) {
    const int port = kFirstPort + static_cast<int>(next() % kPorts);
    if (port != avoid_port && std::find(ports.begin(), ports.end(), port) == ports.end()) ports.push_back(port);
  }
  return ports;
}

MasterAddress::MasterAddress(const Launch& launch, const std::optional<Key>& token)
    : token_(token), ranks_(launch.ranks), ports_{0} {
  const bool one_host = on_one_host(launch);
  reach_ = one_host ? Reach::this_host : Reach::everywhere;
  if (one_host) host_ = "127.0.0.1";
  if (launch.master == "mpi:") {
    way_ = Way::mpi;
  } else if (launch.master.starts_with(kFile)) {
    const std::string path = launch.master.substr(kFile.size());
    if (path.empty())
      throw Error(ExitCode::usage, "--master file: has no path",
                  "give one, such as --master file:/shared/folder/ranks");
    file_.emplace(path);
  } else {
    const auto [host, port] = launch.master.empty() ? Endpoint{"", 0} : parse_master(launch.master);
    if (!one_host) host_ = host;
    // On one host without a token: any free port; the file holds its number.
    ports_ = port == 0 && (token || !one_host) ? candidate_ports(launch.job, launch.avoid_port) : std::vector{port};
    if (token) {
      way_ = Way::computed;
    } else {
      file_.emplace(key_file(launch, one_host), !one_host);
    }
  }
}

Socket MasterAddress::listen(const Key& key) {
  Socket socket;
  for (size_t i = 0; i < ports_.size() && !socket.is_open(); ++i) socket = listen_at(ports_[i], reach_);
  if (!socket.is_open()) {
    throw Error(ExitCode::communication, "cannot listen at " + listens_at() + ": in use, or not allowed",
                "give another --master HOST:PORT, or end the process that holds it");
  }
  if (way_ == Way::computed) return socket;
  const Publication publication{.key = token_ ? std::nullopt : std::optional(key),
                                .port = local_port(socket),
                                .addresses = host_.empty() ? own_addresses() : std::vector{host_}};
  if (way_ == Way::mpi) {
    mpi_broadcast(to_text(publication), ranks_);
  } else {
    file_->write(publication);
  }
  return socket;
}

void MasterAddress::close() {
  if (file_) file_->remove();
}

std::optional<FoundMaster> MasterAddress::find() {
  if (way_ == Way::computed) {
    FoundMaster found{*token_, {}};
    for (const int port : ports_) found.endpoints.push_back({host_, port});
    return found;
  }
  const auto publication = published();
  const auto key = token_ ? token_ : publication ? publication->key : std::nullopt;
  if (!publication || !key) return std::nullopt;
  FoundMaster found{*key, {}};
  for (const std::string& address : publication->addresses) found.endpoints.push_back({address, publication->port});
  return found;
}

std::optional<Publication> MasterAddress::published() {
  // Read at every attempt: the file of an earlier job has a dead address or another key.
  if (way_ == Way::file) return file_->read();
  if (!from_mpi_) from_mpi_ = read_publication(mpi_broadcast("", ranks_));
  if (!from_mpi_) throw Error(ExitCode::communication, "cannot parse the message of rank 0 over MPI");
  return from_mpi_;
}

std::string MasterAddress::description() const {
  if (way_ == Way::mpi) return "the addresses that rank 0 sent over MPI";
  if (way_ == Way::computed) return listens_at();
  return host_.empty() ? "the address in " + file_->path()
                       : listens_at() + " (port and secret in " + file_->path() + ")";
}

std::string MasterAddress::listens_at() const {
  if (ports_[0] == 0) return host_;
  const std::string first = host_ + ", port " + std::to_string(ports_[0]);
  return ports_.size() == 1 ? first : first + " and " + std::to_string(ports_.size() - 1) + " others";
}

} // namespace gpt2
