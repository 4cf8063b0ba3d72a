#!/usr/bin/env bash
# Checks what `--target cuda` makes on the GPU of this machine: kernels, networks in onnxruntime-gpu, times. Without
# network, unattended, in parts of at most ten minutes each; writes benchmarks/gpu/DATE.json.
#
#   scripts/gpu_check.sh [--emulated] [PART...]
#
# Parts: facts kernels models times bandwidth full compile sanitize (default: all of them, kernels twice and full
# three times). All but facts and sanitize go on from what RESULT has: run them until nothing is out of time.
# --emulated takes the emulator in place of a device, so that the script itself can be tried anywhere. PYTHON names the
# interpreter (default: .venv/bin/python, or python3), RESULT the file, EVERY takes one of so many kernels and networks,
# MODELS is a folder with packs of networks of full size (python -m benchmarks.gpu.networks.prepare), for full; WAYS says
# how they are run (graph plain nhwc stream).
# sanitize runs some kernels under compute-sanitizer, where that is installed. KEPT is a file of what was compiled and
# emulated beforehand (python -m benchmarks.gpu.cases.kept), WORKERS the number of processes that run kernels, UNTIL the
# seconds after which a part begins nothing new. PACK is a file of ONNX Runtime with its CUDA provider
# (python -m benchmarks.gpu.pack), for a machine that has none and no network.
set -euo pipefail
cd "$(dirname "$0")/.."
emulated=()
if [[ ${1:-} == --emulated ]]; then
    emulated=(--emulated)
    shift
fi
parts=("$@")
once=(facts kernels models times bandwidth full compile sanitize)
again=(facts kernels kernels models times bandwidth full full full compile sanitize)
[[ ${#parts[@]} -gt 0 || -z ${emulated[*]} ]] || parts=("${once[@]}")
[[ ${#parts[@]} -gt 0 ]] || parts=("${again[@]}")
default=.venv/bin/python
[[ -x $default ]] || default=python3
python=${PYTHON:-$default}
result=${RESULT:-benchmarks/gpu/$(date +%F)${emulated:+-emulated}.json}
every=${EVERY:-1}
given=("${emulated[@]}" --every "$every")
[[ -z ${MODELS:-} ]] || given+=(--models "$MODELS")
[[ -z ${WAYS:-} ]] || given+=(--ways $WAYS)
[[ -z ${UNTIL:-} ]] || given+=(--until "$UNTIL")
[[ -z ${WORKERS:-} ]] || given+=(--workers "$WORKERS")
if [[ -n ${PACK:-}${KEPT:-} ]]; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
fi
if [[ -n ${PACK:-} ]]; then
    mkdir "$site/pack"
    tar -xJf "$PACK" -C "$site/pack"
    export PYTHONPATH=$site/pack${PYTHONPATH:+:$PYTHONPATH}
fi
if [[ -n ${KEPT:-} ]]; then
    mkdir "$site/kept"
    tar -xJf "$KEPT" -C "$site/kept"
    given+=(--kept "$site/kept")
fi
failed=0
for part in "${parts[@]}"; do
    timeout 600 "$python" -m benchmarks.gpu.check "$result" "$part" "${given[@]}" || failed=1
done
echo "gpu_check: $result, $([[ $failed == 0 ]] && echo all right || echo FAILED)"
exit $failed
