#include "engine/data/document_reader.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/child_process.h"
#include "engine/base/files.h"
#include "engine/data/parquet.h"

namespace gpt2 {
namespace {

constexpr int kLongestWithoutCut = 16; // in pieces: text without a safe place to cut is cut anyway
constexpr size_t kNoLimit = SIZE_MAX;

enum class Format { text, json, parquet };

// Lines of a file, of standard input or of the converter, through one buffer.
class LineReader {
 public:
  LineReader(const std::string& path, Format format, const std::string& field) : path_(path), buffer_(size_t{1} << 20) {
    if (format == Format::parquet) {
      converter_ = std::make_unique<ChildProcess>(parquet_command(path, field));
      file_ = converter_->output();
      return;
    }
    file_ = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
    if (!file_) throw_system_error(ExitCode::data, "open", path, errno);
  }
  ~LineReader() {
    if (!converter_ && file_ != stdin) std::fclose(file_);
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

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
      if (newline) break;
    }
    return line.size() > before;
  }

  // To be called at the end: was that all there is?
  void check_ending() {
    if (converter_) check_parquet_ending(path_, converter_->wait());
  }

 private:
  bool refill() {
    begin_ = 0;
    end_ = std::fread(buffer_.data(), 1, buffer_.size(), file_);
    if (end_ == 0 && std::ferror(file_)) throw_system_error(ExitCode::data, "read", path_, errno);
    return end_ > 0;
  }

  std::string path_;
  std::vector<char> buffer_;
  std::unique_ptr<ChildProcess> converter_; // of a Parquet file
  std::FILE* file_;
  size_t begin_ = 0, end_ = 0;
};

std::string_view without_line_break(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

Format format_of(const std::string& path, const std::string& input_format) {
  const std::string name = input_format.empty() ? std::filesystem::path(path).extension().string() : "." + input_format;
  if (name == ".jsonl") return Format::json;
  if (name == ".txt") return Format::text;
  if (name == ".parquet" && path != "-") return Format::parquet;
  throw Error(
      ExitCode::usage, "cannot tell the format of " + path + " by its name",
      path == "-" ? "say --input_format txt or jsonl" : "unpack it to .txt, .jsonl or .parquet, or say --input_format");
}

size_t last_character(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) at--;
  return at;
}

} // namespace

struct DocumentReader::Impl {
  Options options;
  size_t input = 0; // in options.inputs
  std::unique_ptr<LineReader> reader;
  int64_t line = 0;
  int64_t document = -1; // the current one; a number is taken when its first piece is handed out
  std::string pending;   // text of the current document, not yet handed out
  bool first = true;     // nothing of it has been handed out
  bool at_line_start = true;

  Format format() const { return format_of(options.inputs[input], options.input_format); }

  // Hands out the first `length` bytes of pending text.
  void emit(DocumentPiece& piece, size_t length) {
    document += first;
    piece = {pending.substr(0, length), false, first, document, options.inputs[input], 0};
    pending.erase(0, length);
    first = false;
  }

  void next_input() {
    reader->check_ending();
    reader.reset();
    input++;
    line = 0;
    first = at_line_start = true;
  }

  bool next_line_of_json(DocumentPiece& piece) {
    std::string text;
    if (!reader->append_line(text, kNoLimit)) return false;
    line++;
    check_producer_is_well(text);
    piece = {std::move(text), true, true, document, options.inputs[input], line};
    return true;
  }

  // One more line into `pending`; true if a piece came out of it. `ended`: the file has no more.
  bool advance_text(DocumentPiece& piece, bool& ended) {
    const size_t before = pending.size();
    ended = !reader->append_line(pending, options.piece_bytes);
    const std::string_view added = std::string_view(pending).substr(before);
    const bool separator = !ended && at_line_start && without_line_break(added) == options.separator;
    if (!ended) at_line_start = added.ends_with('\n');
    if (separator) pending.resize(without_line_break({pending.data(), before}).size());
    if (ended || separator) {
      const bool some = !pending.empty();
      if (some) emit(piece, pending.size());
      first = true;
      return some;
    }
    if (pending.size() < options.piece_bytes) return false;
    size_t cut = last_safe_cut(pending);
    if (cut == 0 && pending.size() >= kLongestWithoutCut * options.piece_bytes) cut = last_character(pending);
    if (cut > 0) emit(piece, cut);
    return cut > 0;
  }
};

DocumentReader::DocumentReader(Options options) : impl_(std::make_unique<Impl>()) {
  for (const std::string& path : options.inputs) {
    format_of(path, options.input_format);
    if (path != "-") File::open(path);
  }
  impl_->options = std::move(options);
}

DocumentReader::~DocumentReader() = default;

bool DocumentReader::next(DocumentPiece& piece) {
  Impl& self = *impl_;
  while (self.input < self.options.inputs.size()) {
    if (!self.reader) {
      self.reader = std::make_unique<LineReader>(self.options.inputs[self.input], self.format(), self.options.field);
    }
    bool ended = false;
    if (self.format() != Format::text) {
      ended = !self.next_line_of_json(piece);
      if (!ended && !without_line_break(piece.text).empty()) return piece.document = ++self.document, true;
    } else {
      const bool some = self.advance_text(piece, ended);
      if (ended) self.next_input();
      if (some) return true;
      continue;
    }
    if (ended) self.next_input();
  }
  return false;
}

size_t last_safe_cut(std::string_view text) {
  for (size_t i = text.size(); i-- > 1;) {
    if (text[i] != ' ' && text[i] != '\n') continue;
    const uint8_t before = static_cast<uint8_t>(text[i - 1]);
    // No white space beyond ASCII ends in a byte of 0xB0 or more (U+0085, U+00A0, U+1680, U+2000 ... U+3000).
    if ((before > ' ' && before < 0x80) || before >= 0xB0) return i;
  }
  return 0;
}

std::string json_document(const DocumentPiece& piece, const std::string& field) {
  const auto object = nlohmann::json::parse(piece.text, nullptr, false);
  const std::string where = piece.path + ":" + std::to_string(piece.line);
  if (!object.is_object()) {
    throw Error(ExitCode::data, where + " is not a JSON object",
                "repair the line, or pass over such with --skip_bad_lines");
  }
  const auto found = object.find(field);
  if (found == object.end() || !found->is_string()) {
    throw Error(ExitCode::data, where + " has no string in a field \"" + field + "\"",
                "name the field that holds the text by --field");
  }
  return found->get<std::string>();
}

} // namespace gpt2
