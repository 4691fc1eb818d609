// The engines' common part of a checkpoint.
#include "engine/model/model_state.h"

#include <array>
#include <string>
#include <vector>

#include "engine/base/error.h"

namespace gpt2 {
namespace {

struct Group {
  const char* prefix;
  std::span<float> flat;
};

std::array<Group, 3> groups(const FlatState& state) {
  return {{{"params/", state.params}, {"adam_m/", state.adam_m}, {"adam_v/", state.adam_v}}};
}

std::string describe(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (const int64_t extent : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  return text + ")";
}

std::span<float> slice(std::span<float> flat, const ParameterTensor& tensor) {
  return flat.subspan(static_cast<size_t>(tensor.offset), static_cast<size_t>(tensor.count()));
}

void check_shape(StateReader& reader, const std::string& name, const std::vector<int64_t>& expected) {
  const std::string hint = "resume with the --model, --seq_len and shape that the checkpoint was written with";
  if (!reader.has(name)) throw Error(ExitCode::checkpoint, "the checkpoint has no tensor " + name, hint);
  const std::vector<int64_t> found = reader.shape(name);
  if (found == expected) return;
  throw Error(
      ExitCode::checkpoint,
      "the checkpoint is of another model: " + name + " is " + describe(found) + ", expected " + describe(expected),
      hint);
}

} // namespace

void save_tensors(StateWriter& writer, const ParameterTable& table, const FlatState& state) {
  for (const Group& group : groups(state)) {
    for (const ParameterTensor& tensor : table.tensors()) {
      writer.write_floats(group.prefix + tensor.name, tensor.shape(), slice(group.flat, tensor));
    }
  }
}

void load_tensors(StateReader& reader, const ParameterTable& table, const FlatState& state) {
  for (const Group& group : groups(state)) {
    for (const ParameterTensor& tensor : table.tensors()) {
      check_shape(reader, group.prefix + tensor.name, tensor.shape());
    }
  }
  for (const Group& group : groups(state)) {
    for (const ParameterTensor& tensor : table.tensors()) {
      reader.read_floats(group.prefix + tensor.name, slice(group.flat, tensor));
    }
  }
}

void save_guard(StateWriter& writer, const GuardState& guard) {
  const int64_t window[] = {GuardState::kWindow};
  writer.write_floats("guard/losses", window, guard.losses);
  writer.write_floats("guard/norms", window, guard.norms);
  writer.write_int("guard/filled", guard.filled);
  writer.write_int("guard/next", guard.next);
  writer.write_int("guard/skipped_in_a_row", guard.skipped_in_a_row);
  writer.write_int("adam_step", guard.adam_step);
}

GuardState load_guard(StateReader& reader) {
  GuardState guard{};
  reader.read_floats("guard/losses", guard.losses);
  reader.read_floats("guard/norms", guard.norms);
  const int64_t filled = reader.read_int("guard/filled"), next = reader.read_int("guard/next");
  if (filled < 0 || filled > GuardState::kWindow || next < 0 || next >= GuardState::kWindow) {
    throw Error(ExitCode::checkpoint, "the checkpoint's guard window is damaged", "resume from an earlier checkpoint");
  }
  guard.filled = static_cast<int32_t>(filled);
  guard.next = static_cast<int32_t>(next);
  guard.skipped_in_a_row = static_cast<int32_t>(reader.read_int("guard/skipped_in_a_row"));
  guard.adam_step = reader.read_int("adam_step");
  return guard;
}

} // namespace gpt2
