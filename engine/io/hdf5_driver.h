// What our two HDF5 file drivers have in common.
#pragma once

#if __has_include(<H5FDdevelop.h>) // HDF5 1.14 moved the interface for drivers there
#include <H5FDdevelop.h>
#endif

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "engine/base/hdf5_handle.h"

namespace gpt2 {

// Registers a driver of whose class only the calls and fapl_size are set. `number`: 512 to 65535 are free for those
// that nobody else uses.
inline hid_t register_hdf5_driver(H5FD_class_t driver, const char* name, [[maybe_unused]] int number) {
#if H5_VERSION_GE(1, 14, 0)
  driver.version = H5FD_CLASS_VERSION;
  driver.value = static_cast<H5FD_class_value_t>(number);
#endif
  driver.name = name;
  driver.maxaddr = static_cast<haddr_t>(INT64_MAX);
  driver.fc_degree = H5F_CLOSE_WEAK;
  const H5FD_mem_t types[H5FD_MEM_NTYPES] = H5FD_FLMAP_DICHOTOMY;
  std::copy(std::begin(types), std::end(types), std::begin(driver.fl_map));
  return H5FDregister(&driver);
}

} // namespace gpt2
