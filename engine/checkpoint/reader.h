// A checkpoint as one state, however many ranks wrote it: tensors come from whichever files hold their pieces, all the
// rest from state.h5.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/hdf5/state_reader.h"

namespace gpt2 {

class CheckpointReader : public StateReader {
 public:
  // `files`: state.h5, then those of the other ranks; `absent`: the path of one that should be among them, or "".
  // Throws Error(checkpoint) if some elements of a tensor are in no file, or in two.
  CheckpointReader(std::vector<std::unique_ptr<Hdf5StateFile>> files, const std::string& group,
                   const std::string& absent, const std::string& hint);

  bool has(const std::string& name) const override { return tensors_.contains(name) || common().has(name); }
  void read_floats(const std::string& name, std::span<float> values) override;
  void read_range(const std::string& name, int64_t begin, std::span<float> values) override;
  void read_ranges(std::span<const FloatRange> ranges) override;
  std::vector<int64_t> shape(const std::string& name) override;
  int64_t read_int(const std::string& name) override { return common().read_int(name); }
  std::string read_text(const std::string& name) override { return common().read_text(name); }
  std::vector<std::string> tensors() const; // by name
  std::vector<std::pair<std::string, std::string>> scalars() { return common().scalars(); }

 private:
  struct Piece {
    size_t file;
    int64_t begin, count;
  };
  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<Piece> pieces; // by begin
  };

  Hdf5StateReader common() const { return {*files_.front(), group_}; }
  struct PieceOfRange {
    const Piece* piece;
    int64_t begin; // in elements of the tensor
    std::span<float> values;
  };
  std::vector<PieceOfRange> pieces_of(const FloatRange& range); // throws if it is not inside the tensor
  void index(size_t file);
  std::string find_gap() const; // "params/wte.weight: elements 0 to 255 ...", "" if there is none

  std::vector<std::unique_ptr<Hdf5StateFile>> files_;
  std::string group_, hint_;
  std::map<std::string, Tensor> tensors_;
};

} // namespace gpt2
