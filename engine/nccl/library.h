// NCCL's public interface without nccl.h: constants and layouts are part of its ABI since 2.14.
#pragma once

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstring>
#include <string>

#include "engine/base/error.h"
#include "engine/nccl/communicator.h"

namespace gpt2 {

namespace nccl {

constexpr int kSuccess = 0, kInProgress = 7;
constexpr int kUint8 = 1, kUint32 = 3, kFloat = 7, kDouble = 8, kBf16 = 9;
constexpr int kSum = 0, kMax = 2;

struct UniqueId {
  char bytes[128];
};

// ncclConfig_t of NCCL 2.14, up to the one field we set; NCCL uses defaults for later fields.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

} // namespace nccl

class NcclLibrary {
 public:
  static const NcclLibrary& open() {
    static const NcclLibrary library;
    if (!library.missing.empty())
      throw Error(ExitCode::communication, "several GPUs need NCCL: " + library.missing,
                  "install libnccl2 (or the wheel nvidia-nccl-cu13), or put libnccl.so.2 on LD_LIBRARY_PATH");
    return library;
  }
  static NcclVersion version() {
    try {
      int number = 0;
      open().get_version(&number);
      return {true, std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." +
                        std::to_string(number % 100)};
    } catch (const Error& error) {
      return {false, error.what()};
    }
  }

  std::string missing; // the error; empty: usable

  int (*get_version)(int*);
  int (*get_unique_id)(nccl::UniqueId*);
  int (*comm_init_rank_config)(void**, int, nccl::UniqueId, int, nccl::Config*);
  int (*comm_get_async_error)(void*, int*);
  int (*comm_abort)(void*);
  int (*comm_finalize)(void*);
  int (*comm_destroy)(void*);
  int (*group_start)();
  int (*group_end)();
  int (*reduce_scatter)(const void*, void*, size_t, int, int, void*, cudaStream_t);
  int (*all_gather)(const void*, void*, size_t, int, void*, cudaStream_t);
  int (*all_reduce)(const void*, void*, size_t, int, int, void*, cudaStream_t);
  int (*send)(const void*, size_t, int, int, void*, cudaStream_t);
  int (*receive)(void*, size_t, int, int, void*, cudaStream_t);
  const char* (*error_string)(int);
  const char* (*last_error)(void*);

 private:
  NcclLibrary() {
    void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      missing = "libnccl.so.2 cannot be opened";
      return;
    }
    const auto find = [&](auto& function, const char* name) {
      void* const symbol = dlsym(library, name);
      if (!symbol) missing = std::string("libnccl.so.2 has no ") + name;
      std::memcpy(&function, &symbol, sizeof symbol);
    };
    find(get_version, "ncclGetVersion");
    find(get_unique_id, "ncclGetUniqueId");
    find(comm_init_rank_config, "ncclCommInitRankConfig");
    find(comm_get_async_error, "ncclCommGetAsyncError");
    find(comm_abort, "ncclCommAbort");
    find(comm_finalize, "ncclCommFinalize");
    find(comm_destroy, "ncclCommDestroy");
    find(group_start, "ncclGroupStart");
    find(group_end, "ncclGroupEnd");
    find(reduce_scatter, "ncclReduceScatter");
    find(all_gather, "ncclAllGather");
    find(all_reduce, "ncclAllReduce");
    find(send, "ncclSend");
    find(receive, "ncclRecv");
    find(error_string, "ncclGetErrorString");
    find(last_error, "ncclGetLastError");
  }
};

} // namespace gpt2
