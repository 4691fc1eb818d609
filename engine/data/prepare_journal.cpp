#include "engine/data/prepare_journal.h"

#include <filesystem>

#include "engine/base/files.h"
#include "engine/data/dataset_json.h"

namespace gpt2 {

using Json = nlohmann::ordered_json;

namespace {

constexpr int kVersion = 1;

std::string journal_path(const std::string& output) { return prepare_folder(output) + "/journal"; }

Json to_json(const ShardSeries::State& state) { return {{"shards", state.shards}, {"open_tokens", state.open_tokens}}; }

ShardSeries::State series_state(const Json& json) {
  return {json.at("shards").get<std::vector<ShardEntry>>(), json.at("open_tokens").get<int64_t>()};
}

Json to_json(const DocumentReader::Position& at) {
  return {
      {"input", at.input},         {"offset", at.offset}, {"pending", at.pending}, {"line", at.line},
      {"documents", at.documents}, {"pieces", at.pieces}, {"first", at.first},     {"at_line_start", at.at_line_start}};
}

DocumentReader::Position position(const Json& json) {
  DocumentReader::Position at;
  json.at("input").get_to(at.input);
  json.at("offset").get_to(at.offset);
  json.at("pending").get_to(at.pending);
  json.at("line").get_to(at.line);
  json.at("documents").get_to(at.documents);
  json.at("pieces").get_to(at.pieces);
  json.at("first").get_to(at.first);
  json.at("at_line_start").get_to(at.at_line_start);
  return at;
}

PrepareJournal parse(const Json& json) {
  PrepareJournal journal;
  journal.order = json.at("order").dump();
  json.at("overwrite").get_to(journal.overwrite);
  journal.stage = static_cast<PrepareStage>(json.at("stage").get<int>());
  journal.position = position(json.at("position"));
  json.at("sources").get_to(journal.sources);
  json.at("bad_lines").get_to(journal.bad_lines);
  json.at("bucket_bytes").get_to(journal.bucket_bytes);
  json.at("slice_bytes").get_to(journal.slice_bytes);
  json.at("slices").get_to(journal.slices);
  json.at("records").get_to(journal.records);
  json.at("documents").get_to(journal.documents);
  json.at("duplicates").get_to(journal.duplicates);
  journal.train = series_state(json.at("train"));
  journal.val = series_state(json.at("val"));
  return journal;
}

} // namespace

std::string prepare_folder(const std::string& output) { return output + "/.prepare"; }

bool is_being_prepared(const std::string& output) {
  std::error_code unreadable;
  return std::filesystem::exists(journal_path(output), unreadable);
}

void write_journal(const std::string& output, const PrepareJournal& journal) {
  const Json json = {{"version", kVersion},
                     {"order", Json::parse(journal.order)},
                     {"overwrite", journal.overwrite},
                     {"stage", static_cast<int>(journal.stage)},
                     {"position", to_json(journal.position)},
                     {"sources", journal.sources},
                     {"bad_lines", journal.bad_lines},
                     {"bucket_bytes", journal.bucket_bytes},
                     {"slice_bytes", journal.slice_bytes},
                     {"slices", journal.slices},
                     {"records", journal.records},
                     {"documents", journal.documents},
                     {"duplicates", journal.duplicates},
                     {"train", to_json(journal.train)},
                     {"val", to_json(journal.val)}};
  write_file_atomic(journal_path(output), json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::optional<PrepareJournal> read_journal(const std::string& output) {
  if (!is_being_prepared(output)) return std::nullopt;
  const std::string path = journal_path(output);
  const char* const anew = "start anew with --overwrite";
  try {
    const Json json = Json::parse(read_text_file(path));
    if (json.at("version").get<int>() != kVersion)
      throw Error(ExitCode::data, path + " is of another version of this program", anew);
    return parse(json);
  } catch (const nlohmann::json::exception& error) {
    throw Error(ExitCode::data, path + " is damaged: " + error.what(), anew);
  }
}

std::string difference(const std::string& order_before, const std::string& order_now) {
  const Json before = Json::parse(order_before), now = Json::parse(order_now);
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
