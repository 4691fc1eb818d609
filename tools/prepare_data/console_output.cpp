#include "tools/prepare_data/console_output.h"

#include <algorithm>
#include <filesystem>

#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/base/shell_quote.h"

namespace gpt2 {
namespace {

constexpr double kSecondsBetweenLines = 30; // without a terminal
constexpr int kMostFaultLines = 10;

std::string size_text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

// Few documents: none is a validation document.
void print_validation_note(const PrepareOptions& options, const PrepareReport& report, int64_t documents,
                           Console& console) {
  const std::string few = counted(documents, "document") + (documents == 1 ? " is" : " are") + " too few for " +
                          formatted("--val_fraction %g", options.val_fraction);
  if (report.val_is_tail)
    console.line("note: " + few + ": the last " + counted(report.manifest.val_tokens, "token") +
                 " of the set are the validation set");
  else if (options.val_fraction > 0 && report.manifest.val_tokens == 0)
    log_warn("no validation set: " + few +
             " (give a larger one, or split the text into more documents: --separator \"\" splits at blank lines)");
  else if (report.manifest.val_tokens > 0 && report.manifest.val_tokens < kLeastValidation)
    log_warn("the validation set has only " + counted(report.manifest.val_tokens, "token") +
             concat(", and a sequence of GPT-2 needs ", kLeastValidation,
                    ", one of nano 257 (give a larger --val_fraction)"));
}

// One line per file, kMostFaultLines of each kind.
void print_faults(const PrepareReport& report, Console& console) {
  int faulty = 0, changed = 0;
  for (size_t i = 0; i < report.faults.size(); ++i) {
    const TextFaults& faults = report.faults[i];
    const std::string& path = report.manifest.sources[i].path;
    if (!faults.none() && ++faulty <= kMostFaultLines)
      log_warn(path + ": " + describe(faults) + " (" + remedy(faults, path) + ")");
    if (faults.crlf > 0 && ++changed <= kMostFaultLines)
      console.line("note: " + path + ": " + counted(faults.crlf, "line end") + " changed from CRLF to LF");
  }
  if (faulty > kMostFaultLines) log_warn(counted(faulty - kMostFaultLines, "more file") + " with such bytes");
  if (changed > kMostFaultLines)
    console.line("note: line ends changed in " + counted(changed - kMostFaultLines, "more file"));
}

} // namespace

void Display::show(const std::string& stage, int64_t done, int64_t total, int64_t bytes, const std::string& note) {
  if (stage != stage_) {
    stage_ = stage;
    watch_ = {};
    first_ = done;
    first_bytes_ = bytes;
    printed_ = 0;
  }
  const double seconds = watch_.seconds();
  const double share = total > 0 ? std::min(1.0, static_cast<double>(done) / static_cast<double>(total)) : 0;
  std::vector<std::string> notes = {stage, size_text(bytes)};
  if (seconds > 0.5) notes.push_back(format_bytes(static_cast<double>(bytes - first_bytes_) / seconds) + "/s");
  if (seconds > 1 && total > 0 && done > first_)
    notes.push_back("eta " +
                    format_duration(seconds * static_cast<double>(total - done) / static_cast<double>(done - first_)));
  if (!note.empty()) notes.push_back(note);
  if (console_.is_terminal()) return console_.progress(share, notes);
  if (seconds - printed_ < kSecondsBetweenLines) return;
  printed_ = seconds;
  std::string line = total > 0 ? std::to_string(static_cast<int>(100 * share)) + "%" : "so far";
  for (const std::string& each : notes) line += " | " + each;
  console_.line(line);
}

void print_summary(const PrepareOptions& options, const PrepareReport& report, double seconds, int64_t encoded,
                   const std::string& data_dir, Console& console) {
  const DatasetManifest& made = report.manifest;
  int64_t text = 0, documents = 0;
  for (const SourceEntry& source : made.sources) text += source.text_bytes, documents += source.documents;
  for (const ShardEntry& shard : made.shards)
    console.line(options.output + "/" + shard.name + ": " + std::to_string(shard.tokens) + " tokens");
  console.line(counted(made.documents, "document") + " of " +
               counted(static_cast<int64_t>(made.sources.size()), "file") + ", " + size_text(text) +
               " of text: " + std::to_string(made.train_tokens) + " tokens for training, " +
               std::to_string(made.val_tokens) + " for validation");
  if (made.duplicates > 0) console.line(counted(made.duplicates, "duplicate") + " left out");
  if (encoded > 0)
    console.line("done in " + format_duration(seconds) + ", " +
                 format_bytes(static_cast<double>(encoded) / std::max(seconds, 1e-3)) + "/s on " +
                 counted(options.threads, "thread"));
  if (made.bad_lines > 0) log_warn(counted(made.bad_lines, "bad line") + " skipped");
  print_faults(report, console);
  print_validation_note(options, report, documents, console);
  console.line(
      "train on it: ./train_gpt2_fp8 " +
      (std::filesystem::path(data_dir) / made.name == std::filesystem::path(options.output)
           ? "--dataset " + shell_quote(made.name) + (data_dir == "data" ? "" : " --data_dir " + shell_quote(data_dir))
           : "--train_data " + shell_quote(options.output + "/train_*." + options.format) +
                 (made.val_tokens > 0 ? " --val_data " + shell_quote(options.output + "/val_*." + options.format)
                                      : "")));
}

} // namespace gpt2
