// Finds the input files of a data set (paths, patterns, folders) and their format and compression by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpt2 {

enum class TextFormat { text, json, parquet };
enum class Compression { none, gzip, zstd };

struct InputFile {
  std::string path; // "-": standard input
  TextFormat format = TextFormat::text;
  Compression compression = Compression::none;
  int64_t bytes = 0;    // on the disk; 0 for standard input
  int64_t modified = 0; // nanoseconds since the epoch; a resumed run compares it

  bool is_stdin() const { return path == "-"; }
  int64_t expected_text_bytes() const; // an estimate, rather too high
};

// By its name: NAME.txt, NAME.jsonl, both also with .gz or .zst, and NAME.parquet. `input_format` ("txt", "jsonl",
// "parquet"; empty: by the name) overrides all but the compression. Throws Error(usage).
InputFile input_file(const std::string& path, const std::string& input_format);

// `words` in their order: files, "-", patterns and folders (all text files below, sorted by path). Opens every file
// once. Throws Error(usage) for an unknown extension, Error(data) for a file that cannot be read.
std::vector<InputFile> find_inputs(const std::vector<std::string>& words, const std::string& input_format);

bool is_text_file(const std::string& path); // has one of these extensions

} // namespace gpt2
