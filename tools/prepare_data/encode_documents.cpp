#include "tools/prepare_data/encode_documents.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <future>
#include <new>

#include "engine/base/error.h"
#include "engine/system/stopped.h"

namespace gpt2 {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(100);
constexpr size_t kBatchBytes = size_t{4} << 20; // one task: tens of milliseconds

struct Batch {
  std::vector<DocumentChunk> chunks;
  DocumentReader::Position after;
  int64_t file_bytes = 0;
};

Batch read_batch(DocumentReader& reader) {
  Batch batch;
  size_t bytes = 0;
  for (DocumentChunk chunk; bytes < kBatchBytes && reader.next(chunk);) {
    bytes += chunk.text.size();
    batch.chunks.push_back(std::move(chunk));
  }
  batch.after = reader.position();
  batch.file_bytes = reader.bytes_read();
  return batch;
}

EncodedBatch encode_batch(const Tokenizer& tokenizer, const EncodeOptions& options, Batch batch,
                          const std::atomic<bool>& stop) {
  EncodedBatch encoded;
  encoded.after = batch.after;
  encoded.file_bytes = batch.file_bytes;
  for (DocumentChunk& chunk : batch.chunks) {
    if (chunk.json) {
      try {
        chunk.text = json_document(chunk, options.field);
      } catch (const Error&) {
        if (!options.skip_bad_lines) throw;
        encoded.bad_lines++;
        continue;
      }
    }
    if (chunk.text.empty()) continue;
    const TextFaults faults = chunk.json ? TextFaults{} : clean_text(chunk.text, chunk.first);
    const size_t begin = encoded.tokens.size();
    if (chunk.first) encoded.tokens.push_back(Tokenizer::kEndOfText);
    try {
      tokenizer.encode(chunk.text, encoded.tokens, &stop);
    } catch (const std::bad_alloc&) {
      throw Error(ExitCode::device, "out of memory while encoding " + chunk.where(), "give fewer --threads");
    }
    encoded.chunks.push_back({chunk.number, chunk.document, chunk.first, chunk.input,
                              static_cast<int64_t>(chunk.text.size()), begin, encoded.tokens.size(), faults});
  }
  return encoded;
}

} // namespace

bool encode_documents(const Tokenizer& tokenizer, DocumentReader& reader, const EncodeOptions& options,
                      const std::function<bool(const EncodedBatch&)>& take) {
  struct StopAll { // on every exit: a future's destructor waits for its thread
    std::atomic<bool>& stop;
    ~StopAll() { stop = true; }
  };
  std::atomic<bool> stop = false;
  std::deque<std::future<EncodedBatch>> in_flight; // at most options.threads
  const StopAll stop_all{stop};
  const auto take_oldest = [&] {
    while (in_flight.front().wait_for(kPollInterval) != std::future_status::ready)
      if (options.stop && options.stop()) return false;
    const EncodedBatch encoded = in_flight.front().get();
    in_flight.pop_front();
    return take(encoded);
  };
  try {
    for (Batch batch = read_batch(reader); !batch.chunks.empty(); batch = read_batch(reader)) {
      if (in_flight.size() == static_cast<size_t>(options.threads) && !take_oldest()) return false;
      in_flight.push_back(std::async(std::launch::async, encode_batch, std::cref(tokenizer), std::cref(options),
                                     std::move(batch), std::cref(stop)));
    }
    while (!in_flight.empty())
      if (!take_oldest()) return false;
  } catch (const Stopped&) { // thrown by the reader
    return false;
  }
  return true;
}

} // namespace gpt2
