#include "tools/prepare_data/parquet.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/base/json_reader.h"
#include "engine/system/files.h"
#include "tools/common/child_process.h"

namespace gpt2 {
namespace {

const std::string kFailureKey = "parquet_to_jsonl_failed"; // as in the converter
constexpr char kEndOfGroup = '\x1e';                       // as in the converter

std::vector<std::string> converter_command(const std::string& path, const std::string& column, int part, int parts) {
  return {"python3",  find_script("tools/parquet_to_jsonl.py", "reads Parquet files"),
          "--column", column,
          "--part",   std::to_string(part),
          "--of",     std::to_string(parts),
          "--",       path};
}

// One process and its output not yet read.
struct Converter {
  explicit Converter(const std::vector<std::string>& command) : process(command, ChildProcess::Signals::shielded) {}

  // False at the end of its output.
  bool refill(const std::string& path, const StopCheck& stop) {
    char* const into = block.data();
    const int descriptor = ::fileno(process.output());
    wait_for_bytes(descriptor, stop);
    const ssize_t got = retry_on_eintr([&] { return ::read(descriptor, into, block.size()); });
    if (got < 0) throw_system_error(ExitCode::data, "read", path, errno);
    begin = 0;
    end = static_cast<size_t>(got);
    return got > 0;
  }

  ChildProcess process;
  std::vector<char> block = std::vector<char>(size_t{64} << 10); // the capacity of a pipe
  size_t begin = 0, end = 0;
};

class ParquetStream : public ByteStream {
 public:
  ParquetStream(const InputFile& input, const std::string& column, int converters, StopCheck stop)
      : input_(input), stop_(std::move(stop)) {
    for (int part = 0; part < converters; ++part)
      converters_.push_back(std::make_unique<Converter>(converter_command(input.path, column, part, converters)));
  }

  size_t read(std::span<char> out) override {
    size_t filled = 0;
    while (filled < out.size() && !ended_) filled += read_some(out.subspan(filled));
    if (filled == 0) check_endings(); // after its last line, which may give the reason of a failure
    read_ += static_cast<int64_t>(filled);
    return filled;
  }
  // Estimate: FineWeb-Edu's files hold 1.6 times their size as text.
  int64_t bytes_of_file() const override { return ended_ ? input_.bytes : std::min(input_.bytes, read_ * 5 / 8); }

 private:
  // Converter i prints row groups i, i + n, ... A missing group is the end of the file.
  size_t read_some(std::span<char> out) {
    Converter& converter = *converters_[group_ % converters_.size()];
    if (converter.begin == converter.end && !converter.refill(input_.path, stop_)) {
      ended_ = true;
      return 0;
    }
    const char* const from = converter.block.data() + converter.begin;
    const size_t room = std::min(out.size(), converter.end - converter.begin);
    const void* const group_end = std::memchr(from, kEndOfGroup, room);
    const size_t count = group_end ? static_cast<size_t>(static_cast<const char*>(group_end) - from) : room;
    std::memcpy(out.data(), from, count);
    converter.begin += count + (group_end ? 1 : 0);
    group_ += group_end ? 1 : 0;
    return count;
  }

  void check_endings() {
    if (std::exchange(checked_, true)) return;
    Converter& ended = *converters_[group_ % converters_.size()];
    check_ending(ended.process.wait()); // first: if it died, the others still have output
    for (const auto& other : converters_) {
      if (other.get() == &ended) continue;
      if (other->begin != other->end || other->refill(input_.path, stop_))
        throw Error(ExitCode::data, input_.path + " changed while it was read");
      check_ending(other->process.wait());
    }
  }
  void check_ending(const ChildProcess::Ending& ending) const {
    if (ending.status == 0) return;
    throw Error(ExitCode::data, input_.path + ": its converter exited with " + std::to_string(ending.status) +
                                    (ending.error_line.empty() ? "" : ": " + ending.error_line));
  }

  InputFile input_;
  StopCheck stop_;
  std::vector<std::unique_ptr<Converter>> converters_;
  size_t group_ = 0;
  int64_t read_ = 0;
  bool ended_ = false, checked_ = false; // end of the output; exit codes checked
};

} // namespace

std::unique_ptr<ByteStream> open_parquet(const InputFile& file, const std::string& column, int converters,
                                         const StopCheck& stop) {
  return std::make_unique<ParquetStream>(file, column, converters, stop);
}

void check_converter_line(std::string_view line) {
  if (!line.starts_with("{\"" + kFailureKey + "\"")) return;
  const auto object = parse_json(line);
  const auto why = object.find(kFailureKey); // end() if the value is not an object
  const bool has_reason = object.is_object() && why != object.end() && why->is_string();
  throw Error(ExitCode::data, has_reason ? why->get<std::string>() : std::string(line.substr(0, 200)));
}

} // namespace gpt2
