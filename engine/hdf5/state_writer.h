// Writes a model's state to an HDF5 file: "params/wte.weight" is the dataset wte.weight in the group params.
//
//   floats   contiguous float32 datasets of their shape     h5py: file["params/wte.weight"][:]
//   segments contiguous float32 datasets of one dimension, with attributes `shape` of the whole tensor and `begin`,
//            the index of the first element in row-major order
//   numbers  scalar int64 or float64 datasets               h5py: file["adam_step"][()]
//   text     scalar fixed-length UTF-8 datasets             h5py: file["train/run_name"].asstr()[()]
#pragma once

#include <string>
#include <utility>

#include "engine/hdf5/write_driver.h"
#include "engine/model/state.h"

namespace gpt2 {

// A new HDF5 file. Failures are Error(disk), some only in close(): discard a file that was not closed. One thread at a
// time: libhdf5 is not thread-safe.
class Hdf5NewFile {
 public:
  Hdf5NewFile(std::string path, std::string hint); // hint of every Error

  hid_t id() const { return file_; }
  void close();

  // Attributes of the root group: what the file is.
  void write_attribute(const std::string& name, int64_t value);
  void write_attribute(const std::string& name, const std::string& value);

  void check(const std::string& name, bool written) const; // throws if `written` is false or an earlier write failed

 private:
  Hdf5Silence silence_; // first member: still active while the file closes
  std::string path_, hint_;
  Hdf5WriteDriver driver_;
  Hdf5Handle file_;
};

class Hdf5StateWriter : public StateWriter {
 public:
  Hdf5StateWriter(Hdf5NewFile& file, std::string group) : file_(file), group_(std::move(group)) {}

  void write_floats(const std::string& name, std::span<const int64_t> shape, std::span<const float> values) override;
  void write_slice(const std::string& name, std::span<const int64_t> shape, int64_t begin,
                   std::span<const float> values) override;
  void write_int(const std::string& name, int64_t value) override;
  void write_text(const std::string& name, const std::string& value) override;
  void write_real(const std::string& name, double value);

 private:
  Hdf5Handle write_dataset(const std::string& name, hid_t type, hid_t space, const void* values);

  Hdf5NewFile& file_;
  std::string group_;
};

} // namespace gpt2
