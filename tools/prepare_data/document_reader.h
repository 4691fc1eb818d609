// Documents from text files, streamed in pieces of bounded size, so that a file of any length fits in memory.
//   .txt    one document, or several with a line that is the separator between them
//   .jsonl  one JSON object a line; the document is one of its fields
//   .parquet  the same, one of its columns: tools/parquet_to_jsonl.py prints it as JSON lines
// Where it stands can be written down, and another reader of the same files goes on from there with the same pieces.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tools/prepare_data/input_files.h"

namespace gpt2 {

constexpr size_t kLongestLine = size_t{256} << 20; // bytes of JSON, as JsonLimits has it

struct DocumentPiece {
  std::string text;      // of .jsonl: the whole line, still JSON
  bool json = false;     // `text` is such a line: parsed by whoever takes it, on a thread of its own
  bool too_long = false; // the line has more than line_bytes: `text` is empty
  bool first = true;     // the document starts here
  int64_t document = 0;  // number over all inputs, from 0
  std::string path;      // and line, for messages
  int64_t line = 0;      // of .jsonl, from 1

  std::string where() const { return json ? path + ":" + std::to_string(line) : path; }

  size_t input = 0;   // which of the inputs it is from
  int64_t number = 0; // of the piece, over all inputs, from 0
};

class DocumentReader {
 public:
  struct Options {
    std::vector<std::string> inputs; // files, patterns and folders; "-" is standard input
    std::string input_format;        // "txt", "jsonl" or "parquet"; empty: by extension
    std::string separator = "<|endoftext|>";
    std::string field = "text";           // of .jsonl and .parquet: what holds the document
    int parquet_readers = 1;              // processes that read one .parquet file
    size_t piece_bytes = size_t{4} << 20; // longer .txt documents are cut where the tokens stay the same
    size_t line_bytes = kLongestLine;     // of .jsonl: the longest line; longer ones are passed over, piece by piece
    std::function<bool()> stop = {};      // asked now and then: next() throws Stopped
  };
  // Throws Error(usage) for an extension that is none of these, Error(data) for a file that cannot be opened: before
  // any reading.
  explicit DocumentReader(Options options);
  ~DocumentReader();

  // False at the end of the last input. Empty documents are passed over. Throws Error(data) naming the file; an input
  // whose producer failed on the way is one, however many documents came before.
  bool next(DocumentPiece& piece);

  struct Position {
    size_t input = 0;    // the file being read
    int64_t offset = 0;  // of the next byte in it, decompressed
    int64_t pending = 0; // bytes before `offset` that no piece holds yet
    int64_t line = 0, documents = 0, pieces = 0;
    bool first = true, at_line_start = true; // of a document, of a line

    bool operator==(const Position&) const = default;
  };
  Position position() const;        // after the last piece
  void go_to(const Position& from); // before the first

  const std::vector<InputFile>& inputs() const;
  int64_t bytes_read() const; // of the files on the disk, all of them together

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The last place in `text`, at `first` or behind it and not its start, where cutting it leaves the tokens unchanged; 0
// if there is none. Such is a space or line break after anything but white space: GPT-2's pattern always starts a piece
// there.
size_t last_safe_cut(std::string_view text, size_t first = 1);

// The string in a field of a JSON object. Throws Error(data) if the line is too long, is not JSON or has no such
// string.
std::string json_document(const DocumentPiece& piece, const std::string& field);

} // namespace gpt2
