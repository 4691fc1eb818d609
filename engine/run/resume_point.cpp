#include "engine/run/resume_point.h"

#include <fstream>

#include "engine/base/formatted.h"
#include "engine/base/json_reader.h"
#include "engine/checkpoint/names.h"
#include "engine/checkpoint/search.h"
#include "engine/checkpoint/verify.h"
#include "engine/options/option_fields.h"
#include "engine/options/run_plan.h"
#include "engine/ranks/agreement.h"
#include "engine/run/rank_start.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

// ---- which checkpoint ----

Precision as_precision(PrecisionChoice given) {
  return given == PrecisionChoice::fp8    ? Precision::fp8
         : given == PrecisionChoice::bf16 ? Precision::bf16
                                          : Precision::fp32;
}

// A precision given by the user has its own default folder, which is searched first.
std::string find_checkpoint_of(const CommandLine& line) {
  const Options& asked = line.options;
  const std::string run = line.given.contains("run_name") ? asked.run_name : "";
  if (asked.checkpoint_dir.empty() && asked.precision != PrecisionChoice::automatic) {
    try {
      return find_checkpoint({default_checkpoint_dir(as_precision(asked.precision))}, run, asked.resume);
    } catch (const Error&) { // the next search reports what is missing
    }
  }
  return find_checkpoint(checkpoint_dirs(asked), run, asked.resume);
}

// Does --resume name one checkpoint, or the newest of a run?
bool names_a_step(const std::string& which, const std::string& found) {
  const std::string name = fs::path(without_slashes(marker_of_file(which))).filename().string();
  return is_number(name) || step_of(name) >= 0 || name == kBest || name == "state.h5" ||
         name == fs::path(found).filename();
}

// `found`, or the newest valid checkpoint of its run if `found` is damaged. Every rank hashes its share. A fault other
// than damage is thrown: going back would later replace a checkpoint that another program can still read.
std::string choose_valid(const std::string& found, bool no_other, RankGroup& group, Lines& notes) {
  const std::optional<Error> fault = find_fault(found, group);
  if (!fault) return found;
  std::string hint = fault->hint();
  if (no_other || !is_lost(*fault) || is_removal(*fault)) {
    if (hint.empty() && is_lost(*fault))
      hint = from_rank_0(group, [&] { return Lines{hint_if_damaged(found)}; }).front();
    throw AgreedError(fault->code(), fault->what(), hint);
  }
  Lines faults = {fault->what()};
  for (const std::string& other : from_rank_0(group, [&] { return others_of_run(found); })) {
    if (const std::optional<Error> another = find_fault(other, group)) {
      if (!is_lost(*another)) throw AgreedError(another->code(), another->what(), another->hint());
      faults.emplace_back(another->what());
      continue;
    }
    notes = faults;
    notes.push_back("going back to " + other + ", the newest valid checkpoint of the run");
    return other;
  }
  throw AgreedError(ExitCode::checkpoint, fault->what(),
                    "start a new run without --resume: no other checkpoint of the run is valid");
}

// ---- its run ----

std::string folder_of(const std::string& checkpoint) { return fs::absolute(checkpoint).parent_path().string(); }

Options stored_options(const std::string& toml, const std::string& precision, const std::string& checkpoint) {
  const std::string origin = "options in " + checkpoint + "/state.h5"; // options.toml is only a copy for people
  try {
    CommandLine saved = from_toml(toml, origin);
    Options& options = saved.options;
    if (!saved.given.contains("fp8_bf16_steps")) // an older run: FP8 began at step 1
      options.fp8_bf16_steps =
          precision == to_string(Precision::fp8) ? 0 : automatic_bf16_steps(options.warmup_steps, options.max_steps);
    return options;
  } catch (const Error& error) { // not a typing error: another version wrote it
    std::string what = error.what();
    if (what.starts_with(origin + ":")) what.replace(origin.size(), 1, ", line ");
    throw Error(ExitCode::checkpoint, "cannot read the options of a checkpoint: " + what,
                "resume it with the version that wrote it");
  }
}

// The name becomes a path: the same checks as for --run_name.
void check_run_name(const std::string& name, const std::string& checkpoint) {
  try {
    Options any;
    find_field("run_name")->set(any, name);
  } catch (const BadValue& bad) {
    throw Error(ExitCode::checkpoint, checkpoint + " holds an invalid run name: " + bad.what(),
                "resume a checkpoint that train_gpt2_fp8 wrote");
  }
}

int ranks_of(const std::string& checkpoint) {
  int ranks = 1;
  while (fs::exists(rank_file(checkpoint, ranks))) ++ranks;
  return ranks;
}

// {--checkpoint_dir, name} of its run by where it was found, not where it was written: folders are moved and copied. A
// checkpoint directly in --checkpoint_dir, or copied out of its run, keeps its stored name.
std::pair<std::string, std::string> place_of(const std::string& checkpoint, const std::string& name,
                                             const Lines& dirs) {
  for (const std::string& dir : dirs) {
    const fs::path below = canonical_path(folder_of(checkpoint)).lexically_relative(canonical_path(dir));
    if (!below.empty() && *below.begin() != "..") return {dir, below == "." ? name : below.string()};
  }
  return {checkpoint_dir_of(checkpoint, name), name};
}

// Does the folder hold the log of a run of this name?
bool is_log_of(const std::string& run_name, const std::string& log_folder) {
  return !run_name.empty() && last_logged_run(log_folder).run_name == run_name;
}

// Read by rank 0 for all: the members of ResumePoint in their order, the options as stored.
Lines read_point(const std::string& checkpoint, const CommandLine& line) {
  const TrainState state = read_checkpoint(checkpoint);
  check_run_name(state.run_name, checkpoint);
  const auto [dir, run] = place_of(checkpoint, state.run_name, checkpoint_dirs(line.options));
  if (run.empty())
    throw Error(ExitCode::checkpoint, checkpoint + " holds an invalid run name: it is empty",
                "use --checkpoint_dir with the folder above that of its run");
  const std::string log_dir = stored_options(state.options_toml, state.precision, checkpoint).log_dir;
  const bool has_log =
      is_log_of(state.run_name, log_dir + "/" + run) || is_log_of(state.run_name, log_dir + "/" + state.run_name);
  const Options defaults; // named: g++ 12 destroys `has_log ? log_dir : Options{}.log_dir` wrongly if memory runs out
  return {checkpoint,
          dir,
          run,
          has_log ? log_dir : defaults.log_dir,
          state.options_toml,
          std::to_string(state.step),
          std::to_string(ranks_of(checkpoint)),
          state.precision,
          state.data};
}

ResumePoint to_point(const Lines& read) {
  const std::string& precision = read.at(7);
  return {.checkpoint = read.at(0),
          .checkpoint_dir = read.at(1),
          .run = read.at(2),
          .log_dir = read.at(3),
          .options = stored_options(read.at(4), precision, read.at(0)),
          .step = std::stoll(read.at(5)),
          .ranks = std::stoi(read.at(6)),
          .precision = precision,
          .data = read.at(8)};
}

// A wsd run of --max_steps LATER cools down later: it starts before the cooldown of the shorter run. Its checkpoint, if
// that is valid; "": this is no such resume.
std::string before_cooldown(const ResumePoint& point, const CommandLine& line, RankGroup& group) {
  const bool longer = line.given.contains("max_steps") && line.options.max_steps > point.options.max_steps;
  const bool other_schedule = line.given.contains("lr_schedule") && line.options.lr_schedule != Decay::wsd;
  const int64_t start = cooldown_start(schedule_of(point.options));
  if (!longer || other_schedule || point.step_named || point.step <= start || line.options.eval_only) return "";
  const std::string earlier = (fs::path(point.checkpoint).parent_path() / step_folder_name(start)).string();
  const bool exists = from_rank_0(group, [&] { return Lines{fs::exists(earlier) ? "1" : ""}; }).front() == "1";
  return exists && !find_fault(earlier, group) ? earlier : "";
}

// The newest checkpoint of a longer run that an earlier start branched off at `start`; "": none.
std::string begun_extension(const ResumePoint& point, int64_t start, int64_t max_steps) {
  std::error_code ignored;
  std::string newest;
  for (const auto& entry : fs::directory_iterator(point.checkpoint_dir, ignored)) {
    const std::string name = entry.path().filename().string(), prefix = point.run + "-from-" + std::to_string(start);
    const std::string latest = name.starts_with(prefix) ? latest_in(entry.path().string()) : "";
    if (latest.empty() || (!newest.empty() && step_of(latest) <= step_of(newest))) continue;
    const TrainState state = read_checkpoint(latest);
    if (stored_options(state.options_toml, state.precision, latest).max_steps == max_steps) newest = latest;
  }
  return newest;
}

// The checkpoint from which a longer wsd run starts, or the newest of such a run that was begun before.
ResumePoint extended(const std::string& earlier, const ResumePoint& point, const CommandLine& line, RankGroup& group) {
  const Lines begun =
      from_rank_0(group, [&] { return Lines{begun_extension(point, step_of(earlier), line.options.max_steps)}; });
  Lines notes = point.notes;
  const std::string checkpoint = begun.front().empty() ? earlier : choose_valid(begun.front(), false, group, notes);
  ResumePoint longer = to_point(from_rank_0(group, [&] { return read_point(checkpoint, line); }));
  longer.step_named = begun.front().empty();
  notes.push_back(begun.front().empty() ? concat("a longer wsd run: it starts from step ", longer.step,
                                                 ", before the cooldown, not from step ", point.step)
                                        : "continues the longer wsd run " + longer.run);
  longer.notes = notes;
  return longer;
}

ResumePoint find_point(const CommandLine& line, RankGroup& group) {
  const std::string& which = line.options.resume;
  Lines notes;
  const std::string found = from_rank_0(group, [&] { return Lines{find_checkpoint_of(line)}; }).front();
  const std::string checkpoint = choose_valid(found, names_a_step(which, found), group, notes);
  ResumePoint point = to_point(from_rank_0(group, [&] { return read_point(checkpoint, line); }));
  point.notes = notes;
  point.step_named = names_a_step(line.options.resume, found);
  const std::string earlier = before_cooldown(point, line, group);
  return earlier.empty() ? point : extended(earlier, point, line, group);
}

} // namespace

bool may_retry(const std::string& which, const Error& error) {
  return is_removal(error) && !which.empty() && !names_a_step(which, "");
}

std::optional<ResumePoint> find_resume_point(const CommandLine& line, RankGroup& group) {
  const std::string& which = line.options.resume;
  if (which.empty()) return std::nullopt;
  return retry_if_removed(which, [&] { return find_point(line, group); });
}

LoggedRun last_logged_run(const std::string& log_folder) {
  std::ifstream file(log_folder + "/metrics.jsonl");
  nlohmann::json run;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("{\"type\":\"run\"")) continue;
    if (nlohmann::json parsed = parse_json(line); parsed.is_object()) run = std::move(parsed); // else cut off
  }
  const auto option = [&](const char* name) {
    const nlohmann::json::json_pointer at(std::string("/options/") + name);
    return run.contains(at) && run.at(at).is_string() ? run.at(at).get<std::string>() : "";
  };
  return {.checkpoint_dir = option("checkpoint_dir"), .run_name = option("run_name")};
}

fs::path canonical_path(const std::string& path) {
  std::error_code ignored;
  return fs::weakly_canonical(path, ignored);
}

} // namespace gpt2
