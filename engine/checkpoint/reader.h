// A checkpoint as one state, whatever the number of ranks that wrote it: tensors are assembled from the segments in all
// files; scalars come from state.h5.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/hdf5/state_reader.h"
#include "engine/model/state.h"

namespace gpt2 {

class CheckpointReader : public StateReader {
 public:
  // checked: a read throws Error(checkpoint), with the name of the tensor, for values that training cannot have
  // produced: NaN, infinity, and a negative second moment (adam_v).
  enum class Values { any, checked };
  // `files`: state.h5, then those of ranks 1, 2, ... Throws Error(checkpoint) if an element of a tensor is in no file
  // or in two.
  CheckpointReader(std::vector<std::unique_ptr<Hdf5StateFile>> files, const std::string& group, Values values);

  bool has(const std::string& name) const override { return tensors_.contains(name) || readers_.front().has(name); }
  void read_floats(const std::string& name, std::span<float> values) override;
  void read_range(const std::string& name, int64_t begin, std::span<float> values) override;
  void read_ranges(std::span<const FloatRange> ranges) override;
  std::vector<int64_t> shape(const std::string& name) override;
  int64_t read_int(const std::string& name) override { return readers_.front().read_int(name); }
  std::string read_text(const std::string& name) override { return readers_.front().read_text(name); }
  std::vector<std::string> tensors() const; // by name

 private:
  struct Segment {
    size_t file;
    int64_t begin, count;
  };
  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<Segment> segments; // by begin
  };

  struct RangeSegment {
    size_t file;
    int64_t begin; // element of the tensor
    std::span<float> values;
  };
  std::vector<RangeSegment> segments_of(const FloatRange& range); // throws if outside the tensor
  void index(size_t file);
  void refuse_gaps() const;

  std::vector<std::unique_ptr<Hdf5StateFile>> files_;
  std::vector<Hdf5StateReader> readers_; // of files_
  Values values_;
  std::map<std::string, Tensor> tensors_;
};

} // namespace gpt2
