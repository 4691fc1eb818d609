#include "engine/hdf5/write_driver.h"

#include <fcntl.h>
#include <unistd.h>

#if __has_include(<H5FDdevelop.h>) // HDF5 1.14 moved the interface for drivers there
#include <H5FDdevelop.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <iterator>
#include <span>

#include "engine/system/files.h"

namespace gpt2 {
namespace {

// libhdf5's exit handler crashes if malloc has failed before. Every file is closed by then, so the handler is not
// needed. H5dont_atexit() must be the first call of libhdf5.
__attribute__((constructor)) void disable_exit_cleanup() { H5dont_atexit(); }

// Block size for metadata: keeps the headers of all datasets together, so that a reader verifies few 16 MiB blocks to
// find them. 444 tensors of 124M parameters take 250 KB.
constexpr hsize_t kHeadersTogether = 128 << 10;

struct OpenFile : H5FD_t { // HDF5 uses the base at offset 0
  int descriptor = -1;
  int* error_number = nullptr;
  haddr_t end_of_allocation = 0; // allocated by HDF5
  haddr_t end_of_file = 0;       // written
};

OpenFile* ours(H5FD_t* file) { return static_cast<OpenFile*>(file); }
const OpenFile* ours(const H5FD_t* file) { return static_cast<const OpenFile*>(file); }

void remember(OpenFile* file, int error_number) {
  if (*file->error_number == 0) *file->error_number = error_number;
}

H5FD_t* open_file(const char* path, unsigned flags, hid_t access, haddr_t) {
  const auto* error_number = static_cast<int* const*>(H5Pget_driver_info(access));
  if (!error_number || !(flags & H5F_ACC_CREAT)) return nullptr; // new files only
  const int descriptor = retry_on_eintr([&] { return ::open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  if (descriptor < 0) {
    **error_number = errno;
    return nullptr;
  }
  auto* file = new OpenFile{};
  file->descriptor = descriptor;
  file->error_number = *error_number;
  return file;
}

herr_t close_file(H5FD_t* base) {
  OpenFile* file = ours(base);
  if (::close(file->descriptor) != 0 && errno != EINTR)
    remember(file, errno); // network file systems report a full disk here
  delete file;
  return 0;
}

herr_t query(const H5FD_t*, unsigned long* flags) {
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
           H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
  return 0;
}

haddr_t get_end_of_allocation(const H5FD_t* file, H5FD_mem_t) { return ours(file)->end_of_allocation; }

herr_t set_end_of_allocation(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  ours(file)->end_of_allocation = address;
  return 0;
}

haddr_t get_end_of_file(const H5FD_t* file, H5FD_mem_t) { return ours(file)->end_of_file; }

herr_t read(H5FD_t* base, H5FD_mem_t, hid_t, haddr_t address, size_t size, void* buffer) {
  OpenFile* file = ours(base);
  const std::span out(static_cast<std::byte*>(buffer), size);
  const ssize_t got = read_all(file->descriptor, out, static_cast<int64_t>(address));
  if (got < 0) remember(file, errno);
  const auto beyond_the_end = out.subspan(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  std::ranges::fill(beyond_the_end, std::byte{0}); // as HDF5 expects
  return 0;
}

herr_t write(H5FD_t* base, H5FD_mem_t, hid_t, haddr_t address, size_t size, const void* buffer) {
  OpenFile* file = ours(base);
  const std::span bytes(static_cast<const std::byte*>(buffer), size);
  file->end_of_file = std::max<haddr_t>(file->end_of_file, address + size);
  if (*file->error_number == 0 && !write_all(file->descriptor, bytes, static_cast<int64_t>(address)))
    remember(file, errno);
  return 0;
}

herr_t truncate(H5FD_t* base, hid_t, hbool_t) {
  OpenFile* file = ours(base);
  if (file->end_of_file == file->end_of_allocation || *file->error_number != 0) return 0;
  const auto size = static_cast<off_t>(file->end_of_allocation);
  if (retry_on_eintr([&] { return ::ftruncate(file->descriptor, size); }) != 0) remember(file, errno);
  file->end_of_file = file->end_of_allocation;
  return 0;
}

hid_t register_driver() {
  H5FD_class_t driver{};
#if H5_VERSION_GE(1, 14, 0)
  driver.version = H5FD_CLASS_VERSION;
  driver.value = static_cast<H5FD_class_value_t>(600); // 512 to 65535 are for unregistered drivers
#endif
  driver.name = "write_driver";
  driver.maxaddr = static_cast<haddr_t>(INT64_MAX);
  driver.fc_degree = H5F_CLOSE_WEAK;
  const H5FD_mem_t types[H5FD_MEM_NTYPES] = H5FD_FLMAP_DICHOTOMY;
  std::copy(std::begin(types), std::end(types), std::begin(driver.fl_map));
  driver.fapl_size = sizeof(int*); // where an Hdf5WriteDriver keeps its error number
  driver.open = open_file;
  driver.close = close_file;
  driver.query = query;
  driver.get_eoa = get_end_of_allocation;
  driver.set_eoa = set_end_of_allocation;
  driver.get_eof = get_end_of_file;
  driver.read = read;
  driver.write = write;
  driver.truncate = truncate;
  return H5FDregister(&driver);
}

} // namespace

Hdf5WriteDriver::Hdf5WriteDriver()
    : driver_(register_driver(), H5FDunregister), access_(H5Pcreate(H5P_FILE_ACCESS), H5Pclose) {
  int* const error_number = &error_number_;
  H5Pset_driver(access_, driver_, &error_number);
  H5Pset_libver_bounds(access_, H5F_LIBVER_EARLIEST, H5F_LIBVER_LATEST); // every version of h5py reads it
  H5Pset_meta_block_size(access_, kHeadersTogether);
}

} // namespace gpt2
