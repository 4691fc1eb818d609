// Which files a data set is made of: paths, patterns and folders, and what each file's name says about its content.
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
  int64_t modified = 0; // nanoseconds since the epoch, for "is it still the same?"

  bool is_stdin() const { return path == "-"; }
  int64_t expected_text_bytes() const; // a guess, rather too much
};

// By its name: NAME.txt, NAME.jsonl, both also with .gz or .zst, and NAME.parquet. `input_format` ("txt", "jsonl",
// "parquet"; empty: by the name) overrides all but the compression. Throws Error(usage).
InputFile input_file(const std::string& path, const std::string& input_format);

// `words` in their order: files, "-", patterns, and folders, which stand for all such files below them, sorted by path.
// Every file is opened once. Throws Error(usage) for a name that says nothing, Error(data) for what cannot be read.
std::vector<InputFile> find_inputs(const std::vector<std::string>& words, const std::string& input_format);

bool is_text_file(const std::string& path); // has one of the names above

} // namespace gpt2
