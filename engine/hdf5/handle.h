// The two habits of the HDF5 library that every user of it must deal with: identifiers to close, errors to silence.
// A header alone: shards (engine/data) and checkpoints (engine/checkpoint) share it, and engine/base stays without the
// library.
#pragma once

#include <hdf5.h>

#include <utility>

#include "engine/system/process.h"

namespace gpt2 {

// An HDF5 identifier that closes itself; negative: the call that made it failed.
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
  bool close() { return close_(std::exchange(id_, -1)) >= 0; } // where its failure matters

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

// Around all calls of HDF5. While one lives, HDF5 prints nothing about its failures; ours say it in one line. It lives
// in one thread, and errno is 0 when it begins.
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
