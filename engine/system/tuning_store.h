// Cache of tuning results: a text file shared by all runs of a user. A lost or damaged file costs time, never a result.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <string>

namespace gpt2 {

// No field holds a tab or a line break.
struct TuningKey {
  std::string device;                                 // "NVIDIA H200"
  std::string subject;                                // a library's version, or "batch_size"
  std::string text;                                   // "TN_3072x65536x768_bf16_bf16_bf16_bias"
  auto operator<=>(const TuningKey&) const = default; // NOLINT(modernize-use-nullptr)
};

struct TuningEntry {
  std::string choice;
  float microseconds = 0; // of the choice; 0: not timed
};

using TuningTable = std::map<TuningKey, TuningEntry>;

// One line per entry: device, subject, text, choice, microseconds, separated by tabs. Ignores other lines.
TuningTable parse_tuning_table(const std::string& text);
std::string to_text(const TuningTable& table);

class TuningStore {
 public:
  // Reads the file if it exists. Empty path: in memory only. A file that cannot be read or written is a warning.
  explicit TuningStore(std::string path);

  std::optional<TuningEntry> recall(const TuningKey& key) const;

  // Merges with entries that other processes have written, and replaces the file atomically; creates its folder.
  void remember(const TuningKey& key, const TuningEntry& entry);

 private:
  std::string path_;
  TuningTable table_;
  bool unwritable_ = false; // warned once
};

} // namespace gpt2
