// Speed of the tokenizer on one core: bench_tokenizer [FILE...]. Without files: generated stories.
// Prints a line per text: name, bytes, tokens, MB/s with an empty cache (a new tokenizer, one pass), MB/s once warm
// (best of several passes). bench_tokenizer.py puts tiktoken beside it.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/system/files.h"
#include "engine/system/program.h"
#include "engine/text/tokenizer.h"
#include "tests/sample_stories.h"

namespace {

using namespace gpt2;

struct Text {
  std::string name;
  std::vector<std::string> documents;
};

Text load(const std::string& path) {
  Text text{std::filesystem::path(path).filename().string(), {}};
  const std::string bytes = read_text_file(path);
  if (!path.ends_with(".jsonl")) {
    text.documents.push_back(bytes);
    return text;
  }
  std::istringstream lines(bytes);
  for (std::string line; std::getline(lines, line);) text.documents.push_back(nlohmann::json::parse(line).at("text"));
  return text;
}

Text generate() { return {"sample stories", testing::sample_stories(1, 5000)}; }

double seconds_to_encode(const Tokenizer& tokenizer, const Text& text, std::vector<uint16_t>& tokens) {
  tokens.clear();
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& document : text.documents) tokenizer.encode(document, tokens);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void measure(const std::string& folder, const Text& text) {
  size_t bytes = 0;
  for (const std::string& document : text.documents) bytes += document.size();
  const Tokenizer tokenizer(folder);
  std::vector<uint16_t> tokens;
  const double cold = seconds_to_encode(tokenizer, text, tokens);
  double warm = cold;
  for (int pass = 0; pass < 7; pass++) warm = std::min(warm, seconds_to_encode(tokenizer, text, tokens));
  std::cout << text.name << "\t" << bytes << "\t" << tokens.size() << "\t" << static_cast<double>(bytes) / cold / 1e6
            << "\t" << static_cast<double>(bytes) / warm / 1e6 << "\n";
}

} // namespace

int main(int argc, char** argv) {
  return run_program([&] {
    const std::string folder = Tokenizer::find_folder("");
    if (folder.empty()) throw Error(ExitCode::data, "no tokenizer tables", "run tools/install_deps.sh");
    for (int i = 1; i < argc; i++) measure(folder, load(argv[i]));
    if (argc < 2) measure(folder, generate());
    return ExitCode::done;
  });
}
