#!/usr/bin/env bash
# One command from nothing to a GPT-2 124M: builds, prepares the data, trains, scores HellaSwag, exports, reports.
#
#   tools/speedrun.sh                       FineWeb-Edu, configs/gpt2_124m_fast.toml, every GPU of this machine
#   tools/speedrun.sh --dry_run             prints the commands and what the run would cost; starts nothing
#   tools/speedrun.sh --small               all stages on the built-in sample on the CPU: two minutes
#
#   --dataset NAME     a dataset of bin/prepare_data, or one that data/NAME holds      default: that of the option file
#   --config FILE      an option file                                                   default: configs/gpt2_124m_fast.toml
#   --run NAME         name of the run                                                  default: speedrun-CONFIG-DATASET
#   --price DOLLARS    per GPU-hour: prints the cost
#   -- FLAG...         further flags of the trainer, for a new run, e.g. -- --no-use_fp8
#
# Ctrl-C, a crash, a reboot: the same command continues. Finished stages are skipped, and training resumes from its last
# checkpoint. Results are in runs/RUN: report.html, hellaswag.json, and hf/, which Hugging Face's transformers loads.
# Exit codes are those of the programs; 75: stopped and saved.
set -euo pipefail

root=$(dirname "$(dirname "$(readlink -f "$0")")")
cd "${SPEEDRUN_FOLDER:-$root}" # a test runs in a folder of its own
dataset='' config=configs/gpt2_124m_fast.toml run='' price='' dry_run='' small='' flags=()
readonly hellaswag_url=https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl

fail() { # EXIT_CODE WHAT
  echo "error: $2" >&2
  exit "$1"
}

while [ $# -gt 0 ]; do
  option=$1
  shift
  case $option in
    --dry_run | --dry-run) dry_run=1 ;;
    --small) small=1 ;;
    --help | -h) sed -n '2,/^set/{/^#/s/^# \?//p}' "$root/tools/speedrun.sh"; exit ;;
    --) flags=("$@") && break ;;
    --dataset | --config | --run | --price)
      [ $# -gt 0 ] || fail 2 "$option needs a value (hint: see --help)"
      declare "${option#--}=$1"
      shift
      ;;
    *) fail 2 "unknown flag $option (hint: see --help; flags of the trainer come after --)" ;;
  esac
done
[ -z "$price" ] || [[ $price =~ ^[0-9]+(\.[0-9]+)?$ ]] || fail 2 "--price: '$price' is not a number (hint: --price 2.50)"
[ -e "$config" ] || fail 2 "there is no $config"
dataset=${dataset:-$(sed -n 's/^dataset = "\([^"]*\)".*/\1/p' "$config")}

# ---- what to run ----

train=(./train_gpt2_fp8) hellaswag=data/hellaswag/hellaswag_val.jsonl
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || :)
[ -z "${CUDA_VISIBLE_DEVICES+given}" ] || gpus=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c . || :)
if [ -n "$small" ]; then
  dataset='built-in sample' run=${run:-speedrun-small} gpus=0 hellaswag=data/hellaswag/small.jsonl
  [ ! -d build/cpu-only ] || [ -e train_gpt2_fp8 ] || echo "note: make run builds the CPU engine alone, which is faster"
  options=(--config "$config" --dataset= --device cpu --model nano --layers 2 --heads 2 --channels 32 --seq_len 64 --batch_size 4
    --target_batch_size 8 --max_steps 20 --warmup_steps 3 --max_lr auto --adamw_lr auto --eval_freq 10 --eval_sequences 16
    --sample_tokens 16 --checkpoint_freq 5)
else
  run=${run:-speedrun-$(basename "$config" .toml)-$dataset}
  options=(--config "$config" --dataset "$dataset" --use_fp8)
  [ "$gpus" -le 1 ] || options+=(--gpus all)
  # Several GPUs need more tokens at a time; the number of tokens stays (configs/gpt2_124m_fast.toml).
  [ "$gpus" -lt 4 ] || [ "$config" != configs/gpt2_124m_fast.toml ] || options+=(--target_batch_size 512 --max_steps 13352)
fi
options+=(--run_name "$run" "${flags[@]}")
readonly results=runs/$run hf=runs/$run/hf

checkpoint_folder() { # of the run; "": none yet
  local dir
  for dir in checkpoints_fp8 checkpoints_bf16 checkpoints_fp32; do
    if [ -n "$(find "$dir/$run" -maxdepth 1 -type d -name 'step_*' 2>/dev/null)" ]; then echo "$dir/$run" && return; fi
  done
}

stage() { echo "==> $*"; }
show() { echo "    $*"; }

# ---- the stages; each returns at once if its result exists ----

build() {
  if [ -x ./train_gpt2_fp8 ] && [ -x bin/export_hf ]; then return; fi
  stage "build"
  make -C "$root"
}

data_ready() { [ -n "$small" ] || [ -e "data/$dataset/dataset.json" ]; }
prepare() {
  if ! data_ready; then
    stage "data: $dataset"
    case $dataset in fineweb-edu* | openwebtext) tools/install_deps.sh parquet ;; esac
    bin/prepare_data --dataset "$dataset"
  fi
  if [ -e "$hellaswag" ]; then return; fi
  mkdir -p "$(dirname "$hellaswag")"
  if [ -n "$small" ]; then # in the words of the sample's stories
    local name
    for name in Lucy Tom Mia Ben; do
      echo "{\"ctx\": \"Once upon a time, there was a happy kitten named $name.\", \"endings\": [" \
        "\"Quarterly tax revenue diverged.\", \"She lived near the hill and loved to dance with her friends.\"," \
        "\"Matrix rank one hundred kernels.\", \"Seven volts differ.\"], \"label\": 1}"
    done >"$hellaswag.part"
  else
    stage "data: HellaSwag"
    python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])' "$hellaswag_url" "$hellaswag.part"
  fi
  mv "$hellaswag.part" "$hellaswag"
}

trained() { [ -e "$results/.trained" ]; }
run_training() {
  if trained; then return; fi
  stage "train: $run"
  local status=0 folder
  folder=$(checkpoint_folder)
  if [ -n "$folder" ]; then
    local again=()
    [ "$gpus" -le 1 ] || again=(--gpus all)
    "${train[@]}" --resume "$folder" "${again[@]}" || status=$?
  else
    "${train[@]}" "${options[@]}" || status=$?
  fi
  [ $status != 75 ] || echo "==> stopped: the same command continues"
  [ $status = 0 ] || exit $status
  touch "$results/.trained"
}

device=()
[ -z "$small" ] || device=(--device cpu)
evaluate() {
  if [ -e "$results/hellaswag.json" ]; then return; fi
  stage "evaluate: HellaSwag"
  bin/evaluate "$(checkpoint_folder)" --hellaswag "$hellaswag" --json "${device[@]}" >"$results/hellaswag.part"
  mv "$results/hellaswag.part" "$results/hellaswag.json"
}

export_model() {
  if [ -e "$hf/config.json" ]; then return; fi
  stage "export: $hf"
  bin/export_hf "$(checkpoint_folder)" --output "$hf"
}

write_report() {
  stage "report: $results/report.html"
  bin/report "$results" --overwrite
}

# ---- the end ----

# Seconds of training, over all starts of the run: the last line of each start in metrics.jsonl.
training_seconds() {
  awk '/^\{"type":"run"/ { total += last } match($0, /"seconds":[0-9.e+-]+/) { last = substr($0, RSTART + 10, RLENGTH - 10) + 0 }
    END { printf "%.1f\n", total + last }' "$results/metrics.jsonl"
}

last_value() { # LINE_TYPE FIELD: the last one in metrics.jsonl
  sed -n "/^{\"type\":\"$1\"/s/.*\"$2\":\([0-9.e+-]*\).*/\1/p" "$results/metrics.jsonl" | tail -n 1
}

print_result() {
  local score seconds
  score=$(sed -n 's/.*"per_token": *\([0-9.e+-]*\).*/\1/p' "$results/hellaswag.json") # llm.c's way of counting
  seconds=$(training_seconds)
  echo
  echo "model            $hf (loads with transformers' GPT2LMHeadModel)"
  echo "report           $results/report.html"
  printf 'validation loss  %.4f\n' "$(last_value validation val_loss)"
  local others='GPT-2 124M: 29.6%, llm.c: 29.9%'
  [ -z "$small" ] || others='of four tasks that test this script'
  awk -v s="$score" -v o="$others" 'BEGIN { printf "HellaSwag        %.1f%% (%s)\n", 100 * s, o }'
  awk -v s="$seconds" -v g="$gpus" -v p="$price" 'BEGIN {
    printf "training         %.2f hours", s / 3600
    if (g > 0) printf " on %d GPU%s = %.2f GPU-hours", g, (g > 1 ? "s" : ""), g * s / 3600
    if (g > 0 && p != "") printf " = $%.2f at $%.2f each", g * s / 3600 * p, p
    print "" }'
}

print_plan() {
  stage "plan of $run: ${gpus} GPUs here"
  show "1 build     $([ -x ./train_gpt2_fp8 ] && echo 'done already' || echo make)"
  show "2 data      $(data_ready && echo "$dataset: ready" || echo "bin/prepare_data --dataset $dataset")"
  show "3 train     $(trained && echo 'done already' || echo "${train[*]} ${options[*]}")"
  show "4 evaluate  bin/evaluate RUN --hellaswag $hellaswag"
  show "5 export    bin/export_hf RUN --output $hf"
  show "6 report    bin/report $results"
  local time
  time=$(sed -n 's/^# Time: //p' "$config")
  if [ -n "$time" ] && [ -z "$small" ]; then
    show "time        $time"
    [ -z "$price" ] || awk -v t="$time" -v p="$price" 'BEGIN { printf "    cost        $%.2f on one H200 at $%.2f per hour\n", t * p, p }'
  fi
  if [ -x ./train_gpt2_fp8 ] && data_ready; then "${train[@]}" "${options[@]}" --plan; fi
}

if [ -n "$dry_run" ]; then
  print_plan
  exit
fi
[ -n "$small" ] || [ "$gpus" -gt 0 ] || fail 6 "there is no GPU here (hint: --small runs every stage on the CPU)"
build
prepare
run_training
evaluate
export_model
write_report
print_result
