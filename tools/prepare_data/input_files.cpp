#include "tools/prepare_data/input_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "engine/data/shard.h"
#include "engine/system/files.h"

namespace gpt2 {
namespace fs = std::filesystem;
namespace {

std::optional<TextFormat> format_named(const std::string& name) {
  if (name == "txt") return TextFormat::text;
  if (name == "jsonl") return TextFormat::json;
  if (name == "parquet") return TextFormat::parquet;
  return std::nullopt;
}

std::optional<InputFile> by_name(const std::string& path, const std::string& input_format) {
  InputFile file{.path = path};
  fs::path name = path;
  if (name.extension() == ".gz") file.compression = Compression::gzip;
  if (name.extension() == ".zst") file.compression = Compression::zstd;
  if (file.compression != Compression::none) name = name.stem();
  const std::string ending = name.extension().string();
  const auto format = format_named(!input_format.empty() ? input_format : ending.empty() ? "" : ending.substr(1));
  if (!format) return std::nullopt;
  file.format = *format;
  if (file.format == TextFormat::parquet && (file.is_stdin() || file.compression != Compression::none))
    return std::nullopt; // Parquet compresses its own pages and is read from its end
  return file;
}

void examine(InputFile& file) {
  if (file.is_stdin()) return;
  file.bytes = File::open(file.path).size();
  struct stat status {};
  if (::stat(file.path.c_str(), &status) != 0) throw_system_error(ExitCode::data, "examine", file.path, errno);
  file.modified = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (auto entry = fs::recursive_directory_iterator(folder, error); !error && entry != fs::end(entry);
       entry.increment(error)) {
    std::error_code ignored;
    if (entry->path().filename().string().starts_with('.')) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file(ignored) && is_text_file(entry->path().string())) {
      paths.push_back(entry->path().string());
    }
  }
  if (error) throw_system_error(ExitCode::data, "read", folder, error.value());
  if (paths.empty()) {
    throw Error(ExitCode::data, "the folder " + folder + " holds no .txt, .jsonl or .parquet file",
                "check the path; .gz and .zst may follow .txt and .jsonl");
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<std::string> expand(const std::string& word) {
  std::error_code ignored;
  if (fs::is_directory(word, ignored)) return files_below(word);
  const bool pattern = word.find_first_of("*?[") != std::string::npos && !fs::exists(word, ignored);
  return pattern ? expand_globs(word) : std::vector<std::string>{word};
}

} // namespace

int64_t InputFile::expected_text_bytes() const {
  if (compression != Compression::none) return 4 * bytes;   // English text: gzip 2.5, zstd 3
  return format == TextFormat::parquet ? 2 * bytes : bytes; // FineWeb-Edu: 1.6
}

bool is_text_file(const std::string& path) { return by_name(path, "").has_value(); }

InputFile input_file(const std::string& path, const std::string& input_format) {
  if (const auto file = by_name(path, input_format)) return *file;
  throw Error(ExitCode::usage, "the name of " + path + " does not give its format",
              path == "-" ? "give --input_format txt or jsonl"
                          : "use .txt, .jsonl (also with .gz or .zst) or .parquet, or give --input_format");
}

std::vector<InputFile> find_inputs(const std::vector<std::string>& words, const std::string& input_format) {
  std::vector<InputFile> files;
  for (const std::string& word : words) {
    for (const std::string& path : expand(word)) files.push_back(input_file(path, input_format));
  }
  for (InputFile& file : files) examine(file);
  return files;
}

} // namespace gpt2
