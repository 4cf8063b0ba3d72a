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
# MODELS is a folder with the networks of full size (NAME.onnx in float32), where models/ cannot build them.
# sanitize runs some kernels under compute-sanitizer, where that is installed. PACK is a file of ONNX Runtime with its CUDA
# provider (python -m benchmarks.gpu.pack), for a machine that has none and no network.
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
if [[ -n ${PACK:-} ]]; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    tar -xJf "$PACK" -C "$site"
    export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
fi
failed=0
for part in "${parts[@]}"; do
    if [[ $part == sanitize ]]; then
        if [[ -n ${emulated[*]} ]] || ! command -v compute-sanitizer >/dev/null; then
            echo "sanitize skipped: no device, or no compute-sanitizer"
            continue
        fi
        timeout 600 compute-sanitizer --error-exitcode 1 "$python" -m benchmarks.gpu.check "$result.sanitized" kernels \
            --every $((16 * every)) || failed=1
    else
        timeout 600 "$python" -m benchmarks.gpu.check "$result" "$part" "${given[@]}" || failed=1
    fi
done
echo "gpu_check: $result, $([[ $failed == 0 ]] && echo all right || echo FAILED)"
exit $failed
