#include "engine/io/hdf5_read_driver.h"

#include <algorithm>
#include <cstdint>

#include "engine/io/hdf5_driver.h"

namespace gpt2 {
namespace {

struct DriverInfo {
  Hdf5ReadDriver* driver;
};

struct OpenFile : H5FD_t { // HDF5 keeps its own fields at the front
  Hdf5ReadDriver* driver = nullptr;
  haddr_t end_of_allocation = 0; // of what HDF5 uses
};

OpenFile* ours(H5FD_t* file) { return static_cast<OpenFile*>(file); }
const OpenFile* ours(const H5FD_t* file) { return static_cast<const OpenFile*>(file); }

H5FD_t* open_file(const char*, unsigned flags, hid_t access, haddr_t) {
  const auto* info = static_cast<const DriverInfo*>(H5Pget_driver_info(access));
  if (!info || flags != H5F_ACC_RDONLY) return nullptr;
  auto* file = new OpenFile{};
  file->driver = info->driver;
  return file;
}

herr_t close_file(H5FD_t* file) {
  delete ours(file);
  return 0;
}

herr_t query(const H5FD_t*, unsigned long* flags) {
  *flags = H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
  return 0;
}

haddr_t get_end_of_allocation(const H5FD_t* file, H5FD_mem_t) { return ours(file)->end_of_allocation; }

herr_t set_end_of_allocation(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  ours(file)->end_of_allocation = address;
  return 0;
}

haddr_t get_end_of_file(const H5FD_t* file, H5FD_mem_t) { return static_cast<haddr_t>(ours(file)->driver->bytes()); }

herr_t read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t size, void* buffer) {
  return ours(file)->driver->read(address, {static_cast<std::byte*>(buffer), size}) ? 0 : -1;
}

herr_t write(H5FD_t*, H5FD_mem_t, hid_t, haddr_t, size_t, const void*) { return -1; } // a driver must have one

hid_t register_driver() {
  H5FD_class_t driver{};
  driver.fapl_size = sizeof(DriverInfo);
  driver.open = open_file;
  driver.close = close_file;
  driver.query = query;
  driver.get_eoa = get_end_of_allocation;
  driver.set_eoa = set_end_of_allocation;
  driver.get_eof = get_end_of_file;
  driver.read = read;
  driver.write = write;
  return register_hdf5_driver(driver, "read_driver", 601);
}

} // namespace

Hdf5ReadDriver::Hdf5ReadDriver(VerifiedFile file)
    : file_(std::move(file)),
      driver_(register_driver(), H5FDunregister),
      access_(H5Pcreate(H5P_FILE_ACCESS), H5Pclose) {
  const DriverInfo info{this};
  H5Pset_driver(access_, driver_, &info);
}

bool Hdf5ReadDriver::read(uint64_t address, std::span<std::byte> out) {
  const auto end = static_cast<uint64_t>(bytes());
  const auto there = static_cast<size_t>(address < end ? std::min<uint64_t>(out.size(), end - address) : 0);
  std::ranges::fill(out.subspan(there), std::byte{0});
  try {
    file_.read(static_cast<int64_t>(address), out.first(there));
    return true;
  } catch (const Error& error) { // HDF5 is written in C: nothing may fly through it
    if (!error_) error_ = error;
  } catch (const std::exception& error) { // no memory
    if (!error_) error_ = Error(ExitCode::checkpoint, "cannot read " + file_.path() + ": " + error.what());
  }
  return false;
}

} // namespace gpt2
