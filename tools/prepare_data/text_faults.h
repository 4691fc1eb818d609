// Checks raw text before it is encoded: encoding errors are counted per input file, CRLF line ends become LF.
#pragma once

#include <cstdint>
#include <string>

namespace gpt2 {

struct TextFaults {
  int64_t bytes = 0;                       // checked
  int64_t invalid_utf8 = 0, nul = 0;       // bytes
  int64_t utf8_marks = 0, utf16_marks = 0; // documents that start with a byte-order mark
  int64_t crlf = 0;                        // line ends changed to LF; no fault

  bool none() const { return invalid_utf8 + nul + utf8_marks + utf16_marks == 0; }
  void add(const TextFaults& other);
  bool operator==(const TextFaults&) const = default;
};

// Counts the faults of `text` and changes CRLF to LF. `first`: `text` starts a document. A cut between CR and LF would
// hide a line end: DocumentReader makes none.
TextFaults clean_text(std::string& text, bool first);

// "12 of 400 bytes (3.0%) are not valid UTF-8, ..."; empty: no fault.
std::string describe(const TextFaults& faults);
// The command that repairs the file.
std::string remedy(const TextFaults& faults, const std::string& path);

} // namespace gpt2
