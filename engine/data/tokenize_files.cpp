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
        piece.text = json_document(piece, options.field);
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

struct Output {
  std::string prefix, extension;
};

Output output_of(const TokenizeOptions& options) {
  const fs::path path(options.output);
  const std::string extension = path.extension().string();
  const bool named = extension == ".bin" || extension == ".h5";
  if (named && !options.format.empty() && extension != "." + options.format) {
    throw Error(ExitCode::usage, "--output " + options.output + " and --format " + options.format + " disagree",
                "leave out one of them");
  }
  if (named) return {(path.parent_path() / path.stem()).string(), extension.substr(1)};
  return {options.output, options.format.empty() ? "bin" : options.format};
}

void make_way(const std::string& prefix, const std::string& extension, bool overwrite) {
  const auto existing = existing_shards(prefix, extension);
  if (!existing.empty() && !overwrite) {
    throw Error(ExitCode::usage, existing.front() + " exists already",
                "choose another --output, or remove old shards with --overwrite");
  }
  for (const std::string& path : existing) {
    std::error_code error;
    if (!fs::remove(path, error) && error) throw_system_error(ExitCode::disk, "remove", path, error.value());
  }
}

std::string sources(const std::vector<std::string>& inputs) {
  std::string names = fs::path(inputs.front()).filename().string();
  return inputs.size() == 1 ? names : names + " and " + std::to_string(inputs.size() - 1) + " more";
}

} // namespace

TokenizeReport tokenize_files(const Tokenizer& tokenizer, const TokenizeOptions& options,
                              const std::function<void(const TokenizeReport&)>& progress) {
  DocumentReader reader(options.documents);
  const Output output = output_of(options);
  const bool split = options.val_fraction > 0;
  const std::string train_prefix = output.prefix + (split ? "_train" : ""), val_prefix = output.prefix + "_val";
  if (const fs::path folder = fs::path(output.prefix).parent_path(); !folder.empty()) make_folders(folder.string());
  make_way(train_prefix, output.extension, options.overwrite);
  if (split) make_way(val_prefix, output.extension, options.overwrite);

  const ShardMetadata metadata{sources(options.documents.inputs), "gpt2"};
  ShardWriter train(train_prefix, output.extension, options.shard_tokens, metadata);
  ShardWriter val(val_prefix, output.extension, options.shard_tokens, metadata);
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

} // namespace gpt2
