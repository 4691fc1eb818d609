#include "engine/data/tokenize_files.h"

#include <cmath>
#include <deque>
#include <filesystem>
#include <future>

#include "engine/base/files.h"
#include "engine/data/shard_writer.h"

namespace gpt2 {
namespace fs = std::filesystem;
namespace {

constexpr size_t kBatchBytes = size_t{4} << 20; // read, then encoded as one task: tens of milliseconds

using Batch = std::vector<DocumentPiece>;

struct EncodedBatch {
  std::vector<uint16_t> train, val;
  int64_t documents = 0, bytes = 0, bad_lines = 0;
};

// Spreads floor(n * fraction) of the first n documents evenly, for every n.
bool is_validation(int64_t document, double fraction) {
  return std::floor(static_cast<double>(document + 1) * fraction) >
         std::floor(static_cast<double>(document) * fraction);
}

Batch read_batch(DocumentReader& reader) {
  Batch batch;
  size_t bytes = 0;
  for (DocumentPiece piece; bytes < kBatchBytes && reader.next(piece);) {
    bytes += piece.text.size();
    batch.push_back(std::move(piece));
  }
  return batch;
}

EncodedBatch encode_batch(const Tokenizer& tokenizer, const TokenizeOptions& options, Batch batch) {
  EncodedBatch encoded;
  for (DocumentPiece& piece : batch) {
    if (piece.json) {
      try {
        piece.text = json_document(piece, options.documents.field);
      } catch (const Error&) {
        if (!options.skip_bad_lines) throw;
        encoded.bad_lines++;
        continue;
      }
    }
    if (piece.text.empty()) continue;
    auto& tokens = is_validation(piece.document, options.val_fraction) ? encoded.val : encoded.train;
    if (piece.first) tokens.push_back(Tokenizer::kEndOfText);
    tokenizer.encode(piece.text, tokens);
    encoded.documents += piece.first;
    encoded.bytes += static_cast<int64_t>(piece.text.size());
  }
  return encoded;
}

void refuse_file_name(const std::string& output) {
  const std::string extension = fs::path(output).extension().string();
  if (extension == ".bin" || extension == ".h5") {
    throw Error(ExitCode::usage, "--output " + output + " names a file, but a folder is wanted",
                "say --output " + fs::path(output).replace_extension().string() + " --format " + extension.substr(1));
  }
}

void remove_shards(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::remove(path, error) && error) throw_system_error(ExitCode::disk, "remove", path, error.value());
  }
}

void make_way(const std::string& prefix, const std::string& extension, bool overwrite) {
  const auto existing = existing_shards(prefix, extension);
  if (!existing.empty() && !overwrite) {
    throw Error(ExitCode::usage, existing.front() + " exists already",
                "choose another --output, or remove old shards with --overwrite");
  }
  remove_shards(existing);
}

std::string sources(const std::vector<std::string>& inputs) {
  std::string names = fs::path(inputs.front()).filename().string();
  return inputs.size() == 1 ? names : names + " and " + std::to_string(inputs.size() - 1) + " more";
}

// Encodes all documents into two series; returns when both are on the disk.
TokenizeReport write_shards(const Tokenizer& tokenizer, const TokenizeOptions& options, DocumentReader& reader,
                            ShardWriter& train, ShardWriter& val,
                            const std::function<void(const TokenizeReport&)>& progress) {
  TokenizeReport report;
  auto write = [&](const EncodedBatch& encoded) {
    train.append(encoded.train);
    val.append(encoded.val);
    report.documents += encoded.documents;
    report.bytes += encoded.bytes;
    report.bad_lines += encoded.bad_lines;
    report.train_tokens = train.tokens();
    report.val_tokens = val.tokens();
    if (progress) progress(report);
  };

  // As many batches in flight as threads; a future that is dropped by an exception waits for its thread.
  std::deque<std::future<EncodedBatch>> in_flight;
  auto write_oldest = [&] {
    write(in_flight.front().get());
    in_flight.pop_front();
  };
  for (Batch batch = read_batch(reader); !batch.empty(); batch = read_batch(reader)) {
    if (in_flight.size() == static_cast<size_t>(options.threads)) write_oldest();
    in_flight.push_back(
        std::async(std::launch::async, encode_batch, std::cref(tokenizer), std::cref(options), std::move(batch)));
  }
  while (!in_flight.empty()) write_oldest();
  if (train.tokens() + val.tokens() == 0) {
    throw Error(ExitCode::data, "no text in " + sources(options.documents.inputs), "check the inputs and --separator");
  }
  train.finish();
  val.finish();
  report.shards = train.paths();
  report.shards.insert(report.shards.end(), val.paths().begin(), val.paths().end());
  return report;
}

} // namespace

TokenizeReport tokenize_files(const Tokenizer& tokenizer, const TokenizeOptions& options,
                              const std::function<void(const TokenizeReport&)>& progress) {
  DocumentReader reader(options.documents);
  refuse_file_name(options.output);
  make_folders(options.output);
  const std::string train_prefix = fs::path(options.output) / "train", val_prefix = fs::path(options.output) / "val";
  // Both, even if only one is written: training shards beside another text's validation shards would look like a pair.
  make_way(train_prefix, options.format, options.overwrite);
  make_way(val_prefix, options.format, options.overwrite);

  const ShardMetadata metadata{sources(options.documents.inputs), "gpt2"};
  ShardWriter train(train_prefix, options.format, options.shard_tokens, metadata);
  ShardWriter val(val_prefix, options.format, options.shard_tokens, metadata);
  try {
    return write_shards(tokenizer, options, reader, train, val, progress);
  } catch (...) {
    remove_shards(train.paths());
    remove_shards(val.paths());
    throw;
  }
}

} // namespace gpt2
