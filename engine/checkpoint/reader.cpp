#include "engine/checkpoint/reader.h"

#include <algorithm>
#include <filesystem>

namespace gpt2 {
namespace {

std::string elements(int64_t begin, int64_t end) { // [begin, end), for people
  return "elements " + std::to_string(begin) + " to " + std::to_string(end - 1);
}

} // namespace

CheckpointReader::CheckpointReader(std::vector<std::unique_ptr<Hdf5StateFile>> files, const std::string& group,
                                   const std::string& absent, const std::string& hint)
    : files_(std::move(files)), group_(group), hint_(hint) {
  for (size_t file = 0; file < files_.size(); ++file) index(file);
  const std::string gap = find_gap();
  if (!absent.empty())
    throw Error(ExitCode::checkpoint, absent + " is not there" + (gap.empty() ? "" : ": " + gap), hint_);
  if (!gap.empty()) {
    const std::string folder = std::filesystem::path(files_.front()->path()).parent_path().string();
    throw Error(ExitCode::checkpoint, folder + " is damaged: " + gap, hint_);
  }
}

void CheckpointReader::index(size_t file) {
  const Hdf5StateReader reader(*files_[file], group_);
  for (const std::string& name : reader.tensors()) {
    TensorPart part = reader.part(name);
    Tensor& tensor = tensors_[name];
    if (tensor.pieces.empty())
      tensor.shape = std::move(part.shape);
    else if (tensor.shape != part.shape)
      files_[file]->fail(group_ + "/" + name, "it is a piece of another shape than in the other files");
    const auto after = [&](const Piece& other) { return other.begin >= part.begin; };
    tensor.pieces.insert(std::find_if(tensor.pieces.begin(), tensor.pieces.end(), after),
                         {.file = file, .begin = part.begin, .count = part.count});
  }
}

std::string CheckpointReader::find_gap() const {
  for (const auto& [name, tensor] : tensors_) {
    int64_t end = 0; // of what was found so far
    std::string before = "the beginning";
    for (const Piece& piece : tensor.pieces) {
      const std::string& path = files_[piece.file]->path();
      if (piece.begin > end)
        return elements(end, piece.begin) + " of " + name + ", before those in " + path + ", are in no file";
      if (piece.begin < end)
        return elements(piece.begin, end) + " of " + name + " are in " + before + " and in " + path;
      end = piece.begin + piece.count;
      before = path;
    }
    if (end < element_count(tensor.shape))
      return elements(end, element_count(tensor.shape)) + " of " + name + ", after those in " + before +
             ", are in no file";
  }
  return "";
}

std::vector<std::string> CheckpointReader::tensors() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

std::vector<int64_t> CheckpointReader::shape(const std::string& name) {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? common().shape(name) : found->second.shape; // the former says what is wrong
}

void CheckpointReader::read_floats(const std::string& name, std::span<float> values) {
  const int64_t count = element_count(shape(name));
  if (count != static_cast<int64_t>(values.size())) {
    files_.front()->fail(group_ + "/" + name,
                         "it holds " + std::to_string(count) + " values, not " + std::to_string(values.size()));
  }
  read_range(name, 0, values);
}

std::vector<CheckpointReader::PieceOfRange> CheckpointReader::pieces_of(const FloatRange& range) {
  const int64_t begin = range.begin, end = begin + static_cast<int64_t>(range.values.size());
  if (begin < 0 || end > element_count(shape(range.name)))
    files_.front()->fail(group_ + "/" + range.name, "it has no " + elements(begin, end));
  std::vector<PieceOfRange> parts;
  for (const Piece& piece : tensors_.at(range.name).pieces) {
    const int64_t from = std::max(begin, piece.begin), to = std::min(end, piece.begin + piece.count);
    if (from >= to) continue;
    parts.push_back(
        {&piece, from, range.values.subspan(static_cast<size_t>(from - begin), static_cast<size_t>(to - from))});
  }
  return parts;
}

void CheckpointReader::read_range(const std::string& name, int64_t begin, std::span<float> values) {
  for (const PieceOfRange& part : pieces_of({name, begin, values}))
    Hdf5StateReader(*files_[part.piece->file], group_).read_range(name, part.begin, part.values);
}

// One tensor after the other would be one block after the other, and each once more for every tensor that begins in it.
void CheckpointReader::read_ranges(std::span<const FloatRange> ranges) {
  std::vector<std::vector<FilePart>> of_file(files_.size());
  for (const FloatRange& range : ranges) {
    for (const PieceOfRange& part : pieces_of(range)) {
      const size_t file = part.piece->file;
      Hdf5StateReader(*files_[file], group_).add_parts(range.name, part.begin, part.values, of_file[file]);
    }
  }
  for (size_t file = 0; file < files_.size(); ++file) files_[file]->read_parts(std::move(of_file[file]));
}

} // namespace gpt2
