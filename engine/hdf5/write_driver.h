// How HDF5 writes a new file through us. With its own driver, a write that fails while the file is being closed (the
// disk is full) leaves the library in pieces: HDF5 1.10.8 crashes in H5Fclose or at exit. This driver never tells it:
// it remembers the first system call that failed, swallows the writes that follow, and lets the file close in peace.
// Whoever writes asks error_number() afterwards.
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
