// Lines of a metrics.jsonl (docs/metrics.md), written by hand.
#pragma once

#include <string>

#include "engine/base/formatted.h"

namespace gpt2 {

inline std::string line(const std::string& type, int step, double seconds, const std::string& more) {
  return "{\"type\":\"" + type + "\",\"step\":" + std::to_string(step) +
         formatted(",\"timestamp\":\"2026-11-15T11:42:18.125Z\",\"seconds\":%g,", seconds) + more + "}\n";
}

inline std::string run_line(const std::string& event = "start", int step = 0, int max_steps = 100) {
  return line("run", step, 0,
              "\"event\":\"" + event +
                  "\",\"run_name\":\"one\",\"host\":\"here\",\"device\":\"CPU\",\"precision\":\"FP32\"," +
                  "\"parameters\":1000,\"max_steps\":" + std::to_string(max_steps) +
                  ",\"tokens_per_step\":256,\"options\":{\"seed\":7,\"max_lr\":0.001,\"max_skipped\":3,\"grad_clip\":1."
                  "0,\"of_old\":1}");
}

inline std::string step_line(int step, double seconds, const std::string& loss,
                             const std::string& verdict = "applied") {
  return line("step", step, seconds,
              "\"loss\":" + loss +
                  formatted(",\"lr\":0.001,\"grad_norm\":1.5,\"tokens_per_sec\":1000,\"tokens\":%d,", 256 * step) +
                  "\"verdict\":\"" + verdict + "\"");
}

} // namespace gpt2
