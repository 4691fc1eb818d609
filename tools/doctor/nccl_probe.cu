// NCCL among the GPUs of one process: bandwidth, and the transports from NCCL's log, the only place that has them.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>

#include "engine/base/stopwatch.h"
#include "engine/cuda/gpt2_cuda.h"
#include "engine/nccl/library.h"
#include "kernels/cuda/memory.h"
#include "tools/doctor/gpu_health.h"

namespace gpt2 {

namespace {

constexpr int64_t kFloats = int64_t{64} << 20; // 256 MB

struct Member {
  explicit Member(int device) : device(device), memory((CUDA_CHECK(cudaSetDevice(device)), kFloats * sizeof(float))) {
    CUDA_CHECK(cudaMemset(memory.data(), 0, kFloats * sizeof(float)));
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  ~Member() {
    if (stream) cudaStreamDestroy(stream);
  }
  Member(const Member&) = delete;

  int device;
  DeviceMemory memory;
  cudaStream_t stream = nullptr;
  void* comm = nullptr;
};

class Group {
 public:
  Group(const NcclLibrary& nccl, int devices) : nccl_(nccl) {
    for (int device = 0; device < devices; ++device) members_.push_back(std::make_unique<Member>(device));
    nccl::UniqueId id;
    check(nccl_.get_unique_id(&id), "create a communicator id");
    check(nccl_.group_start(), "start a group");
    for (const auto& member : members_) {
      CUDA_CHECK(cudaSetDevice(member->device));
      check(nccl_.comm_init_rank_config(&member->comm, devices, id, member->device, nullptr), "add a rank");
    }
    check(nccl_.group_end(), "connect the ranks");
  }
  ~Group() {
    for (const auto& member : members_)
      if (member->comm) nccl_.comm_destroy(member->comm);
    cudaSetDevice(0);
  }
  Group(const Group&) = delete;

  void all_reduce() {
    check(nccl_.group_start(), "start a group");
    for (const auto& member : members_)
      check(nccl_.all_reduce(member->memory.data(), member->memory.data(), kFloats, nccl::kFloat, nccl::kSum,
                             member->comm, member->stream),
            "all-reduce");
    check(nccl_.group_end(), "all-reduce");
  }
  void wait() {
    for (const auto& member : members_) CUDA_CHECK(cudaStreamSynchronize(member->stream));
  }

 private:
  void check(int status, const char* what) const {
    if (status != nccl::kSuccess)
      throw Error(ExitCode::communication, std::string("NCCL cannot ") + what + ": " + nccl_.error_string(status));
  }

  const NcclLibrary& nccl_;
  std::vector<std::unique_ptr<Member>> members_;
};

// "... 0[0] -> 1[1] via P2P/CUMEM", "NET/Socket : Using [0]eth0:10.0.0.1<0>", "NET/IB : Using [0]mlx5_0:1/RoCE ..."
void read_log(const std::string& path, NcclProbe& probe) {
  std::ifstream log(path);
  std::set<std::string> transports, networks;
  for (std::string line; std::getline(log, line);) {
    if (const size_t via = line.find(" via "); via != std::string::npos && line.find("->") < via)
      transports.insert(line.substr(via + 5, line.find(' ', via + 5) - via - 5));
    const size_t net = line.find("NET/"), uses = line.find(" : Using ");
    if (net != std::string::npos && uses != std::string::npos && net < uses)
      networks.insert(line.substr(net, uses - net) + " " + line.substr(uses + 9));
  }
  probe.transports.assign(transports.begin(), transports.end());
  probe.networks.assign(networks.begin(), networks.end());
}

} // namespace

NcclProbe probe_nccl() {
  NcclProbe probe;
  const int devices = cuda_device_count();
  const std::string log =
      (std::filesystem::temp_directory_path() / ("nccl_probe_" + std::to_string(::getpid()))).string();
  ::setenv("NCCL_DEBUG", "INFO", 0);
  ::setenv("NCCL_DEBUG_FILE", log.c_str(), 0);
  try {
    Group group(NcclLibrary::open(), devices);
    const auto reduce_all = [&](int count) {
      const Stopwatch watch;
      for (int i = 0; i < count; ++i) group.all_reduce();
      group.wait();
      return watch.seconds() / count;
    };
    reduce_all(2);
    const double seconds = reduce_all(5);
    if (devices > 1)
      probe.bus_gb_per_s = 2.0 * (devices - 1) / devices * static_cast<double>(kFloats) * sizeof(float) / seconds / 1e9;
  } catch (const Error& error) {
    probe.problem = error.what();
  }
  read_log(log, probe);
  ::unlink(log.c_str());
  return probe;
}

} // namespace gpt2
