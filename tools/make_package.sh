#!/usr/bin/env bash
# Copies the programs of a build into a folder that runs wherever it lies (cmake/install.cmake says what is in it).
#
#   tools/make_package.sh BUILD_FOLDER package FOLDER    FOLDER/train_gpt2_fp8-VERSION-MACHINE.tar.zst
#   tools/make_package.sh BUILD_FOLDER install PREFIX    PREFIX/lib/train_gpt2_fp8/, and PREFIX/bin/train_gpt2_fp8, a link
set -euo pipefail
fail() { echo "error: $*" >&2; exit 2; }
[ $# = 3 ] || fail "wrong arguments (hint: tools/make_package.sh BUILD_FOLDER package|install FOLDER)"
build=$(realpath "$1")
[ -e "$build/package/name" ] || fail "no build in $1 (hint: make)"

# The Debian packages of the libraries that the programs link, CUDA's and our own excluded.
needed_packages() { # FOLDER
  local soname path
  objdump -p "$1/train_gpt2_fp8" "$1"/bin/* "$1"/lib/libgpt2*.so | sed -n 's/^ *NEEDED *//p' | sort -u | grep -vE '^lib(gpt2|cu|mpi|open-)' |
    while read -r soname; do
      path=$(ldd "$1"/bin/prepare_data "$1/lib/libgpt2.so" | sed -n "s|^\\s*$soname => \\(/[^ ]*\\).*|\\1|p" | head -n 1)
      [ -z "$path" ] || readlink -f "$path"
    done | sort -u | awk -F/ '{print "*" $(NF-1) "/" $NF}' | { xargs -r dpkg-query -S 2>/dev/null || :; } | cut -d: -f1 | sort -u | paste -sd ' '
}

install_into() { # FOLDER
  cmake --install "$build" --prefix "$1" >/dev/null
  local packages='(no dpkg on the machine that compiled it)' distribution
  distribution=$(. /etc/os-release && echo "$PRETTY_NAME") || distribution=unknown
  ! command -v dpkg-query >/dev/null || packages=$(needed_packages "$1")
  sed -i "s|%DISTRIBUTION%|$distribution|; s|%PACKAGES%|$packages|" "$1/README.md"
}

case $2 in
  package)
    name=$(<"$build/package/name")
    mkdir -p "$3"
    folder=$(realpath "$3")
    staging=$(mktemp -d "$folder/.package-XXXXXX")
    trap 'rm -rf "$staging"' EXIT
    install_into "$staging/$name"
    (cd "$staging" && cmake -E tar cf "$name.tar.zst" --zstd "$name")
    mv "$staging/$name.tar.zst" "$folder/"
    echo "package: $3/$name.tar.zst, $(du -h "$folder/$name.tar.zst" | cut -f1)B (tar xf unpacks it; needs zstd)"
    ;;
  install)
    folder=${DESTDIR:-}$3/lib/train_gpt2_fp8
    mkdir -p "$folder" "${DESTDIR:-}$3/bin"
    DESTDIR='' install_into "$(realpath "$folder")"
    ln -sfn ../lib/train_gpt2_fp8/train_gpt2_fp8 "${DESTDIR:-}$3/bin/train_gpt2_fp8"
    echo "install: $3/bin/train_gpt2_fp8, and the tools in $3/lib/train_gpt2_fp8/bin"
    ;;
  *) fail "unknown word '$2' (hint: package or install)" ;;
esac
