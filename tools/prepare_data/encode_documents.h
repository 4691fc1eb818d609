// Documents to tokens: one thread reads in order, `threads` tasks encode batches of 4 MiB, and batches are delivered in
// the order of the input. Memory is bounded by a few batches per thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"
#include "tools/prepare_data/document_reader.h"
#include "tools/prepare_data/text_faults.h"

namespace gpt2 {

// A document, or a chunk of a long one.
struct EncodedChunk {
  int64_t number = 0, document = 0; // indices of the chunk and of its document over all inputs
  bool first = true;                // the tokens start with end-of-text
  size_t input = 0;
  int64_t text_bytes = 0;
  size_t begin = 0, end = 0; // in the batch's tokens
  TextFaults faults = {};    // of .txt
};

struct EncodedBatch {
  std::vector<uint16_t> tokens;
  std::vector<EncodedChunk> chunks; // empty ones are left out
  int64_t bad_lines = 0;            // skipped
  DocumentReader::Position after;   // where a reader resumes after this batch
  int64_t file_bytes = 0;           // of the inputs, as on the disk, read so far

  std::span<const uint16_t> tokens_of(const EncodedChunk& chunk) const {
    return std::span(tokens).subspan(chunk.begin, chunk.end - chunk.begin);
  }
};

struct EncodeOptions {
  std::string field = "text";  // of JSON lines
  bool skip_bad_lines = false; // count lines without that string instead of throwing Error(data)
  int threads = 1;
  std::function<bool()> stop = {}; // polled ten times a second; batches not yet delivered are dropped
};

// Calls `take` with each batch. True: the reader reached its end. False: `take` returned false or `stop` returned true.
bool encode_documents(const Tokenizer& tokenizer, DocumentReader& reader, const EncodeOptions& options,
                      const std::function<bool(const EncodedBatch&)>& take);

} // namespace gpt2
