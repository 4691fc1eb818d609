// Streams the documents of text files in chunks of bounded size; memory does not grow with the file.
//   .txt      one document, or several with a separator line between them
//   .jsonl    one JSON object per line; the document is one of its fields
//   .parquet  one column, which tools/parquet_to_jsonl.py prints as JSON lines
// A reader of the same files resumes at a saved Position and yields the same chunks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tools/prepare_data/input_files.h"

namespace gpt2 {

constexpr size_t kLongestLine = size_t{256} << 20; // bytes; equals JsonLimits::bytes

struct DocumentChunk {
  std::string text;      // of .jsonl: the whole line, unparsed
  bool json = false;     // `text` is a JSON line: encoding threads parse it (json_document)
  bool too_long = false; // the line exceeds line_bytes: `text` is empty
  bool first = true;     // starts a document
  int64_t document = 0;  // index over all inputs
  std::string path;      // for messages
  int64_t line = 0;      // of .jsonl, from 1

  std::string where() const { return json ? path + ":" + std::to_string(line) : path; }

  size_t input = 0;   // index of the input
  int64_t number = 0; // index of the chunk over all inputs
};

class DocumentReader {
 public:
  struct Options {
    std::vector<std::string> inputs; // files, patterns and folders; "-" is standard input
    std::string input_format;        // "txt", "jsonl" or "parquet"; empty: by extension
    std::string separator = "<|endoftext|>";
    std::string field = "text";           // of .jsonl and .parquet
    int parquet_readers = 1;              // processes per .parquet file
    size_t chunk_bytes = size_t{4} << 20; // longer .txt documents are split where this keeps the tokens
    size_t line_bytes = kLongestLine;     // of .jsonl: longer lines are skipped
    std::function<bool()> stop = {};      // polled: next() throws Stopped
  };
  // Throws Error(usage) for an unknown extension, Error(data) for a file that cannot be opened.
  explicit DocumentReader(Options options);
  ~DocumentReader();

  // False at the end of the last input. Skips empty documents. Throws Error(data) with the file's name, also if the
  // input's converter process failed after some documents.
  bool next(DocumentChunk& chunk);

  struct Position {
    size_t input = 0;    // the file being read
    int64_t offset = 0;  // of the next byte in it, decompressed
    int64_t pending = 0; // bytes before `offset` not yet in a chunk
    int64_t line = 0, documents = 0, chunks = 0;
    bool first = true, at_line_start = true; // at the start of a document, of a line

    bool operator==(const Position&) const = default;
  };
  Position position() const;        // after the last chunk
  void go_to(const Position& from); // before the first

  const std::vector<InputFile>& inputs() const;
  int64_t bytes_read() const; // of all files, as on the disk

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The last offset >= max(1, first) at which splitting `text` keeps its tokens, or 0: a space or line break after a
// character that is not white space. GPT-2's pattern always starts a new match there.
size_t last_safe_cut(std::string_view text, size_t first = 1);

// The string in `field` of the chunk's JSON object. Throws Error(data).
std::string json_document(const DocumentChunk& chunk, const std::string& field);

} // namespace gpt2
