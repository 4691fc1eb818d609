#include "engine/run/run_settings.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/checkpoint/names.h"
#include "engine/checkpoint/search.h"
#include "engine/checkpoint/verify.h"
#include "engine/options/run_plan.h"
#include "engine/run/option_notes.h"
#include "engine/run/rank_start.h"
#include "engine/system/folder_lock.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;

// ---- options ----

void check_same_run(const Options& settled, const ResumePoint& point) {
  const std::string asked = shape_text(resolve_config(settled, false));
  const std::string there = shape_text(resolve_config(point.options, false));
  if (asked != there) {
    throw Error(ExitCode::checkpoint, point.checkpoint + " holds a model of " + there + "; the flags ask for " + asked,
                "leave out the flags of the shape, or start a new run without --resume");
  }
  if (settled.seed != point.options.seed) {
    throw Error(ExitCode::checkpoint,
                concat(point.checkpoint, " was trained with --seed ", point.options.seed, ", not ", settled.seed),
                "leave out --seed");
  }
}

// A checkpoint's options say what to train; RunPlace and ResumePoint::log_dir say where to write.
Options without_places(Options stored, const ResumePoint& point) {
  stored.checkpoint_dir.clear();
  stored.run_name.clear();
  stored.log_dir = point.log_dir;
  stored.timeline.clear();
  if (!stored.plan_cache.empty()) stored.plan_cache = Options{}.plan_cache;
  return stored;
}

// ---- --init_from ----

bool same_shape(const GPT2Config& a, const GPT2Config& b) {
  return a.layers == b.layers && a.heads == b.heads && a.channels == b.channels && a.vocab == b.vocab;
}

// By name where a known model has this shape.
void set_shape(const GPT2Config& config, Options& options) {
  for (const std::string& name : config_names()) {
    const GPT2Config known = config_by_name(name);
    if (!same_shape(known, config)) continue;
    options.model = name;
    return;
  }
  options.model = "gpt2";
  options.layers = config.layers, options.heads = config.heads, options.channels = config.channels;
}

// Null without --init_from. Sets the model's shape in `options` unless the flags give one. Throws Error(checkpoint)
// without such weights, Error(usage) if the flags give another shape.
std::shared_ptr<WeightSource> open_initial_weights(Options& options) {
  if (options.init_from.empty()) return nullptr;
  std::shared_ptr<WeightSource> weights = open_weights(options.init_from, options.hf_cache);
  const GPT2Config& theirs = weights->config();
  const bool asked = options.model != "auto" || options.layers > 0 || options.heads > 0 || options.channels > 0;
  if (!asked) set_shape(theirs, options);
  if (options.seq_len == 0) options.seq_len = std::min(theirs.seq_len, 1024);
  const GPT2Config ours = resolve_config(options, true);
  if (!same_shape(ours, theirs)) {
    throw Error(
        ExitCode::usage,
        concat(weights->path(), " has ", blocks_text(theirs), " and ", theirs.vocab, " tokens; the flags ask for ",
               blocks_text(ours), " and ", ours.vocab),
        asked ? "leave out --model, --layers, --heads and --channels" : "only GPT-2's vocabulary can be trained");
  }
  weights->use_positions(options.seq_len);
  return weights;
}

// ---- whose log is it? ----

// Another folder with checkpoints continues this log: this run must not cut its lines.
bool is_log_of_another(const RunPlace& place) {
  const LoggedRun logged = last_logged_run(place.logs());
  const std::string folder = logged.checkpoint_dir + "/" + logged.run_name;
  return !logged.checkpoint_dir.empty() && canonical_path(folder) != canonical_path(place.checkpoints()) &&
         !checkpoints_in(folder).empty();
}

// ---- names ----

std::string new_run_name(const GPT2Config& config, Precision precision) { // "nano-fp32-20261115-014400"
  return config.name + "-" + to_string(precision) + "-" + date_text("%Y%m%d-%H%M%S", localtime_r);
}

// Folders in which another run of this name may have checkpoints: also every default one, as they share --log_dir.
std::vector<std::string> dirs_of_names(const RunPlace& place) {
  std::vector<std::string> dirs = default_checkpoint_dirs();
  dirs.insert(dirs.begin(), place.checkpoint_dir);
  return dirs;
}

// `name`, or if it is taken `name`-2, `name`-3, ...
std::string free_run_name(const std::string& name, const RunPlace& place) {
  std::vector<std::string> dirs = dirs_of_names(place);
  dirs.push_back(place.log_dir);
  std::string free = name;
  for (int count = 2; std::ranges::any_of(dirs, [&](const auto& dir) { return fs::exists(dir + "/" + free); }); ++count)
    free = name + "-" + std::to_string(count);
  return free;
}

// ---- does a resumed run continue? ----

// Does the folder hold a checkpoint after `step`, valid or of a newer program, that the run would replace later? One is
// enough, and the newest is the most likely.
bool has_later(const std::string& folder, int64_t step) {
  const std::vector<std::string> all = checkpoints_in(folder);
  return std::any_of(all.rbegin(), all.rend(), [&](const auto& path) {
    if (step_of(path) <= step) return false;
    RankGroup alone;
    const std::optional<Error> fault = find_fault(path, alone);
    return !fault || !is_lost(*fault);
  });
}

fs::path found_in(const ResumePoint& point) { return canonical_path(point.checkpoint).parent_path(); }

// Was the checkpoint found in the run's own folder? One directly in --checkpoint_dir has no run folder.
bool is_own(const RunPlace& place, const ResumePoint& point) {
  const bool directly = found_in(point) == canonical_path(point.checkpoint_dir);
  return directly ? place.checkpoint_dir == point.checkpoint_dir
                  : found_in(point) == canonical_path(place.checkpoints());
}

// Why the run cannot continue in this place under its name; "": it can.
std::string why_branch(const ResumePoint& point, const RunPlace& place, Precision precision, Optimizer optimizer) {
  const std::string step = std::to_string(point.step), now = to_string(precision);
  if (point.precision != now) return point.run + " was trained in " + point.precision + ", and this is " + now;
  if (point.options.optimizer != optimizer)
    return point.run + " was trained with --optimizer " + name_of(point.options.optimizer);
  if (has_later(found_in(point), point.step) || has_later(place.checkpoints(), point.step))
    return point.run + " has checkpoints after step " + step;
  if (!is_own(place, point)) return "the checkpoints of " + point.run + " are in " + point.checkpoint_dir;
  if (is_log_of_another(place)) return "the logs of " + point.run + " continue elsewhere after step " + step;
  return "";
}

bool is_default_dir(const std::string& dir) {
  return std::ranges::any_of(default_checkpoint_dirs(),
                             [&](const std::string& usual) { return canonical_path(usual) == canonical_path(dir); });
}

} // namespace

RunSettings resolve_settings(const CommandLine& line, const std::optional<ResumePoint>& point) {
  RunSettings settings{
      .options = line.options, .resumed = point, .given = line.given, .typed = line.typed, .notes = line.notes};
  if (!point) {
    settings.weights = open_initial_weights(settings.options);
    if (settings.weights) append_notes(settings.notes, settings.weights->notes());
    return settings;
  }
  std::set<std::string> given = line.given, none;
  if (line.options.model == "auto") given.erase("model"); // the checkpoint fixes the model
  settings.options = without_places(point->options, *point);
  const bool other_optimizer = given.contains("optimizer") && line.options.optimizer != point->options.optimizer;
  if (other_optimizer) settings.options.max_lr = settings.options.adamw_lr = 0; // rates are per optimizer
  override_options(settings.options, none, line.options, given);
  settings.options.resume.clear(); // resolved
  check_conflicts(settings.options);
  check_same_run(settings.options, *point);
  append_notes(settings.notes, point->notes);
  if (other_optimizer)
    settings.notes.push_back("trained with --optimizer " + name_of(point->options.optimizer) + " so far, " +
                             name_of(line.options.optimizer) + " from here on: its moments start at zero");
  if (line.given.contains("init_from") && !line.options.init_from.empty())
    settings.notes.emplace_back("--init_from has no effect: the run continues with the weights of its checkpoint");
  return settings;
}

RunPlace find_place(const RunSettings& settings, const GPT2Config& config, Precision precision) {
  const Options& options = settings.options;
  RunPlace place{checkpoint_dir_for(options, precision), options.log_dir, options.run_name};
  if (!settings.resumed) {
    if (place.run_name.empty()) place.run_name = free_run_name(new_run_name(config, precision), place);
    return place;
  }
  const ResumePoint& point = *settings.resumed;
  const bool switched = point.precision != to_string(precision); // default folders are per precision
  if (options.checkpoint_dir.empty() && !(switched && is_default_dir(point.checkpoint_dir)))
    place.checkpoint_dir = point.checkpoint_dir;
  const bool named = !options.run_name.empty(), is_free = !is_own(place, point) && !is_log_of_another(place);
  if (named && (options.run_name != point.run || is_free)) return place; // a branch named by the user
  place.run_name = point.run;
  const std::string why = why_branch(point, place, precision, options.optimizer);
  place.continues = why.empty();
  if (place.continues) return place;
  // A live run may save at any moment: refuse to resume its newest checkpoint, instead of branching by chance.
  if (!point.step_named && !switched && options.optimizer == point.options.optimizer && is_own(place, point) &&
      has_writer(place.checkpoints()))
    const FolderLock refused(place.checkpoints(), "--run_name");
  place.run_name = free_run_name(
      point.run + (switched ? "-" + to_string(precision) : "") + "-from-" + std::to_string(point.step), place);
  place.notes.push_back(why + ": this run branches off as " + place.run_name + "; " + point.run + " is unchanged");
  return place;
}

RunPlace agree_on_place(const RunSettings& settings, const GPT2Config& config, Precision precision, RankGroup& group) {
  std::vector<std::string> texts = from_rank_0(group, [&] {
    const RunPlace place = find_place(settings, config, precision);
    std::vector<std::string> out{place.checkpoint_dir, place.log_dir, place.run_name, place.continues ? "1" : "0"};
    out.insert(out.end(), place.notes.begin(), place.notes.end());
    return out;
  });
  return {texts.at(0), texts.at(1), texts.at(2), texts.at(3) == "1", {texts.begin() + 4, texts.end()}};
}

void refuse_taken_name(const RunPlace& place) {
  if (place.continues) return;
  for (const std::string& dir : dirs_of_names(place)) {
    const std::string folder = dir + "/" + place.run_name;
    const std::vector<std::string> there = checkpoints_in(folder);
    if (there.empty()) continue;
    throw Error(
        ExitCode::usage,
        concat(folder, " holds the checkpoints of an earlier run of this name, up to step ", step_of(there.back())),
        "give another --run_name, or resume that run: " + resume_command(folder));
  }
}

} // namespace gpt2
