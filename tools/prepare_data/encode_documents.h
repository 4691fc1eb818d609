// Documents to tokens on many threads: read in order, encoded in batches, handed out in the order of the input. Memory
// is bounded by a few megabytes a thread, whatever the size of the input.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"
#include "tools/prepare_data/document_reader.h"

namespace gpt2 {

// A document, or a piece of one that is too long for memory.
struct EncodedPiece {
  int64_t number = 0, document = 0; // of the piece and of its document, over all inputs
  bool first = true;                // its tokens start with end-of-text
  size_t input = 0;
  int64_t text_bytes = 0;
  size_t begin = 0, end = 0; // in the batch's tokens
};

struct EncodedBatch {
  std::vector<uint16_t> tokens;
  std::vector<EncodedPiece> pieces; // without those that hold no text
  int64_t bad_lines = 0;            // passed over
  DocumentReader::Position after;   // where a reader goes on behind this batch
  int64_t file_bytes = 0;           // of the inputs on the disk, read so far

  std::span<const uint16_t> tokens_of(const EncodedPiece& piece) const {
    return std::span(tokens).subspan(piece.begin, piece.end - piece.begin);
  }
};

struct EncodeOptions {
  std::string field = "text";  // of JSON lines
  bool skip_bad_lines = false; // without such a string in it: count them instead of throwing Error(data)
  int threads = 1;
  std::function<bool()> stop = {}; // asked several times a second; what is not taken by then is dropped
};

// Calls `take` with one batch after the other until the reader ends: true. False: `take` returned false, or `stop` said
// so, to us or to the reader.
bool encode_documents(const Tokenizer& tokenizer, DocumentReader& reader, const EncodeOptions& options,
                      const std::function<bool(const EncodedBatch&)>& take);

} // namespace gpt2
