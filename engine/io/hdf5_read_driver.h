// How HDF5 reads a file of a checkpoint: through us, and only bytes whose hash has been compared. What is wrong is kept
// here, because HDF5 would only say that a read failed.
#pragma once

#include <optional>

#include "engine/base/error.h"
#include "engine/base/hdf5_handle.h"
#include "engine/io/verified_file.h"

namespace gpt2 {

class Hdf5ReadDriver {
 public:
  explicit Hdf5ReadDriver(VerifiedFile file);
  Hdf5ReadDriver(const Hdf5ReadDriver&) = delete;
  Hdf5ReadDriver& operator=(const Hdf5ReadDriver&) = delete;

  hid_t access() const { return access_; }                     // for H5Fopen; the driver must outlive the file
  const std::optional<Error>& error() const { return error_; } // of the first read that failed

  bool read(uint64_t address, std::span<std::byte> out); // for HDF5; zeros beyond the end
  int64_t bytes() const { return file_.bytes(); }
  const VerifiedFile& file() const { return file_; }

 private:
  VerifiedFile file_;
  std::optional<Error> error_;
  Hdf5Handle driver_, access_;
};

} // namespace gpt2
