#include "engine/train/run_settings.h"

#include "engine/base/error.h"
#include "engine/train/init_from.h"
#include "engine/train/report.h"
#include "engine/train/run_plan.h"

namespace gpt2 {
namespace {

void check_same_run(const Options& settled, const ResumePoint& point) {
  const std::string asked = shape_text(resolve_config(settled, false));
  const std::string there = shape_text(resolve_config(point.options, false));
  if (asked != there) {
    throw Error(ExitCode::checkpoint,
                point.checkpoint + " holds a model of " + there + ", but the flags ask for " + asked,
                "leave out the flags of the shape, or start a new run without --resume");
  }
  if (settled.seed != point.options.seed) {
    throw Error(ExitCode::checkpoint,
                point.checkpoint + " was trained with --seed " + std::to_string(point.options.seed) + ", not " +
                    std::to_string(settled.seed),
                "leave out --seed");
  }
}

// A checkpoint says what to train, and not where to write: RunPlace and ResumePoint::log_dir do.
Options without_places(Options stored, const ResumePoint& point) {
  stored.checkpoint_dir.clear();
  stored.run_name.clear();
  stored.log_dir = point.log_dir;
  stored.timeline.clear();
  if (!stored.plan_cache.empty()) stored.plan_cache = Options{}.plan_cache;
  return stored;
}

} // namespace

RunSettings settle(const CommandLine& line, const std::optional<ResumePoint>& point) {
  RunSettings settings{
      .options = line.options, .resumed = point, .given = line.given, .typed = line.typed, .notes = line.notes};
  if (!point) {
    settings.weights = open_initial_weights(settings.options);
    if (settings.weights)
      settings.notes.insert(settings.notes.end(), settings.weights->notes().begin(), settings.weights->notes().end());
    return settings;
  }
  std::set<std::string> given = line.given, none;
  if (line.options.model == "auto") given.erase("model"); // a checkpoint's model is no longer a choice
  settings.options = without_places(point->options, *point);
  override_options(settings.options, none, line.options, given);
  settings.options.resume.clear(); // it is done
  check_conflicts(settings.options);
  check_same_run(settings.options, *point);
  settings.notes.insert(settings.notes.end(), point->notes.begin(), point->notes.end());
  if (line.given.contains("init_from") && !line.options.init_from.empty())
    settings.notes.emplace_back("--init_from has no effect: the run goes on with the weights of its checkpoint");
  return settings;
}

} // namespace gpt2
