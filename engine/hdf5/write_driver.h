// HDF5 file driver for new files. With the default driver, a write that fails in H5Fclose (disk full) makes HDF5 1.10.8
// crash there or at exit. This driver reports success to HDF5, records the errno of the first failed system call and
// drops later writes. The caller checks error_number() after the file is closed.
#pragma once

#include "engine/hdf5/handle.h"

namespace gpt2 {

class Hdf5WriteDriver {
 public:
  Hdf5WriteDriver();
  Hdf5WriteDriver(const Hdf5WriteDriver&) = delete;
  Hdf5WriteDriver& operator=(const Hdf5WriteDriver&) = delete;

  hid_t access() const { return access_; }           // for H5Fcreate; the driver must outlive the file
  int error_number() const { return error_number_; } // errno of the first failure, 0: none

 private:
  Hdf5Handle driver_, access_;
  int error_number_ = 0;
};

} // namespace gpt2
