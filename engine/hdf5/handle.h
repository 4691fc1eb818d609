// RAII for libhdf5: identifiers, and its error printing.
#pragma once

#include <hdf5.h>

#include <utility>

#include "engine/system/process.h"

namespace gpt2 {

// Owns an HDF5 identifier; negative: the call that created it failed.
class Hdf5Handle {
 public:
  Hdf5Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Hdf5Handle() {
    if (id_ >= 0) close_(id_);
  }
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&&) = delete;

  bool valid() const { return id_ >= 0; }
  operator hid_t() const { return id_; }
  bool close() { return close_(std::exchange(id_, -1)) >= 0; } // where a failure to close matters

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

// Scope of all libhdf5 calls of one thread: disables HDF5's own error printing, and sets errno to 0 at its start.
class Hdf5Silence {
 public:
  Hdf5Silence() {
    H5Eget_auto2(H5E_DEFAULT, &print_, &client_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~Hdf5Silence() { H5Eset_auto2(H5E_DEFAULT, print_, client_); }
  Hdf5Silence(const Hdf5Silence&) = delete;
  Hdf5Silence& operator=(const Hdf5Silence&) = delete;

 private:
  const InsideHdf5 inside_;
  H5E_auto2_t print_ = nullptr;
  void* client_ = nullptr;
};

} // namespace gpt2
