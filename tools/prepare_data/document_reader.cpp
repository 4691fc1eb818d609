#include "tools/prepare_data/document_reader.h"

#include <cstring>

#include "engine/base/error.h"
#include "engine/base/json_reader.h"
#include "engine/base/log.h"
#include "engine/system/stopped.h"
#include "tools/prepare_data/byte_stream.h"
#include "tools/prepare_data/parquet.h"

namespace gpt2 {
namespace {

constexpr int kLongestWithoutCut = 4; // chunks: longer text without a safe cut is cut anywhere

// Reads lines through one buffer.
class LineReader {
 public:
  LineReader(const InputFile& file, const DocumentReader::Options& options)
      : stream_(open_stream(file, options.field, options.parquet_readers, options.stop)),
        stop_(options.stop),
        buffer_(size_t{1} << 20) {}

  void skip(int64_t bytes) {
    stream_->skip(bytes);
    offset_ += bytes;
  }
  int64_t offset() const { return offset_; } // of the next byte, decompressed
  int64_t bytes_of_file() const { return stream_->bytes_of_file(); }

  // Appends the next line with its line break, or the first `limit` bytes of a longer one. False at the end.
  bool append_line(std::string& line, size_t limit) {
    const size_t before = line.size();
    while (line.size() - before < limit) {
      if (begin_ == end_ && !refill()) break;
      const char* from = buffer_.data() + begin_;
      const size_t room = std::min(end_ - begin_, limit - (line.size() - before));
      const void* newline = std::memchr(from, '\n', room);
      const size_t length = newline ? static_cast<const char*>(newline) - from + 1 : room;
      line.append(from, length);
      begin_ += length;
      offset_ += static_cast<int64_t>(length);
      if (newline) break;
    }
    return line.size() > before;
  }

  void skip_line() { // the rest of the line
    for (std::string rest; append_line(rest, buffer_.size()) && !rest.ends_with('\n');) rest.clear();
  }

 private:
  bool refill() {
    if (stop_ && stop_()) throw Stopped{};
    begin_ = 0;
    end_ = stream_->read(buffer_);
    return end_ > 0;
  }

  std::unique_ptr<ByteStream> stream_;
  StopCheck stop_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  int64_t offset_ = 0;
};

std::string_view without_line_break(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

// Start of the last character; a CR and its LF are one. Bounded: text that is no UTF-8 must be cut too.
size_t last_character(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > text.size() - 4 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) at--;
  return at > 0 && text[at] == '\n' && text[at - 1] == '\r' ? at - 1 : at;
}

static_assert(kLongestLine == JsonLimits{}.bytes);

} // namespace

struct DocumentReader::Impl {
  Options options;
  std::vector<InputFile> inputs;
  Position at; // offset and pending are stale while `reader` is open: see position()
  std::unique_ptr<LineReader> reader;
  std::string text;    // of the current document, not yet in a chunk
  size_t searched = 0; // prefix without a safe cut: no byte is searched twice

  const InputFile& input() const { return inputs[at.input]; }

  DocumentChunk chunk_of(std::string content, bool json) {
    at.documents += at.first;
    return {.text = std::move(content),
            .json = json,
            .first = at.first,
            .document = at.documents - 1,
            .path = input().path,
            .line = at.line,
            .input = at.input,
            .number = at.chunks++};
  }

  // Moves the first `length` bytes of the pending text into `chunk`.
  void emit(DocumentChunk& chunk, size_t length) {
    chunk = chunk_of(text.substr(0, length), false);
    text.erase(0, length);
    searched = 0;
    at.first = false;
  }

  void open() {
    reader = std::make_unique<LineReader>(input(), options);
    if (at.offset == 0) return;
    reader->skip(at.offset - at.pending);
    const auto pending = static_cast<size_t>(at.pending);
    while (text.size() < pending && reader->append_line(text, pending - text.size())) continue;
  }

  void next_input() {
    reader.reset();
    at.input++;
    at.offset = at.pending = at.line = 0;
    at.first = at.at_line_start = true;
  }

  // Reads the next line. True: it produced a chunk.
  bool advance_json(DocumentChunk& chunk, bool& ended) {
    std::string json;
    ended = !reader->append_line(json, options.line_bytes);
    if (ended) return false;
    at.line++;
    if (json.size() == options.line_bytes && !json.ends_with('\n')) {
      reader->skip_line();
      chunk = chunk_of("", true);
      chunk.too_long = true;
      return true;
    }
    check_converter_line(json);
    if (without_line_break(json).empty()) return false;
    chunk = chunk_of(std::move(json), true);
    return true;
  }

  // Appends one line to `text`. True: it produced a chunk. `ended`: end of the file.
  bool advance_text(DocumentChunk& chunk, bool& ended) {
    const size_t before = text.size();
    ended = !reader->append_line(text, options.chunk_bytes);
    const std::string_view added = std::string_view(text).substr(before);
    const bool separator = !ended && at.at_line_start && without_line_break(added) == options.separator;
    if (!ended) at.at_line_start = added.ends_with('\n');
    if (separator) text.resize(without_line_break({text.data(), before}).size());
    if (ended || separator) {
      const bool some = !text.empty();
      if (some) emit(chunk, text.size());
      at.first = true;
      return some;
    }
    if (text.size() < options.chunk_bytes) return false;
    size_t cut = last_safe_cut(text, std::max<size_t>(1, searched));
    searched = text.size();
    if (cut == 0 && text.size() >= kLongestWithoutCut * options.chunk_bytes) cut = last_character(text);
    if (cut > 0) emit(chunk, cut);
    return cut > 0;
  }
};

DocumentReader::DocumentReader(Options options) : impl_(std::make_unique<Impl>()) {
  impl_->inputs = find_inputs(options.inputs, options.input_format);
  impl_->options = std::move(options);
}

DocumentReader::~DocumentReader() = default;

bool DocumentReader::next(DocumentChunk& chunk) {
  Impl& self = *impl_;
  while (self.at.input < self.inputs.size()) {
    if (!self.reader) self.open();
    bool ended = false;
    const bool some =
        self.input().format == TextFormat::text ? self.advance_text(chunk, ended) : self.advance_json(chunk, ended);
    if (ended) self.next_input();
    if (some) return true;
  }
  return false;
}

DocumentReader::Position DocumentReader::position() const {
  Position position = impl_->at;
  if (!impl_->reader) return position; // between two inputs
  position.offset = impl_->reader->offset();
  position.pending = static_cast<int64_t>(impl_->text.size());
  return position;
}

void DocumentReader::go_to(const Position& from) { impl_->at = from; }

const std::vector<InputFile>& DocumentReader::inputs() const { return impl_->inputs; }

int64_t DocumentReader::bytes_read() const {
  int64_t bytes = impl_->reader ? impl_->reader->bytes_of_file() : 0;
  for (size_t i = 0; i < impl_->at.input; ++i) bytes += impl_->inputs[i].bytes;
  return bytes;
}

size_t last_safe_cut(std::string_view text, size_t first) {
  for (size_t i = text.size(); i-- > first;) {
    if (text[i] != ' ' && text[i] != '\n' && text[i] != '\r') continue;
    const uint8_t before = static_cast<uint8_t>(text[i - 1]);
    // No white space beyond ASCII ends in a byte of 0xB0 or more (U+0085, U+00A0, U+1680, U+2000 ... U+3000).
    if ((before > ' ' && before < 0x80) || before >= 0xB0) return i;
  }
  return 0;
}

std::string json_document(const DocumentChunk& chunk, const std::string& field) {
  const std::string where = chunk.where();
  const char* const hint = "repair the line, or give --skip_bad_lines";
  if (chunk.too_long)
    throw Error(ExitCode::data, where + " is longer than " + format_bytes(static_cast<double>(kLongestLine)), hint);
  std::string why;
  const auto object = parse_json(chunk.text, {}, &why);
  if (!object.is_object())
    throw Error(ExitCode::data, where + " is not a JSON object" + (why.empty() ? "" : ": " + why), hint);
  const auto found = object.find(field);
  if (found == object.end() || !found->is_string()) {
    throw Error(ExitCode::data, where + " has no string in a field \"" + field + "\"",
                "name the field that holds the text: --field NAME");
  }
  return found->get<std::string>();
}

} // namespace gpt2
