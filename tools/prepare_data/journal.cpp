#include "tools/prepare_data/journal.h"

#include <filesystem>

#include "engine/base/files.h"
#include "engine/base/json_reader.h"
#include "engine/data/dataset_folder.h"
#include "engine/data/dataset_json.h"

namespace gpt2 {

using Json = OrderedJson;

namespace {

constexpr int kVersion = 1;

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
  visit("pieces", at.pieces);
  visit("first", at.first);
  visit("at_line_start", at.at_line_start);
}

// All but its order.
template <class Journal, class Visit>
void visit_progress(Journal& journal, Visit visit) {
  visit("overwrite", journal.overwrite);
  visit("stage", journal.stage);
  visit("position", journal.position);
  visit("sources", journal.sources);
  visit("bad_lines", journal.bad_lines);
  visit("bucket_bytes", journal.bucket_bytes);
  visit("slice_bytes", journal.slice_bytes);
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

void write_journal(const std::string& output, const PrepareJournal& journal) {
  Json json = {{"version", kVersion}, {"order", parse_json<Json>(journal.order)}};
  visit_progress(journal, WriteFields{json});
  write_file_atomic(journal_path(output), json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::optional<PrepareJournal> read_journal(const std::string& output) {
  if (!is_being_prepared(output)) return std::nullopt;
  const std::string path = journal_path(output);
  const char* const anew = "start anew with --overwrite";
  try {
    std::string why;
    const auto json = parse_json<Json>(read_text_file(path), {}, &why);
    if (json.is_discarded()) throw Error(ExitCode::data, path + " is damaged: " + why, anew);
    if (json.at("version").get<int>() != kVersion)
      throw Error(ExitCode::data, path + " is of another version of this program", anew);
    PrepareJournal journal;
    journal.order = json.at("order").dump();
    visit_progress(journal, ReadFields{json});
    return journal;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ExitCode::data, path + " is damaged: " + error.what(), anew);
  }
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
