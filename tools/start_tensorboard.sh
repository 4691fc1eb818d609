#!/usr/bin/env bash
# Starts TensorBoard on the runs in this folder; installs it if missing.
#
#   tools/start_tensorboard.sh [OPTION OF TENSORBOARD...]        default: --logdir runs
#
# Uses a tensorboard on PATH, else the one in .deps/venv, else installs it there (tools/install_deps.sh tensorboard).
set -euo pipefail
case "${1:-}" in
  -h | --help)
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit
    ;;
esac
root=$(dirname "$(dirname "$(readlink -f "$0")")")
own=$root/.deps/venv/bin/tensorboard

program=$(command -v tensorboard) || program=$own
if [ ! -x "$program" ]; then
  "$root/tools/install_deps.sh" tensorboard || true
  if [ ! -x "$program" ]; then
    echo "error: there is no tensorboard, and it cannot be installed (check the network, or pip install tensorboard yourself)" >&2
    exit 1
  fi
fi

for argument in "$@"; do
  case $argument in --logdir | --logdir=* | --logdir_spec | --logdir_spec=* | --help | -h | --version) exec "$program" "$@" ;; esac
done
exec "$program" --logdir runs "$@"
