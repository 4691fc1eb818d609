#!/usr/bin/env bash
# Real NCCL ranks against one: 2 and 4 of them on the GPUs there are (on one GPU they share it, slowly), started by mpirun
# and by torchrun, in BF16 and FP8, with ZeRO and without, with AdamW and with Muon.
#
#   run_ranks.sh PROGRAM        environment: RANKS="2 4", STEPS=20, KEEP=FOLDER keeps all output
#
# Losses must equal those of one rank up to what the order of sums does, which is measured first: one rank with the whole
# step as a micro-batch against one rank with a quarter of it. (At ten times this rate a flipped FP8 code has grown to 0.006 nats
# after 20 steps, in one rank as in many.) Exit status: 0, 1 something differs, 77 there is no GPU,
# NCCL or launcher here.
set -uo pipefail

program=$(realpath "${1:-build/release/train_gpt2_fp8}")
read -ra counts <<< "${RANKS:-2 4}"
steps=${STEPS:-20}
work=${KEEP:-$(mktemp -d)}
[ -n "${KEEP:-}" ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work" && cd "$work" || exit 2
failed=0

skip() { echo "skipped: $*"; exit 77; }
complain() { echo "FAILED: $*"; failed=$((failed + 1)); }

nvidia-smi -L > gpus 2>/dev/null && [ -s gpus ] || skip "no GPU"
gpus=$(wc -l < gpus)
share=() ; [ "$gpus" -ge "${counts[-1]}" ] || share=(--share_gpu)

common=(--device cuda --layers 4 --heads 4 --channels 256 --seq_len 256 --target_batch_size 32 --max_steps "$steps"
  --max_lr 3e-5 --warmup_steps 5 --eval_freq 10 --eval_sequences 50 --sample_tokens 0 --checkpoint_freq 0 --no-save_best
  --histogram_freq 10 --log_freq 1 --nccl_timeout 60 --plan_cache "$work/plans.txt")

# run NAME RANKS LAUNCHER FLAGS...: its output goes to NAME.out; the status is the launcher's
run() {
  local name=$1 ranks=$2 launcher=$3 start=()
  shift 3
  case $launcher in
    none) ;;
    mpirun) start=(mpirun --oversubscribe -np "$ranks") ; [ "$(id -u)" != 0 ] || start+=(--allow-run-as-root) ;;
    torchrun) start=(python3 -m torch.distributed.run --no-python "--nproc_per_node=$ranks" --rdzv_backend=c10d
      --rdzv_endpoint=localhost:0) ;;
    gpus) set -- "$@" --gpus "$ranks" ;;
  esac
  rm -rf "checkpoints_fp8/$name" "checkpoints_bf16/$name" # a new run cannot have a name that is taken
  timeout 180 "${start[@]}" "$program" "${common[@]}" --run_name "$name" "$@" "${share[@]}" > "$name.out" 2> "$name.err"
}

# difference A B: the largest |loss of A - loss of B| over steps and validations
difference() {
  paste <(grep -oE '^step +[0-9]+ \| (epoch.*loss|val loss): [0-9.]+' "$1.out" | grep -oE '[0-9.]+$') \
        <(grep -oE '^step +[0-9]+ \| (epoch.*loss|val loss): [0-9.]+' "$2.out" | grep -oE '[0-9.]+$') |
    awk -v want=$((steps + steps / 10)) 'NF == 2 { d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d; n++ }
      END { if (n != want) print "inf"; else printf "%.6f\n", most }'
}

moments() { grep -oE 'moments [0-9.]+ [MGK]B' "$1.out" | head -1 | cut -d' ' -f2-; }

printf '%-34s %10s %12s   %s\n' run difference "allowed" "moments per rank"
for precision in bf16 fp8; do
  run one-$precision 1 none --precision $precision --batch_size 32 || { cat one-$precision.err; skip "one rank does not train"; }
  run split-$precision 1 none --precision $precision --batch_size 8 || complain "split-$precision: $(cat split-$precision.err)"
  noise=$(difference one-$precision split-$precision)
  allowed=$(awk -v n="$noise" 'BEGIN { printf "%.6f", 3 * n + 0.0005 }')
  printf '%-34s %10s %12s   %s\n' "one rank, other micro-batches $precision" "$noise" "" "$(moments one-$precision)"
  for ranks in "${counts[@]}"; do
    for launcher in mpirun torchrun gpus; do
      [ $launcher != mpirun ] || command -v mpirun > /dev/null || { echo "no mpirun here"; continue; }
      [ $launcher != torchrun ] || python3 -c 'import torch.distributed.run' 2> /dev/null || { echo "no torchrun here"; continue; }
      for flags in "--zero 1" "--zero 1 --batch_size 4" "--zero 0" "--zero 1 --grad_reduce bf16" "--zero 1 --no-cuda_graph" "--zero 1 --fp8_recipe current" "--zero 1 --fp8_recipe current_grads" "--zero 1 --fp8_current_steps 5" "--zero 1 --fp8_bf16_steps 5"; do
        # each launcher once in each precision; the other flags by --gpus alone
        [ $launcher = gpus ] || [ "$flags" = "--zero 1" ] || continue
        [ $precision = fp8 ] || [[ $flags != *fp8_* ]] || continue # --batch_size 4: micro-batches that only fetch
        name=$precision-$ranks-$launcher-$(tr -d ' -' <<< "$flags")
        # shellcheck disable=SC2086
        if ! run "$name" "$ranks" $launcher --precision $precision --batch_size $((32 / ranks)) $flags; then
          complain "$name: $(tail -n 3 "$name.err")"
          continue
        fi
        reference=one-$precision
        if [[ $flags == *fp8_* ]]; then
          # shellcheck disable=SC2086
          run recipe 1 none --precision fp8 --batch_size 32 ${flags#--zero 1} || complain "${flags#--zero 1 } on one rank"
          reference=recipe
        fi
        found=$(difference "$name" $reference)
        limit=$allowed
        [[ $flags != *grad_reduce* ]] || limit=$(awk -v a="$allowed" 'BEGIN { print a + 0.005 }') # gradients of 8 bits
        printf '%-34s %10s %12s   %s\n' "$name" "$found" "$limit" "$(moments "$name")"
        awk -v f="$found" -v l="$limit" 'BEGIN { exit !(f <= l) }' || complain "$name: losses differ by $found"
      done
    done
  done
done

# ---- Muon: momentum on each rank's shard, whole matrices orthogonalized by their owners ----
# Rounding of sums moves small singular directions, which Muon lifts: its own noise is measured, as above.
for precision in bf16 fp8; do
  muon=(--optimizer muon --adamw_lr 3e-5 --precision $precision)
  run muon-one-$precision 1 none "${muon[@]}" --batch_size 32 || { complain "muon-one-$precision: $(tail -n 3 muon-one-$precision.err)"; continue; }
  run muon-split-$precision 1 none "${muon[@]}" --batch_size 8 || complain "muon-split-$precision: $(tail -n 3 muon-split-$precision.err)"
  noise=$(difference muon-one-$precision muon-split-$precision)
  allowed=$(awk -v n="$noise" 'BEGIN { printf "%.6f", 3 * n + 0.0005 }')
  printf '%-34s %10s %12s   %s\n' "Muon, other micro-batches $precision" "$noise" "" "$(moments muon-one-$precision)"
  for ranks in "${counts[@]}"; do
    for zero in 1 0; do
      name=muon-$precision-$ranks-zero$zero
      if ! run "$name" "$ranks" gpus "${muon[@]}" --batch_size $((32 / ranks)) --zero $zero; then
        complain "$name: $(tail -n 3 "$name.err")"
        continue
      fi
      found=$(difference "$name" muon-one-$precision)
      printf '%-34s %10s %12s   %s\n' "$name" "$found" "$allowed" "$(moments "$name")"
      awk -v f="$found" -v l="$allowed" 'BEGIN { exit !(f <= l) }' || complain "$name: losses differ by $found"
    done
  done
done

# ---- saved by 4, resumed by 2 and by 1 ----
run saved 4 gpus --precision fp8 --batch_size 8 --checkpoint_freq 10 || complain "saved: $(tail -n 2 saved.err)"
for ranks in 4 2 1; do
  rm -rf "checkpoints_fp8/again$ranks" && mkdir -p "checkpoints_fp8/again$ranks"
  cp -r checkpoints_fp8/saved/step_00000010 "checkpoints_fp8/again$ranks/"
  start=() ; [ $ranks = 1 ] || start=(--gpus $ranks)
  timeout 120 "$program" --resume "checkpoints_fp8/again$ranks/step_00000010" --run_name again$ranks "${start[@]}" "${share[@]}" \
    > again$ranks.out 2> again$ranks.err || complain "resume on $ranks: $(tail -n 2 again$ranks.err)"
  last=$(grep -oE "^step +$steps \| epoch.*loss: [0-9.]+" again$ranks.out | grep -oE '[0-9.]+$')
  wanted=$(grep -oE "^step +$steps \| epoch.*loss: [0-9.]+" saved.out | grep -oE '[0-9.]+$')
  echo "saved by 4 ranks, resumed by $ranks: last loss ${last:-none}, without the stop $wanted"
  if [ $ranks = 4 ]; then
    [ "$last" = "$wanted" ] || complain "4 ranks do not go on bit for bit: $last, not $wanted"
  else
    awk -v a="${last:-0}" -v b="$wanted" 'BEGIN { d = a - b; exit !(d < 0.01 && d > -0.01) }' || complain "resume on $ranks: $last"
  fi
done

# ---- a killed rank ----
for launcher in gpus mpirun; do
  [ $launcher != mpirun ] || command -v mpirun > /dev/null || continue
  run killed-$launcher 2 $launcher --precision fp8 --batch_size 16 --max_steps 1000000 --eval_freq 0 &
  waiting=$!
  for _ in $(seq 600); do grep -q '^step' killed-$launcher.out 2> /dev/null && break; sleep 0.1; done
  victim=$(pgrep -f "run_name killed-$launcher" | while read -r p; do
    tr '\0' '\n' < "/proc/$p/environ" 2> /dev/null | grep -qE '^(GPT2_RANK|OMPI_COMM_WORLD_RANK)=1$' && echo "$p"; done | head -1)
  begin=$SECONDS
  kill -9 "$victim"
  wait $waiting
  status=$?
  echo "rank 1 killed ($launcher): ended with $status after $((SECONDS - begin)) s: $(grep -m1 '^error' killed-$launcher.err)"
  grep -q 'error: rank 1 .*died' killed-$launcher.err || complain "killed ($launcher): the dead rank is not named"
  [ $launcher != gpus ] || [ $status = 7 ] || complain "killed: exit $status, not 7"
  [ $((SECONDS - begin)) -le 12 ] || complain "killed ($launcher): took $((SECONDS - begin)) s"
  sleep 1
  ! pgrep -f "run_name killed-$launcher" > /dev/null || complain "killed ($launcher): processes are left"
done

[ $failed = 0 ] && echo "all as with one rank" || echo "$failed failed"
[ $failed = 0 ]
