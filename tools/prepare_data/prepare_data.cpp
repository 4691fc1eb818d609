#include "tools/prepare_data/prepare_data.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "engine/base/rng.h"
#include "engine/data/dataset_folder.h"
#include "engine/system/content_hash.h"
#include "engine/system/files.h"
#include "tools/common/output_kinds.h"
#include "tools/prepare_data/bucket_files.h"
#include "tools/prepare_data/encode_documents.h"
#include "tools/prepare_data/journal.h"
#include "tools/prepare_data/shard_series.h"

namespace gpt2 {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int64_t kBucketsOfStdin = 64;         // its length is unknown
constexpr size_t kTokensPerPoll = 1 << 18;      // of hooks.stop: milliseconds
constexpr uint64_t kOrderStream = 0x6f72646572; // random stream: "order"

constexpr int64_t kTailsInLeastSet = 10;

// Tokens to cut off the end of a set without a validation document; 0: the set is too small.
int64_t tail_tokens(int64_t tokens, double fraction) {
  const auto tail = static_cast<int64_t>(static_cast<double>(tokens) * fraction);
  if (tail >= kLeastValidation) return tail;
  return tokens >= kTailsInLeastSet * kLeastValidation ? kLeastValidation : 0;
}

// Selects floor(n * fraction) of the first n documents, evenly spaced, for every n.
bool is_validation(int64_t document, double fraction) {
  return std::floor(static_cast<double>(document + 1) * fraction) >
         std::floor(static_cast<double>(document) * fraction);
}

// The chunk is not a whole document.
bool is_part(const EncodedBatch& batch, size_t i) {
  const bool ends = i + 1 < batch.chunks.size() ? batch.chunks[i + 1].first : batch.after.first;
  return !batch.chunks[i].first || !ends;
}

void refuse_file_name(const std::string& output) {
  const std::string extension = fs::path(output).extension().string();
  if (extension == ".bin" || extension == ".h5") {
    throw Error(ExitCode::usage, "--output " + output + " names a file, not a folder",
                "give --output " + fs::path(output).replace_extension().string() + " --format " + extension.substr(1));
  }
}

// Of both kinds and formats: new training shards next to another text's validation shards would look like a pair.
std::vector<std::string> shards_in(const std::string& folder) {
  std::vector<std::string> found;
  for (const char* const prefix : {"train", "val"}) {
    for (const char* const extension : {"bin", "h5"}) {
      const auto shards = existing_shards(folder, prefix, extension);
      found.insert(found.end(), shards.begin(), shards.end());
    }
  }
  return found;
}

void remove_file(const std::string& path) {
  std::error_code error;
  if (!fs::remove(path, error) && error) throw_system_error(ExitCode::disk, "remove", path, error.value());
}

void move_file(const std::string& from, const std::string& to) {
  if (!renamed(from, to)) throw_system_error(ExitCode::disk, "make", to, errno);
}

void remove_folder(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw_system_error(ExitCode::disk, "remove", path, error.value());
}

std::string source_names(const std::vector<InputFile>& inputs) {
  const std::string name = fs::path(inputs.front().path).filename().string();
  return inputs.size() == 1 ? name : name + " and " + std::to_string(inputs.size() - 1) + " more";
}

// The "options" of dataset.json.
Json options_json(const PrepareOptions& o) {
  return {{"input_format", o.documents.input_format},
          {"field", o.documents.field},
          {"separator", o.documents.separator},
          {"skip_bad_lines", o.skip_bad_lines},
          {"format", o.format},
          {"shard_tokens", o.shard_tokens},
          {"val_fraction", o.val_fraction},
          {"seed", o.seed},
          {"shuffle", o.shuffle},
          {"deduplicate", o.deduplicate}};
}

// Everything that determines the result.
std::string order_of(const PrepareOptions& options, const std::string& tokenizer_hash,
                     const std::vector<InputFile>& inputs) {
  Json order = options_json(options);
  order["name"] = options.name;
  order["tokenizer"] = tokenizer_hash;
  order["inputs"] = Json::array();
  for (const InputFile& input : inputs)
    order["inputs"].push_back({{"path", input.path}, {"bytes", input.bytes}, {"modified", input.modified}});
  return order.dump(-1, ' ', false, Json::error_handler_t::replace);
}

DocumentReader::Options with_stop(DocumentReader::Options documents, const std::function<bool()>& stop) {
  documents.stop = stop;
  return documents;
}

size_t bucket_count(const std::vector<InputFile>& inputs, int64_t memory) {
  int64_t text = 0, least = 1;
  for (const InputFile& input : inputs) {
    text += input.expected_text_bytes();
    if (input.is_stdin()) least = kBucketsOfStdin;
  }
  return static_cast<size_t>(
      std::clamp(text / 2 / memory + 1, least, kMostBuckets)); // two bytes of tokens per four of text
}

class Preparation {
 public:
  Preparation(const Tokenizer& tokenizer, const PrepareOptions& options, const PrepareHooks& hooks)
      : tokenizer_(tokenizer),
        options_(options),
        hooks_(hooks),
        folder_(prepare_folder(options.output)),
        reader_(with_stop(options.documents, hooks.stop)) {}

  PrepareReport run() {
    begin();
    for (size_t i = 0; i < journal_.faults.size(); ++i) refuse_faults(i);
    try {
      if (journal_.stage == PrepareStage::encode && !encode()) return {.finished = false, .resumed = resumed_};
      if (journal_.stage == PrepareStage::shard && !shard()) return {.finished = false, .resumed = resumed_};
      const bool val_is_tail = journal_.train_limit >= 0;
      return {.resumed = resumed_, .val_is_tail = val_is_tail, .faults = journal_.faults, .manifest = publish()};
    } catch (...) {
      std::error_code ignored;
      if (!is_being_prepared(options_.output)) fs::remove_all(folder_, ignored); // no journal to resume from
      throw;
    }
  }

 private:
  // Loads the journal of an earlier run with the same order, or starts a new one.
  void begin() {
    refuse_file_name(options_.output);
    if (options_.deduplicate && !options_.shuffle)
      throw Error(ExitCode::usage, "--deduplicate reorders documents, --no-shuffle keeps their order",
                  "give one of the two");
    const auto& inputs = reader_.inputs();
    const std::string order = order_of(options_, tokenizer_.hash(), inputs);
    if (!options_.overwrite) {
      find_earlier(order);
      if (!journal_.overwrite && journal_.stage != PrepareStage::publish) refuse_existing();
      if (resumed_) return;
    }
    refuse_foreign_folder();
    remove_folder(folder_);
    make_folders(folder_);
    journal_.order = order;
    journal_.overwrite = options_.overwrite;
    journal_.slice_bytes = options_.memory;
    journal_.bucket_bytes.resize(options_.shuffle ? bucket_count(inputs, options_.memory) : 1);
    for (const InputFile& input : inputs) journal_.sources.push_back({.path = input.path, .bytes = input.bytes});
    journal_.faults.resize(inputs.size());
  }

  void find_earlier(const std::string& order) {
    auto earlier = read_journal(options_.output);
    if (!earlier) return;
    if (const std::string other = difference(earlier->order, order); !other.empty())
      throw Error(ExitCode::usage,
                  options_.output + " holds an unfinished dataset of other options or inputs: " + other,
                  "give the same options and inputs to resume, or --overwrite to start over");
    validate(*earlier, options_, reader_.inputs());
    resumed_ = std::ranges::none_of(reader_.inputs(), &InputFile::is_stdin); // stdin cannot be read twice
    if (resumed_) journal_ = std::move(*earlier);
  }

  // --strict. Not part of the order: an accepted text gives the same bytes with it and without.
  void refuse_faults(size_t input) const {
    const TextFaults& faults = journal_.faults[input];
    if (!options_.strict || faults.none()) return;
    const std::string path = reader_.inputs()[input].path;
    throw Error(ExitCode::data, path + " is not clean text: " + describe(faults),
                remedy(faults, path) + ", or leave --strict out");
  }

  void refuse_existing() const {
    const auto existing = shards_in(options_.output);
    if (!existing.empty())
      throw Error(ExitCode::usage, existing.front() + " exists already",
                  "choose another --dataset or --output, or give --overwrite to replace the old shards");
    refuse_foreign_file(manifest_of_dataset(options_.output), kDatasetOutput, false);
  }

  // Files of a run without a journal are replaced; other files in .prepare are never removed.
  void refuse_foreign_folder() const {
    static const std::regex ours(
        R"((bucket_\d+|(train|val)_\d{6,}\.(bin|h5|tokens)|journal|dataset\.json)(\.tmp-\d+)?)");
    std::error_code absent;
    for (const auto& entry : fs::directory_iterator(folder_, absent)) {
      if (!std::regex_match(entry.path().filename().string(), ours) || entry.is_directory(absent))
        throw Error(ExitCode::usage, entry.path().string() + " is not a file of bin/prepare_data",
                    "move it elsewhere, or choose another --output");
    }
  }

  BucketFiles open_buckets() const {
    return BucketFiles({.folder = folder_,
                        .count = journal_.bucket_bytes.size(),
                        .keep_order = !options_.shuffle,
                        .deduplicate = options_.deduplicate,
                        .most_bytes = journal_.slice_bytes},
                       journal_.bucket_bytes);
  }

  ShardSeries open_series(const std::string& prefix, const ShardSeries::State& state) const {
    return ShardSeries({folder_,
                        prefix,
                        options_.format,
                        options_.shard_tokens,
                        {.source = source_names(reader_.inputs()), .tokenizer = "gpt2"}},
                       state);
  }

  uint64_t key_of(const EncodedChunk& chunk, std::span<const uint16_t> tokens, bool part) const {
    if (options_.deduplicate && !part)
      return xxh64(std::as_bytes(tokens), options_.seed); // equal documents, equal keys
    return Rng(options_.seed, kOrderStream).bits(static_cast<uint64_t>(chunk.number));
  }

  bool stop_requested() const { return hooks_.stop && hooks_.stop(); }
  bool journal_is_due() {
    const bool due = std::chrono::duration<double>(Clock::now() - journaled_).count() >= options_.journal_seconds;
    if (due) journaled_ = Clock::now();
    return due;
  }

  // ---- first pass; false: stopped ----

  bool encode() {
    BucketFiles buckets = open_buckets();
    const auto save = [&] {
      buckets.sync();
      journal_.bucket_bytes = buckets.bytes();
      write_journal(options_.output, journal_);
    };
    PrepareProgress progress{.resumed = resumed_};
    for (const InputFile& input : reader_.inputs()) progress.total += input.bytes;
    reader_.go_to(journal_.position);
    const EncodeOptions how{options_.documents.field, options_.skip_bad_lines, options_.threads, hooks_.stop};
    const auto take = [&](const EncodedBatch& batch) {
      for (size_t i = 0; i < batch.chunks.size(); ++i) {
        const EncodedChunk& chunk = batch.chunks[i];
        const auto tokens = batch.tokens_of(chunk);
        const bool part = is_part(batch, i), validation = is_validation(chunk.document, options_.val_fraction);
        buckets.append(key_of(chunk, tokens, part), validation, tokens, part);
        journal_.sources[chunk.input].documents += chunk.first;
        journal_.sources[chunk.input].text_bytes += chunk.text_bytes;
        progress.text_bytes += chunk.text_bytes;
        progress.documents += chunk.first;
        journal_.val_documents += chunk.first && validation;
        journal_.faults[chunk.input].add(chunk.faults);
        refuse_faults(chunk.input);
      }
      journal_.bad_lines += batch.bad_lines;
      journal_.position = batch.after;
      progress.done = batch.file_bytes;
      if (hooks_.progress) hooks_.progress(progress);
      if (stop_requested()) return false;
      if (journal_is_due()) save();
      return true;
    };
    if (stop_requested() || !encode_documents(tokenizer_, reader_, how, take)) return save(), false;
    if (std::ranges::all_of(journal_.sources, [](const SourceEntry& source) { return source.documents == 0; }))
      throw Error(ExitCode::data, "no text in " + source_names(reader_.inputs()), "check the inputs and --separator");
    journal_.stage = PrepareStage::shard;
    save();
    return true;
  }

  // ---- second pass; false: stopped ----

  // Few documents: none may be a validation document. Then the set's last tokens are the validation set. Counting them
  // reads the buckets once more, which --deduplicate needs to know the tokens that stay. False: stopped.
  bool find_train_limit(const BucketFiles& buckets, const std::vector<BucketFiles::Slice>& slices) {
    if (options_.val_fraction == 0 || journal_.val_documents > 0 || journal_.slices > 0 || journal_.records > 0)
      return true;
    int64_t tokens = 0;
    for (const BucketFiles::Slice& slice : slices) {
      const auto loaded = buckets.load(slice, hooks_.stop);
      if (!loaded || stop_requested()) return false;
      for (const BucketFiles::Record& record : loaded->records) tokens += static_cast<int64_t>(record.tokens.size());
    }
    if (const int64_t tail = tail_tokens(tokens, options_.val_fraction); tail > 0) journal_.train_limit = tokens - tail;
    return true;
  }

  void append(const BucketFiles::Record& record, ShardSeries& train, ShardSeries& val) const {
    const size_t size = record.tokens.size();
    size_t for_train = record.validation ? 0 : size;
    if (journal_.train_limit >= 0)
      for_train = std::min(size, static_cast<size_t>(journal_.train_limit - train.state().tokens()));
    train.append(record.tokens.first(for_train));
    val.append(record.tokens.subspan(for_train));
  }

  bool shard() {
    BucketFiles buckets = open_buckets();
    ShardSeries train = open_series("train", journal_.train), val = open_series("val", journal_.val);
    const auto save = [&] {
      train.sync();
      val.sync();
      journal_.train = train.state();
      journal_.val = val.state();
      write_journal(options_.output, journal_);
      train.forget();
      val.forget();
    };
    const auto slices = buckets.slices();
    if (!find_train_limit(buckets, slices)) return save(), false;
    PrepareProgress progress{.resumed = resumed_, .sharding = true};
    for (const int64_t bytes : journal_.bucket_bytes) progress.total += bytes;
    size_t since_poll = 0; // tokens, plus 1000 per record
    for (auto i = static_cast<size_t>(journal_.slices); i < slices.size(); ++i) {
      const auto slice = buckets.load(slices[i], hooks_.stop);
      if (!slice) return save(), false;
      const BucketFiles::Records& loaded = *slice;
      if (journal_.records > static_cast<int64_t>(loaded.records.size()))
        throw Error(ExitCode::data, folder_ + "/journal is damaged: records", "start over with --overwrite");
      for (auto r = static_cast<size_t>(journal_.records); r < loaded.records.size(); ++r) {
        const BucketFiles::Record& record = loaded.records[r];
        append(record, train, val);
        journal_.documents += record.tokens.front() == Tokenizer::kEndOfText;
        journal_.records++;
        since_poll += 1000 + record.tokens.size();
        if (since_poll < kTokensPerPoll) continue;
        since_poll = 0;
        const bool stopped = stop_requested();
        if (stopped || journal_is_due()) save();
        if (stopped) return false;
      }
      journal_.duplicates += loaded.duplicates;
      journal_.slices++;
      journal_.records = 0;
      progress.done = progress.total * journal_.slices / static_cast<int64_t>(slices.size());
      progress.documents = journal_.documents;
      if (hooks_.progress) hooks_.progress(progress);
      const bool last_of_bucket = i + 1 == slices.size() || slices[i + 1].bucket != slices[i].bucket;
      if (!last_of_bucket) continue;
      save();
      buckets.remove(slices[i].bucket);
      if (stop_requested()) return false;
    }
    train.finish();
    val.finish();
    journal_.stage = PrepareStage::publish;
    save();
    return true;
  }

  // ---- the end: remove the old shards, move the new ones ----

  DatasetManifest publish() {
    const ShardSeries train = open_series("train", journal_.train), val = open_series("val", journal_.val);
    const DatasetManifest manifest = make_manifest();
    remove_file(manifest_of_dataset(options_.output)); // the trainer refuses .prepare without dataset.json
    for (const std::string& path : shards_in(options_.output)) {
      const std::string name = fs::path(path).filename().string();
      std::error_code ignored;
      const bool ours = std::ranges::count(manifest.shards, name, &ShardEntry::name) > 0 &&
                        !fs::exists(fs::path(folder_) / name, ignored);
      if (!ours) remove_file(path);
    }
    train.publish(options_.output);
    val.publish(options_.output);
    sync_path(options_.output);
    // Written in .prepare and renamed: a kill leaves no temporary file in OUTPUT.
    write_file_atomic(manifest_of_dataset(folder_), to_text(manifest));
    move_file(manifest_of_dataset(folder_), manifest_of_dataset(options_.output));
    sync_path(options_.output);
    remove_folder(folder_);
    return manifest;
  }

  DatasetManifest make_manifest() const {
    DatasetManifest manifest{.name = options_.name,
                             .tokenizer_hash = tokenizer_.hash(),
                             .vocabulary = Tokenizer::kEndOfText + 1,
                             .options = options_json(options_).dump(),
                             .sources = journal_.sources,
                             .documents = journal_.documents,
                             .duplicates = journal_.duplicates,
                             .bad_lines = journal_.bad_lines,
                             .train_tokens = journal_.train.tokens(),
                             .val_tokens = journal_.val.tokens(),
                             .shards = journal_.train.shards};
    manifest.shards.insert(manifest.shards.end(), journal_.val.shards.begin(), journal_.val.shards.end());
    return manifest;
  }

  const Tokenizer& tokenizer_;
  const PrepareOptions options_;
  const PrepareHooks hooks_;
  const std::string folder_; // OUTPUT/.prepare
  DocumentReader reader_;
  PrepareJournal journal_;
  bool resumed_ = false;
  Clock::time_point journaled_ = Clock::now();
};

} // namespace

PrepareReport prepare_data(const Tokenizer& tokenizer, const PrepareOptions& options, const PrepareHooks& hooks) {
  return Preparation(tokenizer, options, hooks).run();
}

} // namespace gpt2
