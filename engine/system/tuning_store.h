// What was once found out by timing and need not be found out again: a text file of questions and answers, shared by
// all runs of a user. A lost or damaged file costs time, never a result.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <string>

namespace gpt2 {

// No field holds a tab or a line break.
struct TuningQuestion {
  std::string device;  // "NVIDIA H200"
  std::string subject; // what the answer depends on besides: a library's version, or "batch_size"
  std::string text;    // "TN_3072x65536x768_bf16_bf16_bf16_bias"
  auto operator<=>(const TuningQuestion&) const = default; // NOLINT(modernize-use-nullptr): its own expansion
};

struct TuningAnswer {
  std::string choice;
  float microseconds = 0; // of the choice; 0: it was not timed
};

using TuningNotes = std::map<TuningQuestion, TuningAnswer>;

// One line each: device, subject, question, choice, microseconds, between tabs. Other lines are passed over.
TuningNotes parse_tuning_notes(const std::string& text);
std::string to_text(const TuningNotes& notes);

class TuningStore {
 public:
  // Reads the file, if there is one. An empty path: nothing is kept beyond this object. A file that cannot be read or
  // written is a warning.
  explicit TuningStore(std::string path);

  std::optional<TuningAnswer> recall(const TuningQuestion& question) const;

  // Merges with what others have written meanwhile, and replaces the file whole; makes its folder.
  void remember(const TuningQuestion& question, const TuningAnswer& answer);

 private:
  std::string path_;
  TuningNotes notes_;
  bool unwritable_ = false; // said once
};

} // namespace gpt2
