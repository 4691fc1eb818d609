#!/usr/bin/env bash
# Training parity at full size, on a machine with a GPU.
#
#   run_gpu_parity.sh torch      our BF16 beside PyTorch: 300 steps of 262,144 tokens, every point from step 100 on
#                                within 0.02 nats, before that 0.06: two runs of our own, with the same seed but other
#                                plans, were up to 0.04 apart at step 50, around the peak of the learning rate
#   run_gpu_parity.sh fp8        FP8, with and without its LM head, beside BF16: 300 steps of 131,072 tokens, three
#                                seeds, the last points within 0.01 nats on average
#   run_gpu_parity.sh gradients  FP8's gradients beside BF16's after 100 steps
#   run_gpu_parity.sh long       3,000 steps of 32,768 tokens in FP8: no loss that is not finite, no skipped step
#
# usage: run_gpu_parity.sh MODE [PROGRAM_DIR] [DATA_DIR] [OUT]
#   PROGRAM_DIR  holds train_gpt2_fp8 (default: the root of the tree)
#   DATA_DIR     holds *train*.bin and *val*.bin, or the same .xz (default: data)
#   OUT          takes curves, plots and logs (default: runs/parity); runs whose curve is there already are not repeated
# environment: SEEDS="1 2 3", RUNS="bf16 fp8 fp8-bf16-head", PYTHON=python3, and for a rehearsal without a GPU
#   MODEL SEQ_LEN BATCH_SIZE TARGET_BATCH_SIZE STEPS WARMUP EVAL_FREQ EVAL_SEQUENCES TOLERANCE
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
[ $# -ge 1 ] || { sed -n '2,19s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mode=$1
programs=${2:-$root}
data=${3:-$root/data}
out=${4:-$root/runs/parity}
python=${PYTHON:-python3}
seeds=${SEEDS:-1 2 3}
model=${MODEL:-gpt2}
seq_len=${SEQ_LEN:-1024}

fail() { echo "run_gpu_parity.sh: $*" >&2; exit 2; }

# The last step is a checkpoint of 1.5 GB that nobody wants: in memory where there is room for it.
scratch_parent=${TMPDIR:-/tmp}
shm_gigabytes=$(df --output=avail -BG /dev/shm 2>/dev/null | tail -n 1 | tr -dc 0-9) || true
[ "${shm_gigabytes:-0}" -lt 16 ] || scratch_parent=/dev/shm
scratch=$(mktemp -d "$scratch_parent/gpt2_parity.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$out"

# The one shard of a kind, unpacked.
shard() {
  local file
  for file in "$data"/*"$1"*.bin; do [ -f "$file" ] && { echo "$file"; return; }; done
  for file in "$data"/*"$1"*.bin.xz; do
    [ -f "$file" ] || continue
    if command -v xz > /dev/null; then
      xz -dc "$file" > "$scratch/$1.bin"
    else
      "$python" -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer)' "$file" \
        > "$scratch/$1.bin"
    fi
    echo "$scratch/$1.bin"
    return
  done
  fail "no *$1*.bin or *$1*.bin.xz in $data"
}

# ours NAME FLAG...: one run of our program; its curve becomes OUT/NAME.jsonl once it has ended well.
ours() {
  local name=$1 begin=$SECONDS
  shift
  if [ -s "$out/$name.jsonl" ]; then
    echo "$name: $out/$name.jsonl is there already"
    return
  fi
  if ! "$programs/train_gpt2_fp8" --model "$model" --seq_len "$seq_len" --train_data "$train" --val_data "$val" \
      --max_lr 6e-4 --min_lr_ratio 0.1 --warmup_steps "${WARMUP:-30}" --eval_sequences "${EVAL_SEQUENCES:-256}" \
      --sample_tokens 0 --no-use_tensorboard --checkpoint_freq 0 --no-save_best \
      --run_name "$name" --log_dir "$scratch/runs" --checkpoint_dir "$scratch/checkpoints" "$@" > "$out/$name.log" 2>&1; then
    tail -n 20 "$out/$name.log" >&2
    fail "$name failed; its log is $out/$name.log"
  fi
  cp "$scratch/runs/$name/metrics.jsonl" "$out/$name.jsonl"
  rm -rf "$scratch/checkpoints"
  echo "$name: $((SECONDS - begin)) s, $(grep 'val loss' "$out/$name.log" | tail -n 1)"
}

compare_with_torch() {
  local batch=${BATCH_SIZE:-64} target=${TARGET_BATCH_SIZE:-256} steps=${STEPS:-300} freq=${EVAL_FREQ:-50} begin
  ours torch-ours --precision bf16 --seed 1337 --batch_size "$batch" --target_batch_size "$target" \
    --max_steps "$steps" --eval_freq "$freq" --eval_at_start
  begin=$SECONDS
  if [ ! -s "$out/torch.jsonl" ]; then
    "$python" "$here/train_torch.py" --model "$model" --seq_len "$seq_len" --train "$train" --val "$val" --max_lr 6e-4 \
      --min_lr_ratio 0.1 --warmup "${WARMUP:-30}" --eval_sequences "${EVAL_SEQUENCES:-256}" --seed 1337 \
      --batch_size "$batch" --target_batch_size "$target" --steps "$steps" --eval_every "$freq" \
      --out "$out/torch.part" > "$out/torch.log" 2>&1 || { tail -n 20 "$out/torch.log" >&2; fail "train_torch.py failed"; }
    mv "$out/torch.part" "$out/torch.jsonl"
  fi
  echo "torch: $((SECONDS - begin)) s, $(grep 'tok/s' "$out/torch.log" | tail -n 1)"
  "$python" "$here/compare_curves.py" "$out/torch.jsonl" "$out/torch-ours.jsonl" --names PyTorch ours \
    --tolerance "${TOLERANCE:-0.02}" --early 100 0.06 --svg "$out/torch.svg" --title "PyTorch and ours in BF16, $model"
}

flags_of() {
  case $1 in
    bf16) echo "--precision bf16" ;;
    fp8) echo "--precision fp8 --fp8_lm_head" ;;
    fp8-bf16-head) echo "--precision fp8 --no-fp8_lm_head" ;;
    *) fail "RUNS: '$1' is none of bf16, fp8, fp8-bf16-head" ;;
  esac
}

compare_fp8() {
  local seed run flags
  for seed in $seeds; do
    for run in ${RUNS:-bf16 fp8 fp8-bf16-head}; do
      flags=$(flags_of "$run")
      # shellcheck disable=SC2086 # flags are words
      ours "$run-seed$seed" $flags --seed "$seed" --batch_size "${BATCH_SIZE:-64}" \
        --target_batch_size "${TARGET_BATCH_SIZE:-128}" --max_steps "${STEPS:-300}" --eval_freq "${EVAL_FREQ:-100}"
    done
  done
  case " ${RUNS:-all} " in
    " all " | *" bf16 "*) ;;
    *) echo "nothing compared: RUNS names no bf16" ; return ;;
  esac
  local series=(--series BF16 "$out"/bf16-seed*.jsonl)
  ! compgen -G "$out/fp8-seed*.jsonl" > /dev/null || series+=(--series FP8 "$out"/fp8-seed*.jsonl)
  ! compgen -G "$out/fp8-bf16-head-seed*.jsonl" > /dev/null ||
    series+=(--series "FP8, BF16 LM head" "$out"/fp8-bf16-head-seed*.jsonl)
  "$python" "$here/compare_curves.py" "${series[@]}" --tolerance "${TOLERANCE:-0.01}" --svg "$out/fp8.svg" \
    --title "FP8 and BF16, $model"
}

train_long() {
  local steps=${STEPS:-3000}
  ours long-fp8 --precision fp8 --seed 1337 --batch_size "${BATCH_SIZE:-32}" \
    --target_batch_size "${TARGET_BATCH_SIZE:-32}" --max_steps "$steps" --eval_freq "${EVAL_FREQ:-1000}"
  "$python" - "$out/long-fp8.jsonl" "$steps" << 'END'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
steps = [line for line in lines if "loss" in line]
bad = [line for line in steps if line["loss"] is None or line["grad_norm"] is None or line["verdict"] != "applied"]
bad += [line for line in lines if "val_loss" in line and line["val_loss"] is None]
for line in bad[:10]:
    print("bad:", line)
complete = [line["step"] for line in steps] == list(range(1, int(sys.argv[2]) + 1))
ok = complete and not bad
print(f"{len(steps)} steps, {len(bad)} skipped or not finite, loss {steps[0]['loss']:.4f} to {steps[-1]['loss']:.4f}, "
      f"largest norm after the first 100 steps {max([s['grad_norm'] or 0 for s in steps[100:]], default=0):.2f}: "
      f"{'ok' if ok else 'FAILED'}")
sys.exit(0 if ok else 1)
END
}

compare_gradients() {
  local folder status=0
  for folder in "$programs" "$programs/tests/parity" "$programs/build/release/tests/parity"; do
    [ -x "$folder/gradient_cosine" ] || continue
    "$folder/gradient_cosine" "$train" --steps "${STEPS:-100}" | tee "$out/gradients.txt" || status=$?
    "$folder/gradient_cosine" "$train" --steps "${STEPS:-100}" --bf16_lm_head | tee "$out/gradients-bf16-head.txt" ||
      status=$?
    return $status
  done
  fail "gradient_cosine is not built in $programs; build the target of that name"
}

train=$(shard train)
val=$(shard val)
case $mode in
  torch) compare_with_torch ;;
  fp8) compare_fp8 ;;
  long) train_long ;;
  gradients) compare_gradients ;;
  *) fail "'$mode' is none of torch, fp8, gradients, long" ;;
esac
