// What bin/prepare_data prints: its progress, and a summary at the end.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/stopwatch.h"
#include "engine/logging/console.h"
#include "tools/prepare_data/prepare_data.h"

namespace gpt2 {

// A progress bar on a terminal; otherwise a line every half minute.
class Display {
 public:
  explicit Display(Console& console) : console_(console) {}

  // `bytes` determines the speed, `done` of `total` the share.
  void show(const std::string& stage, int64_t done, int64_t total, int64_t bytes, const std::string& note = "");
  void clear() { console_.clear_progress(); }

 private:
  Console& console_;
  std::string stage_;
  Stopwatch watch_;
  int64_t first_ = 0, first_bytes_ = 0; // at the start of the stage
  double printed_ = 0;                  // seconds into the stage
};

// `encoded`: bytes of text by this process, in `seconds`. `data_dir`: where the trainer's --dataset finds the shards.
void print_summary(const PrepareOptions& options, const PrepareReport& report, double seconds, int64_t encoded,
                   const std::string& data_dir, Console& console);

} // namespace gpt2
