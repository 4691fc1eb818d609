#include "tools/sweep/slurm_array.h"

#include "engine/base/formatted.h"
#include "engine/base/shell_quote.h"

namespace gpt2 {
namespace {

// sbatch splits #SBATCH lines into words like a shell; in file names % starts a replacement.
std::string log_name(const std::string& folder) {
  std::string name;
  for (const char c : folder) name += c == '%' ? std::string("%%") : std::string(1, c);
  return shell_quote(name + "/slurm-%A_%a.log");
}

constexpr const char* kHead = R"script(#!/usr/bin/env bash
# A Slurm job array, one task per run. Two minutes before the time limit a task saves and requeues itself.
# Flags of sbatch override the lines below. A run on several GPUs needs `gpus` among its options.
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
)script";

constexpr const char* kBody = R"script(set -uo pipefail
cd "$SLURM_SUBMIT_DIR" || exit

time_is_up=no
before=$("${sweep[@]}" --list) || exit
trap 'time_is_up=yes; kill -USR1 "$training"' USR1
"${sweep[@]}" &
training=$!
while kill -0 "$training" 2>/dev/null; do wait "$training"; done # the trap interrupts `wait`, not the training
wait "$training"
status=$?
if [ $status = 75 ] && [ $time_is_up = yes ]; then
  # A time limit too short for one step would requeue the task forever.
  if [ "$("${sweep[@]}" --list)" = "$before" ]; then
    echo "error: no step finished within the time limit (hint: use a longer --time or an earlier --signal)" >&2
  else
    scontrol requeue "$SLURM_JOB_ID"
  fi
fi
exit $status
)script";

} // namespace

std::string slurm_script(const SlurmArray& array) {
  std::string words;
  for (const std::string& word : array.command) words += shell_quote(word) + " ";
  return kHead +
         ("#SBATCH --job-name=" + array.name + "\n#SBATCH --array=" + listed(array.numbers, ",") +
          "\n#SBATCH --output=" + log_name(array.folder) + "\nreadonly sweep=(" + words +
          "--only \"$SLURM_ARRAY_TASK_ID\")\n") +
         kBody;
}

} // namespace gpt2
