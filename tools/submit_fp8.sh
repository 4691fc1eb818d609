#!/usr/bin/env bash
# A Slurm job that trains across time limits: two minutes before the limit it saves and requeues itself; the next
# attempt resumes. All attempts append to logs/train_gpt2_fp8-JOB.log.
#
#   sbatch tools/submit_fp8.sh                                      in the root of the tree, after make
#   CONFIG=configs/gpt2_1558m.toml ARGS="--use_fp8 --max_steps 5000" sbatch --nodes=4 --time=12:00:00 tools/submit_fp8.sh
#
#   CONFIG        an option file                                    default: configs/gpt2_124m.toml
#   ARGS          flags that override it, separated by blanks       default: --use_fp8, unless CONFIG names a precision
#   RUN           name of the run                                   default: slurm-JOB
#   CHECKPOINTS   --checkpoint_dir, on a disk that all nodes see    default: checkpoints_PRECISION, as checkpoints_fp8
#   PROGRAM       the trainer                                       default: ./train_gpt2_fp8
#
# With RUN=slurm-JOB of an earlier job, the new job resumes that run with its options, unless CONFIG or ARGS are set.
# A resume that branches (another precision) gets a new run name; later attempts of the job resume the branch.
# Flags of sbatch override the lines below; --ntasks-per-node is the number of GPUs per node. `scancel JOB` ends the job
# and leaves it Slurm's KillWait (30 s) to save; `scancel --signal=TERM JOB` gives it the time it needs. The exit code
# is that of the program.
#SBATCH --job-name=train_gpt2_fp8
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=logs/%x-%j.log
set -uo pipefail

readonly stopped_and_saved=75
say() { echo "submit_fp8: $*"; }
give_up() { # EXIT_CODE WHAT
  rm -f "${known_branches:-}"
  echo "error: $2" >&2
  exit "$1"
}

[ -n "${SLURM_JOB_ID:-}" ] || give_up 2 "run this with sbatch: sbatch $0"
cd "$SLURM_SUBMIT_DIR" || exit
readonly program=${PROGRAM:-./train_gpt2_fp8}
run=${RUN:-slurm-$SLURM_JOB_ID} dirs=(checkpoints_fp8 checkpoints_bf16 checkpoints_fp32) # the program chooses by the precision
[ -z "${CHECKPOINTS:-}" ] || dirs=("$CHECKPOINTS")
[ -x "$program" ] || give_up 2 "there is no $program in $PWD (hint: make, then sbatch in the root of the tree)"

newest_step() { # newest complete checkpoint of this run; -1: none
  local step dir
  step=$(for dir in "${dirs[@]}"; do
    find "$dir/$run" -maxdepth 1 -type d -regex '.*/step_[0-9]+' 2>/dev/null
  done | sed 's/.*step_0*\(.\)/\1/' | sort -n | tail -n 1)
  echo "${step:--1}"
}

branches() { # names of the branches of this run that have checkpoints
  local dir checkpoint
  for dir in "${dirs[@]}"; do
    for checkpoint in "$dir/$run"-*from-[0-9]*/step_*; do
      [ ! -d "$checkpoint" ] || dirname "${checkpoint#"$dir/"}"
    done
  done | sort -u
}

# The first resume of a job lists the existing branches; a branch not in this list belongs to the job. The file outlives
# the attempt, because Slurm may requeue a job by itself.
known_branches=
list_branches() {
  local dir
  for dir in "${dirs[@]}"; do
    [ ! -d "$dir/$run" ] || known_branches=$dir/$run/.slurm-$SLURM_JOB_ID
  done
  [ -e "$known_branches" ] || branches >"$known_branches" || exit
}
follow_branch() {
  local branch
  [ -n "$known_branches" ] || return 0
  branch=$(branches | grep -vxFf "$known_branches" | tail -n 1)
  run=${branch:-$run}
}

# ---- train ----

time_is_up=no training=
# srun forwards the signal to every rank.
trap 'time_is_up=yes; [ -z "$training" ] || kill -USR1 "$training"' USR1

before=$(newest_step)
if ((before >= 0)); then
  list_branches
  follow_branch
  before=$(newest_step)
fi
if ((before < 0)); then
  from="from the start" config=${CONFIG:-configs/gpt2_124m.toml} flags=()
  precision=--use_fp8
  if grep -Eqs '^[[:space:]]*(precision|use_fp8|fp8)[[:space:]]*[=:]' "$config"; then precision=; fi
  args=${ARGS-$precision}
else # the checkpoint holds the options
  from="from step $before" config=${CONFIG:-} args=${ARGS:-} flags=(--resume latest) # of this run
fi
[ -z "$config" ] || flags+=(--config "$config")
[ -z "${CHECKPOINTS:-}" ] || flags+=(--checkpoint_dir "$CHECKPOINTS")
read -ra words <<<"$args"
flags+=(${words[@]+"${words[@]}"})
say "job $SLURM_JOB_ID, run $run, turn $((${SLURM_RESTART_COUNT:-0} + 1)), $SLURM_NTASKS ranks on $SLURM_JOB_NODELIST, $from"

# The shared secret of the ranks (docs/security.md); only in the environment, never in a command line.
if [ -z "${GPT2_JOB_TOKEN:-}${GPT2_JOB_TOKEN_FILE:-}" ]; then
  GPT2_JOB_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n') || exit
  export GPT2_JOB_TOKEN
fi

# If a rank fails, the others report it and exit within --nccl_timeout (120 s): srun waits for them.
# Slurm 22.05 and later do not pass sbatch's --cpus-per-task to srun.
srun --mpi=none --kill-on-bad-exit=0 --wait=600 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
  "$program" --run_name "$run" ${flags[@]+"${flags[@]}"} &
training=$!
while kill -0 "$training" 2>/dev/null; do wait "$training"; done # the trap interrupts wait, not the training
wait "$training"
readonly status=$?

# ---- requeue after a time limit ----

started=$run
follow_branch
[ "$run" = "$started" ] || before=-1 # a branch may begin before the newest step of its origin
after=$(newest_step)
if [ $status = $stopped_and_saved ] && [ $time_is_up = yes ]; then
  # A limit too short for one step would requeue the job forever.
  ((after > before)) || give_up $status "the time limit came before a step was done (hint: a longer --time, or an earlier --signal)"
  say "the time limit came at step $after: back into the queue"
  scontrol requeue "$SLURM_JOB_ID" || give_up $status "cannot be requeued (hint: RUN=$run sbatch tools/submit_fp8.sh resumes)"
  exit $status
fi
rm -f "$known_branches"
exit $status
