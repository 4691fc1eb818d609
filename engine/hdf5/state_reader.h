// Reads a model's state from an HDF5 file as Hdf5StateWriter writes it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/hdf5/reader.h"
#include "engine/hdf5/verified_file.h"

namespace gpt2 {

// A file of a checkpoint. Failures are Error(checkpoint) without a hint.
class Hdf5StateFile {
 public:
  explicit Hdf5StateFile(VerifiedFile file);

  const std::string& path() const { return file_.path(); }
  const Hdf5Contents& contents() const { return contents_; }
  void read(const FilePart& part) const { file_.read(part.offset, part.out); }
  void read_parts(std::vector<FilePart> parts) const { file_.read_parts(std::move(parts)); }

  // Attributes of the root group: what the file is.
  bool has_attribute(const std::string& name) const { return contents_.attributes.contains(name); }
  int64_t read_int_attribute(const std::string& name) const;
  std::string read_text_attribute(const std::string& name) const;

  [[noreturn]] void fail(const std::string& name, const std::string& reason) const; // "cannot read NAME of PATH: ..."

 private:
  const Hdf5Attribute& attribute(const std::string& name, Hdf5Type::Kind kind) const;

  VerifiedFile file_;
  Hdf5Contents contents_;
};

// The elements of a tensor that one dataset holds.
struct TensorPart {
  std::vector<int64_t> shape; // of the whole tensor
  int64_t begin = 0, count = 0;
};

// A group of the file.
class Hdf5StateReader {
 public:
  Hdf5StateReader(const Hdf5StateFile& file, std::string group); // "model"

  bool has(const std::string& name) const;
  TensorPart part(const std::string& name) const;
  void read_range(const std::string& name, int64_t begin, std::span<float> values) const; // inside part(name)
  std::vector<std::string> tensors() const;                         // of which this file holds at least a segment
  std::vector<std::pair<std::string, std::string>> scalars() const; // numbers and texts: {"model/adam_step", "1000"}
  int64_t read_int(const std::string& name) const;
  std::string read_text(const std::string& name) const;
  double read_real(const std::string& name) const;

  // "cannot read model/params/wte.weight of PATH: <reason>"
  [[noreturn]] void fail(const std::string& name, const std::string& reason) const;

  // Appends the file parts to be read into `values`: elements from `begin` on, inside part(name). Fills unwritten ones
  // with zeros.
  void add_parts(const std::string& name, int64_t begin, std::span<float> values, std::vector<FilePart>& parts) const;

 private:
  const Hdf5Dataset& dataset(const std::string& name, Hdf5Type::Kind kind) const;
  std::vector<std::byte> scalar(const std::string& name, const Hdf5Dataset& dataset) const;
  std::vector<std::pair<std::string, const Hdf5Dataset*>> datasets() const;

  const Hdf5StateFile& file_;
  std::string group_; // "model/"
};

} // namespace gpt2
