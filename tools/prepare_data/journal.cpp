#include "tools/prepare_data/journal.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>

#include "engine/base/json_reader.h"
#include "engine/data/dataset_folder.h"
#include "engine/data/dataset_json.h"
#include "engine/system/files.h"

namespace gpt2 {

using Json = OrderedJson;
namespace fs = std::filesystem;

namespace {

constexpr int kVersion = 2;
constexpr int64_t kLargest = int64_t{1} << 53;    // any number in a journal
constexpr int64_t kMostSlices = int64_t{1} << 24; // 16 TB of tokens by --memory 1
const char* const kStartOver = "start over with --overwrite";

std::string journal_path(const std::string& output) { return prepare_folder(output) + "/journal"; }

template <class State, class Visit>
void visit_series(State& state, Visit visit) {
  visit("shards", state.shards);
  visit("open_tokens", state.open_tokens);
}

template <class Position, class Visit>
void visit_position(Position& at, Visit visit) {
  visit("input", at.input);
  visit("offset", at.offset);
  visit("pending", at.pending);
  visit("line", at.line);
  visit("documents", at.documents);
  visit("chunks", at.chunks);
  visit("first", at.first);
  visit("at_line_start", at.at_line_start);
}

template <class Faults, class Visit>
void visit_faults(Faults& faults, Visit visit) {
  visit("bytes", faults.bytes);
  visit("invalid_utf8", faults.invalid_utf8);
  visit("nul", faults.nul);
  visit("utf8_marks", faults.utf8_marks);
  visit("utf16_marks", faults.utf16_marks);
  visit("crlf", faults.crlf);
}

// All fields but `order`.
template <class Journal, class Visit>
void visit_progress(Journal& journal, Visit visit) {
  visit("overwrite", journal.overwrite);
  visit("stage", journal.stage);
  visit("position", journal.position);
  visit("sources", journal.sources);
  visit("faults", journal.faults);
  visit("bad_lines", journal.bad_lines);
  visit("bucket_bytes", journal.bucket_bytes);
  visit("slice_bytes", journal.slice_bytes);
  visit("val_documents", journal.val_documents);
  visit("train_limit", journal.train_limit);
  visit("slices", journal.slices);
  visit("records", journal.records);
  visit("documents", journal.documents);
  visit("duplicates", journal.duplicates);
  visit("train", journal.train);
  visit("val", journal.val);
}

} // namespace

void to_json(Json& json, const ShardSeries::State& state) { visit_series(state, WriteFields{json}); }
void from_json(const Json& json, ShardSeries::State& state) { visit_series(state, ReadFields{json}); }
void to_json(Json& json, const DocumentReader::Position& at) { visit_position(at, WriteFields{json}); }
void from_json(const Json& json, DocumentReader::Position& at) { visit_position(at, ReadFields{json}); }

void to_json(Json& json, const TextFaults& faults) { visit_faults(faults, WriteFields{json}); }
void from_json(const Json& json, TextFaults& faults) { visit_faults(faults, ReadFields{json}); }

void write_journal(const std::string& output, const PrepareJournal& journal) {
  Json json = {{"version", kVersion}, {"order", parse_json<Json>(journal.order)}};
  visit_progress(journal, WriteFields{json});
  write_file_atomic(journal_path(output), json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::optional<PrepareJournal> read_journal(const std::string& output) {
  if (!is_being_prepared(output)) return std::nullopt;
  const std::string path = journal_path(output);
  try {
    std::string why;
    const auto json = parse_json<Json>(read_text_file(path), {}, &why);
    if (json.is_discarded()) throw Error(ExitCode::data, path + " is damaged: " + why, kStartOver);
    if (json.at("version").get<int>() != kVersion)
      throw Error(ExitCode::data, path + " was written by another version of this program", kStartOver);
    PrepareJournal journal;
    const Json& order = json.at("order");
    if (!order.at("inputs").is_array())
      throw Error(ExitCode::data, path + " is damaged: inputs is not an array", kStartOver);
    for (const Json& input : order.at("inputs")) input.at("path").get_ref<const std::string&>();
    journal.order = order.dump();
    visit_progress(journal, ReadFields{json});
    return journal;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ExitCode::data, path + " is damaged: " + error.what(), kStartOver);
  }
}

namespace {

bool are_counts(std::initializer_list<int64_t> numbers) {
  return std::ranges::all_of(numbers, [](int64_t number) { return number >= 0 && number <= kLargest; });
}

// Number of slices that BucketFiles makes of the buckets; -1: impossible sizes.
int64_t count_slices(const PrepareJournal& journal, bool shuffle) {
  const auto buckets = static_cast<int64_t>(journal.bucket_bytes.size());
  if (buckets < 1 || buckets > (shuffle ? kMostBuckets : kMostSlices)) return -1;
  if (journal.slice_bytes < 1 || journal.slice_bytes > kLargest) return -1;
  int64_t slices = 0;
  for (const int64_t bytes : journal.bucket_bytes) {
    if (!are_counts({bytes})) return -1;
    slices += shuffle ? std::max<int64_t>(1, (bytes + journal.slice_bytes - 1) / journal.slice_bytes) : 1;
    if (slices > kMostSlices) return -1;
  }
  return slices;
}

bool has_size(const fs::path& path, int64_t bytes) {
  std::error_code absent;
  return fs::file_size(path, absent) == static_cast<uintmax_t>(bytes) && !absent;
}

// What is wrong with the series; empty: nothing.
std::string problem_of(const ShardSeries::State& state, const std::string& prefix, PrepareStage stage,
                       const PrepareOptions& options) {
  if (state.open_tokens < 0 || state.open_tokens >= options.shard_tokens) return "open_tokens";
  for (size_t i = 0; i < state.shards.size(); ++i) {
    const ShardEntry& shard = state.shards[i];
    if (shard.name != shard_name(prefix, i, options.format)) return "a shard is named \"" + shard.name + "\"";
    if (shard.tokens < 1 || shard.tokens > options.shard_tokens) return "the tokens of " + shard.name;
    const bool there = has_size(prepare_folder(options.output) + "/" + shard.name, shard.bytes) ||
                       (stage == PrepareStage::publish && has_size(options.output + "/" + shard.name, shard.bytes));
    if (!there) return shard.name + " is missing or has another size";
  }
  return "";
}

} // namespace

void validate(const PrepareJournal& journal, const PrepareOptions& options, const std::vector<InputFile>& inputs) {
  const auto require = [&](bool good, const std::string& what) {
    if (!good) throw Error(ExitCode::data, journal_path(options.output) + " is damaged: " + what, kStartOver);
  };
  const auto stage = journal.stage;
  require(stage >= PrepareStage::encode && stage <= PrepareStage::publish, "stage");
  require(are_counts({journal.bad_lines, journal.records, journal.documents, journal.duplicates, journal.val_documents,
                      journal.train_limit + 1}),
          "a count");
  require(journal.sources.size() == inputs.size(), "sources");
  require(journal.faults.size() == inputs.size(), "faults");
  for (const TextFaults& each : journal.faults)
    require(are_counts({each.bytes, each.invalid_utf8, each.nul, each.utf8_marks, each.utf16_marks, each.crlf}),
            "the counts of faults");
  for (const SourceEntry& source : journal.sources)
    require(are_counts({source.bytes, source.documents, source.text_bytes}), "the counts of " + source.path);

  const DocumentReader::Position& at = journal.position;
  require(at.input <= inputs.size() && at.pending <= at.offset && (at.input < inputs.size() || at.offset == 0) &&
              are_counts({at.offset, at.pending, at.line, at.documents, at.chunks}),
          "position");
  const int64_t slices = count_slices(journal, options.shuffle);
  require(slices > 0, "bucket_bytes or slice_bytes");
  require(journal.slices >= 0 && journal.slices <= slices, "slices");
  for (const auto& [state, prefix] : {std::pair(&journal.train, "train"), std::pair(&journal.val, "val")}) {
    const std::string problem = problem_of(*state, prefix, stage, options);
    require(problem.empty(), problem);
  }
  require(journal.train_limit < 0 || journal.train.tokens() <= journal.train_limit, "train_limit");
  const int64_t tokens = journal.train.tokens() + journal.val.tokens();
  if (stage == PrepareStage::encode) {
    require(journal.slices == 0 && journal.records == 0 && tokens == 0, "shards exist before encoding is complete");
    for (size_t i = 0; i < journal.bucket_bytes.size(); ++i) {
      const std::string bucket = prepare_folder(options.output) + "/bucket_" + std::to_string(i);
      require(journal.bucket_bytes[i] == 0 || fs::exists(bucket), bucket + " is missing");
    }
  }
  if (stage == PrepareStage::publish)
    require(journal.slices == slices && journal.train.open_tokens == 0 && journal.val.open_tokens == 0 && tokens > 0,
            "the shards are incomplete");
}

std::string difference(const std::string& order_before, const std::string& order_now) {
  const auto before = parse_json<Json>(order_before), now = parse_json<Json>(order_now);
  for (const auto& [key, value] : now.items()) {
    const Json old = before.contains(key) ? before[key] : Json();
    if (old == value) continue;
    if (key != "inputs") return key + " was " + old.dump() + ", is " + value.dump();
    for (size_t i = 0; i < std::max(old.size(), value.size()); ++i) {
      const Json was = i < old.size() ? old[i] : Json(), is = i < value.size() ? value[i] : Json();
      if (was == is) continue;
      if (was.is_null()) return is["path"].get<std::string>() + " is new among the inputs";
      const std::string path = was["path"];
      if (is.is_null() || is["path"] != path) return path + " is not among the inputs any more";
      return path + " has changed since";
    }
  }
  return "";
}

} // namespace gpt2
