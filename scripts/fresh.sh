#!/usr/bin/env bash
# Runs make demo and make test as on a fresh machine: a new clone, an empty home, empty caches, and nothing on PATH
# but Python and make (with --compiler also g++). Prints how long each took; keeps the logs when one fails.
#
#   scripts/fresh.sh [--compiler] [TARGET...]      targets default to: demo test
#
# Clones what is committed. PYTHON names another interpreter (default: python3). Needs git and the network (pip).
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
tools=(awk cat cp dirname env find grep head ls make mkdir mktemp mv rm sed sh sleep bash touch uname)
if [[ ${1:-} == --compiler ]]; then
    shift
    tools+=(as c++ g++ ld)
fi
targets=("$@")
[[ ${#targets[@]} -gt 0 ]] || targets=(demo test)

place=$(mktemp -d "${TMPDIR:-/tmp}/onnxfuse-fresh.XXXXXX")
mkdir "$place/bin" "$place/home" "$place/tmp"
for tool in "${tools[@]}"; do
    found=$(command -v "$tool") || { echo "fresh: $tool not found" >&2; exit 2; }
    ln -s "$(readlink -f "$found")" "$place/bin/$tool"
done
# A wrapper, not a link: an interpreter finds its own files by the path it is started with.
python=$("${PYTHON:-python3}" -c 'import os, sys; print(os.path.realpath(sys.executable))')
printf '#!/bin/sh\nexec "%s" "$@"\n' "$python" >"$place/bin/python3"
chmod +x "$place/bin/python3"
git clone --quiet --no-hardlinks "$here" "$place/onnxfuse"

# What pip needs to reach a package index from here; nothing else of this environment gets in.
passed=()
while IFS= read -r name; do
    passed+=("$name=${!name}")
done < <(compgen -e | grep -E '^(PIP_|SSL_CERT|REQUESTS_CA|(http|https|no)_proxy$|(HTTP|HTTPS|NO)_PROXY$)' || true)

echo "fresh: $("$python" --version), $(git -C "$here" rev-parse --short HEAD), tools: ${tools[*]}"
failed=0
for target in "${targets[@]}"; do
    start=$(date +%s)
    verdict=ok
    env -i HOME="$place/home" TMPDIR="$place/tmp" PATH="$place/bin" LANG=C.UTF-8 "${passed[@]}" \
        make -C "$place/onnxfuse" --no-print-directory "$target" >"$place/$target.log" 2>&1 || { verdict=FAILED; failed=1; }
    printf 'fresh: make %-8s %5d s  %s\n' "$target" "$(($(date +%s) - start))" "$verdict"
    tail -n 3 "$place/$target.log" | sed 's/^/    /'
done
if [[ $failed == 0 ]]; then
    rm -rf "$place"
else
    echo "fresh: logs in $place" >&2
    exit 1
fi
