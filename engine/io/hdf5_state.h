// A model's state in an HDF5 file: "params/wte.weight" is the dataset wte.weight in the group params.
//
//   floats   contiguous float32 datasets of their shape     h5py: file["params/wte.weight"][:]
//   pieces   contiguous float32 datasets of one dimension, with attributes `shape` of the whole tensor and `begin`,
//            the piece's place in it, counted in elements in row-major order
//   numbers  scalar int64 or float64 datasets               h5py: file["adam_step"][()]
//   text     scalar fixed-length UTF-8 datasets             h5py: file["train/run_name"].asstr()[()]
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/io/hdf5_read_driver.h"
#include "engine/io/hdf5_write_driver.h"
#include "engine/model/state.h"

namespace gpt2 {

// An open HDF5 file. Failures are Error(checkpoint) on a file opened to be read, Error(disk) on a new one.
class Hdf5File {
 public:
  enum class Mode { read, create };
  Hdf5File(std::string path, Mode mode, std::string hint); // the hint goes with every Error
  Hdf5File(VerifiedFile file, std::string hint);           // to be read

  hid_t id() const { return file_; }
  const std::string& path() const { return path_; }
  // A new file. Errors may show as late as in close(); a file that was not closed has to be thrown away.
  void check_written(const std::string& name) const;
  void close();
  // A file to be read. HDF5 takes what it could not read for absent, where it is only asked whether it is there.
  void check_read() const;
  const VerifiedFile* verified() const { return verified_ ? &verified_->file() : nullptr; } // null: no hashes are known

  // Attributes of the root group: what the file is.
  void write_attribute(const std::string& name, int64_t value);
  void write_attribute(const std::string& name, const std::string& value);
  bool has_attribute(const std::string& name) const;
  int64_t read_int_attribute(const std::string& name) const;
  std::string read_text_attribute(const std::string& name) const;

  // "cannot read params/wte.weight of PATH: <reason>"; without one, HDF5 is asked for it.
  [[noreturn]] void fail(const std::string& name, std::string reason = "") const;

 private:
  void put_attribute(const std::string& name, hid_t type, const void* value);
  Hdf5Handle open_attribute(const std::string& name) const;

  Hdf5Silence silence_; // first in, last out: closing may complain as well
  std::string path_, hint_;
  ExitCode on_error_;
  std::unique_ptr<Hdf5WriteDriver> driver_;  // of a new file
  std::unique_ptr<Hdf5ReadDriver> verified_; // of one whose hashes are known
  Hdf5Handle file_;
};

class Hdf5StateWriter : public StateWriter {
 public:
  Hdf5StateWriter(Hdf5File& file, std::string group) : file_(file), group_(std::move(group)) {}

  void write_floats(const std::string& name, std::span<const int64_t> shape, std::span<const float> values) override;
  void write_piece(const std::string& name, std::span<const int64_t> shape, int64_t begin,
                   std::span<const float> values) override;
  void write_int(const std::string& name, int64_t value) override;
  void write_text(const std::string& name, const std::string& value) override;
  void write_real(const std::string& name, double value);

 private:
  Hdf5Handle write_dataset(const std::string& name, hid_t type, hid_t space, const void* values);
  void write_numbers(hid_t dataset, const std::string& name, const Hdf5Handle& space, const int64_t* values);

  Hdf5File& file_;
  std::string group_;
};

// What one dataset holds of a tensor: all of it, or a piece.
struct TensorPart {
  std::vector<int64_t> shape; // of the whole tensor
  int64_t begin = 0, count = 0;
  std::optional<int64_t> offset = std::nullopt; // in bytes, of its floats in a verified file; none: HDF5 has to read it
};

class Hdf5StateReader : public StateReader {
 public:
  Hdf5StateReader(const Hdf5File& file, std::string group) : file_(file), group_(std::move(group)) {}

  bool has(const std::string& name) const override;
  void read_floats(const std::string& name, std::span<float> values) override;
  // Inside what this file holds of the tensor. At most three reads: the end of a row, whole rows, the beginning of one.
  void read_range(const std::string& name, int64_t begin, std::span<float> values) override;
  std::vector<int64_t> shape(const std::string& name) override { return part(name).shape; }
  TensorPart part(const std::string& name) const;
  std::vector<std::string> tensors() const;                   // every dataset of floats, and every piece of one
  std::vector<std::pair<std::string, std::string>> scalars(); // every number and text, as text, by name
  int64_t read_int(const std::string& name) override;
  std::string read_text(const std::string& name) override;
  double read_real(const std::string& name);

 private:
  std::vector<std::string> datasets() const;
  std::optional<int64_t> offset_of(hid_t dataset, int64_t count) const;
  Hdf5Handle open_dataset(const std::string& name, H5T_class_t type_class) const;
  std::vector<int64_t> read_numbers(hid_t dataset, const std::string& name, const char* attribute) const;
  void read_box(hid_t dataset, const std::string& name, std::span<const hsize_t> begin,
                std::span<const hsize_t> extents, float* values) const;
  void read_scalar(const std::string& name, H5T_class_t type_class, hid_t type, void* value);
  std::string full_name(const std::string& name) const { return group_ + "/" + name; }

  const Hdf5File& file_;
  std::string group_;
};

} // namespace gpt2
