#include "engine/checkpoint/reader.h"

#include <algorithm>
#include <bit>
#include <filesystem>

#include "engine/hdf5/parallel_for.h"

namespace gpt2 {
namespace {

std::string elements(int64_t begin, int64_t end) {
  return "elements " + std::to_string(begin) + " to " + std::to_string(end - 1);
}

constexpr uint32_t kWithoutSign = 0x7FFFFFFF, kInfinity = 0x7F800000, kMinusZero = 0x80000000;

struct Largest {
  uint32_t bits = 0, without_sign = 0;
};

// No branches, so the loop vectorizes: cheaper than reading the values.
Largest largest_of(std::span<const float> values) {
  Largest largest;
  for (const float value : values) {
    const auto bits = std::bit_cast<uint32_t>(value);
    largest.bits = std::max(largest.bits, bits);
    largest.without_sign = std::max(largest.without_sign, bits & kWithoutSign);
  }
  return largest;
}

// Throws for values that training cannot have produced.
void check_values(const std::string& name, std::span<const float> values) {
  const Largest largest = largest_of(values);
  const auto refuse = [&](const char* why) {
    throw Error(ExitCode::checkpoint, "the checkpoint's " + name + " " + why);
  };
  if (largest.without_sign >= kInfinity) refuse("holds values that are not finite");
  if (name.starts_with("adam_v/") && largest.bits > kMinusZero)
    refuse("is a mean of squares, but holds negative values");
}

} // namespace

CheckpointReader::CheckpointReader(std::vector<std::unique_ptr<Hdf5StateFile>> files, const std::string& group,
                                   Values values)
    : files_(std::move(files)), values_(values) {
  for (const auto& file : files_) readers_.emplace_back(*file, group);
  for (size_t file = 0; file < files_.size(); ++file) index(file);
  refuse_gaps();
}

void CheckpointReader::index(size_t file) {
  const Hdf5StateReader& reader = readers_[file];
  for (const std::string& name : reader.tensors()) {
    TensorPart part = reader.part(name);
    Tensor& tensor = tensors_[name];
    if (tensor.segments.empty())
      tensor.shape = std::move(part.shape);
    else if (tensor.shape != part.shape)
      reader.fail(name, "its tensor has another shape than in the other files");
    const auto after = [&](const Segment& other) { return other.begin >= part.begin; };
    tensor.segments.insert(std::find_if(tensor.segments.begin(), tensor.segments.end(), after),
                           {.file = file, .begin = part.begin, .count = part.count});
  }
}

void CheckpointReader::refuse_gaps() const {
  const auto refuse = [&](const std::string& gap) {
    const std::string folder = std::filesystem::path(files_.front()->path()).parent_path().string();
    throw Error(ExitCode::checkpoint, folder + " is damaged: " + gap);
  };
  for (const auto& [name, tensor] : tensors_) {
    int64_t end = 0; // elements covered so far
    std::string before = "the beginning";
    for (const Segment& segment : tensor.segments) {
      const std::string& path = files_[segment.file]->path();
      if (segment.begin > end)
        refuse(elements(end, segment.begin) + " of " + name + ", before those in " + path + ", are in no file");
      if (segment.begin < end)
        refuse(elements(segment.begin, end) + " of " + name + " are in " + before + " and in " + path);
      end = segment.begin + segment.count;
      before = path;
    }
    if (end < element_count(tensor.shape))
      refuse(elements(end, element_count(tensor.shape)) + " of " + name + ", after those in " + before +
             ", are in no file");
  }
}

std::vector<std::string> CheckpointReader::tensors() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

std::vector<int64_t> CheckpointReader::shape(const std::string& name) {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? readers_.front().part(name).shape : found->second.shape; // the former throws
}

void CheckpointReader::read_floats(const std::string& name, std::span<float> values) {
  const int64_t count = element_count(shape(name));
  if (count != static_cast<int64_t>(values.size()))
    readers_.front().fail(name, "it holds " + std::to_string(count) + " values, not " + std::to_string(values.size()));
  read_range(name, 0, values);
}

std::vector<CheckpointReader::RangeSegment> CheckpointReader::segments_of(const FloatRange& range) {
  const int64_t begin = range.begin, end = begin + static_cast<int64_t>(range.values.size());
  if (begin < 0 || end > element_count(shape(range.name)))
    readers_.front().fail(range.name, "it has no " + elements(begin, end));
  std::vector<RangeSegment> found;
  for (const Segment& segment : tensors_.at(range.name).segments) {
    const int64_t from = std::max(begin, segment.begin), to = std::min(end, segment.begin + segment.count);
    if (from >= to) continue;
    found.push_back(
        {segment.file, from, range.values.subspan(static_cast<size_t>(from - begin), static_cast<size_t>(to - from))});
  }
  return found;
}

void CheckpointReader::read_range(const std::string& name, int64_t begin, std::span<float> values) {
  for (const RangeSegment& segment : segments_of({name, begin, values}))
    readers_[segment.file].read_range(name, segment.begin, segment.values);
  if (values_ == Values::checked) check_values(name, values);
}

// All ranges of a file at once: each 16 MiB block is read and hashed once, and several in parallel.
void CheckpointReader::read_ranges(std::span<const FloatRange> ranges) {
  std::vector<std::vector<FilePart>> of_file(files_.size());
  for (const FloatRange& range : ranges) {
    for (const RangeSegment& segment : segments_of(range))
      readers_[segment.file].add_parts(range.name, segment.begin, segment.values, of_file[segment.file]);
  }
  for (size_t file = 0; file < files_.size(); ++file) files_[file]->read_parts(std::move(of_file[file]));
  if (values_ == Values::checked)
    parallel_for(ranges.size(), [&](size_t i) { check_values(ranges[i].name, ranges[i].values); });
}

} // namespace gpt2
