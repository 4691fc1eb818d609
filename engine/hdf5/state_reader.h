// Reads a model's state from an HDF5 file as Hdf5StateWriter writes it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/hdf5/reader.h"
#include "engine/hdf5/verified_file.h"
#include "engine/model/state.h"

namespace gpt2 {

// A file of a checkpoint. Failures are Error(checkpoint) with the hint. With a manifest, no byte is used before the
// hash of its block has been compared.
class Hdf5StateFile {
 public:
  Hdf5StateFile(const std::string& path, std::string hint); // no hashes are known
  Hdf5StateFile(VerifiedFile file, std::string hint);

  const std::string& path() const { return verified_ ? verified_->path() : plain_->path(); }
  const Hdf5Contents& contents() const { return contents_; }
  void read(const FilePart& part) const;
  void read_parts(std::vector<FilePart> parts) const; // all that is wanted at once: faster (VerifiedFile)

  // Attributes of the root group: what the file is.
  bool has_attribute(const std::string& name) const { return contents_.attributes.contains(name); }
  int64_t read_int_attribute(const std::string& name) const;
  std::string read_text_attribute(const std::string& name) const;

  // "cannot read params/wte.weight of PATH: <reason>"
  [[noreturn]] void fail(const std::string& name, const std::string& reason) const;

 private:
  const Hdf5Attribute& attribute(const std::string& name, Hdf5Type::Kind kind) const;
  void read_structure();

  std::string hint_;
  std::optional<File> plain_;
  std::optional<VerifiedFile> verified_;
  Hdf5Contents contents_;
};

// What one dataset holds of a tensor: all of it, or a piece.
struct TensorPart {
  std::vector<int64_t> shape; // of the whole tensor
  int64_t begin = 0, count = 0;
};

class Hdf5StateReader : public StateReader {
 public:
  Hdf5StateReader(const Hdf5StateFile& file, std::string group); // "/model"

  bool has(const std::string& name) const override;
  void read_floats(const std::string& name, std::span<float> values) override;
  void read_range(const std::string& name, int64_t begin, std::span<float> values) override;
  std::vector<int64_t> shape(const std::string& name) override { return part(name).shape; }
  TensorPart part(const std::string& name) const;
  std::vector<std::string> tensors() const;                   // every dataset of floats, and every piece of one
  std::vector<std::pair<std::string, std::string>> scalars(); // every number and text, as text, by name
  int64_t read_int(const std::string& name) override;
  std::string read_text(const std::string& name) override;
  double read_real(const std::string& name);

  // Where elements of a tensor are in the file, as parts to be read into `values`; they must be inside part(name).
  void add_parts(const std::string& name, int64_t begin, std::span<float> values, std::vector<FilePart>& parts) const;

 private:
  const Hdf5Dataset& dataset(const std::string& name, Hdf5Type::Kind kind) const;
  std::vector<std::byte> scalar(const std::string& name, const Hdf5Dataset& dataset) const;
  std::vector<std::pair<std::string, const Hdf5Dataset*>> datasets() const;

  const Hdf5StateFile& file_;
  std::string group_; // "/model/"
};

} // namespace gpt2
