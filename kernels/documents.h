// Documents inside packed sequences. A document begins at its separator token; the tokens before the first separator of
// a sequence belong to a document that began earlier.
#pragma once

#include "kernels/backend.h"

namespace gpt2 {

// For attention within documents: the query at position t sees the keys begin[t] .. t of its sequence.
struct DocumentBounds {
  const int32_t* begin = nullptr; // (B, T) first position of the token's document; null: no mask
  const int32_t* end = nullptr;   // (B, T) one past its last position

  explicit operator bool() const { return begin != nullptr; }
};

constexpr int32_t kNoSeparator = -1; // every sequence is one document

struct FindDocuments {
  int32_t *begin, *end;  // (B, T)
  int32_t* positions;    // (B, T) position within the document; may be null
  const int32_t* tokens; // (B, T)
  int B, T;
  int32_t separator;
};
void find_documents(Cpu&, const FindDocuments&);
void find_documents(CudaStream&, const FindDocuments&);

} // namespace gpt2
