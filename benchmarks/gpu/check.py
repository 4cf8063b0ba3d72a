"""Whether what `--target cuda` makes is right and fast on the GPU of this machine; scripts/gpu_check.sh runs all of it.

    python -m benchmarks.gpu.check RESULT.json PART [PART ...] [--emulated] [--every N] [--until SECONDS] [--ways graph]

| part | what it does |
| --- | --- |
| facts | says what there is: device, driver, compiler, runtime |
| kernels | runs the kernels of the tests' cases and compares them with float64 references, and with the emulator |
| models | builds small networks, runs them in the provider with and without graphs, compares; goes on where it ended |
| times | the same against the originals in turns, graphs on both sides and on none; goes on where it ended |
| bandwidth | kernels of rows and elements on tensors of 256 MB, as fractions of the copy's bandwidth; a boundary |
| full | networks of full size, float16 and float32, batch 1 and 8, as `times`; goes on where it ended |
| compile | torch.compile (max-autotune) on the same networks in float16; goes on where it ended |
| sanitize | some kernels of each table under compute-sanitizer: memcheck, racecheck, synccheck |

`--emulated` takes the emulator and the stand-in for the driver in place of a device; nothing is timed then. Each part
adds to the file. The exit code is 1 where something was wrong.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from benchmarks.gpu.bandwidth import bandwidth
from benchmarks.gpu.cases import workers
from benchmarks.gpu.cases.kept import Kept, cases, unpacked
from benchmarks.gpu.cases.sanitize import sanitize
from benchmarks.gpu.cases.workers import Setup, StartError, outcomes
from benchmarks.gpu.devices import Array, Cuda, Device, Emulated
from benchmarks.gpu.networks.full import compiled, error, fixed, full, prepared, ratio
from benchmarks.gpu.wish import WAYS, CheckRequest, Facts
from models.networks import network
from onnxfuse.build import nvrtc
from onnxfuse.pipeline.run import optimize
from onnxfuse.runtime.provider import gpu_provider
from onnxfuse.target.device import cuda_driver
from tests.threads import driver_mock
from tests.threads.scheduled import PER_UNIT, library_of

NETWORKS = (
    "tiny-bert", "tiny-gpt2", "tiny-mobilebert", "tiny-vit", "tiny-swin", "tiny-convnext", "tiny-segformer",
    "tiny-resnet", "tiny-mobilenet", "tiny-llama.dynamic",
)  # fmt: skip
FAULT = "GPU_CHECK_FAULT"  # in the environment: the case whose process ends there, to try what follows
LONGEST, COMPILING = 20.0, 600.0  # seconds of one case, and of one for which the emulator may have to be compiled
MOST_WORKERS = 10
MOST_LINES, FEW = 20, 5  # of what is wrong in the output, and of others
SHARE, APART = "largest_share_of_bound", "largest_difference_from_emulator"
LIMIT = 1e-3  # relative L2 of a network's output: products of the provider may round to 10 bits (TF32)


def facts(wish: CheckRequest) -> Facts:
    """What the figures of the other parts are of."""
    driver = cuda_driver()
    return {
        "device": wish.device.name,
        "target": wish.device.target.name,
        "driver": driver.version if driver is not None else None,
        "nvrtc": nvrtc.version() if nvrtc.libraries() else None,
        "onnxruntime": ort.__version__,
        "providers": ort.get_available_providers(),
        "onnxfuse": importlib.metadata.version("onnxfuse"),
        "ok": True,
    }


# kernels --------------------------------------------------------------------------------------------------------------


def kernels(wish: CheckRequest) -> Facts:
    """Every N-th kernel of all cases, on all their sizes; those that were right before are left out."""
    right, wrong = list(wish.known.get("right", [])), []
    shares: dict[str, list[float | None]] = dict(wish.known.get("shares", {}))
    seconds: dict[str, float] = {}
    known = {*right, *wish.known.get("without", [])}
    chosen = cases()[:: wish.every]
    todo = [c for c in chosen if c.name not in known]
    few = tuple(c.name for c in todo) if len(todo) <= PER_UNIT else ()
    setup = Setup(wish.emulated, few, None if wish.kept is None else str(wish.kept), fault=os.environ.get(FAULT))
    compiles = wish.emulated or wish.kept is None
    without, begun = list(wish.known.get("without", [])), 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # compilers of what the emulator runs, ahead of it
        units = [pool.submit(library_of, c) for c in todo[:: PER_UNIT // 2]] if compiles and not few else []
        try:
            most = COMPILING if compiles else LONGEST
            for each in outcomes(setup, [c.name for c in todo], wish.workers, most, lambda: wish.late):
                begun += 1
                seconds[each.case] = round(each.seconds, 2)
                match each.kind:
                    case workers.NONE:
                        without.append(each.case)
                    case workers.RIGHT:
                        right.append(each.case)
                        shares[each.case] = [_rounded(each.share), _rounded(each.apart)]
                    case _:
                        wrong.append({"case": each.case, "problem": each.problem, "kind": each.kind})
        except StartError as problem:
            wrong.append({"case": "", "problem": str(problem), "kind": "start"})
        for unit in units:
            unit.cancel()
    apart = [distance for _, distance in shares.values() if distance is not None]
    slowest = dict(sorted(seconds.items(), key=lambda item: -item[1])[:FEW])
    return {
        "ran": len(right) + len(wrong), "out_of_time": len(todo) - begun, "wrong": wrong,
        SHARE: max((share for share, _ in shares.values() if share is not None), default=0.0),
        APART: max(apart, default=0.0), "compared_with_emulator": len(apart), "without": without, "right": right,
        "shares": shares, "slowest": slowest, "ok": not wrong and bool(right),
    }  # fmt: skip


def _rounded(x: float | None) -> float | None:
    return None if x is None else float(f"{x:.3g}")


# networks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """A network as a file, inputs for it, and what the CPU makes of them."""

    folder: Path
    model: Path
    feeds: Mapping[str, Array]
    wanted: list[Array]


def _networks(wish: CheckRequest, known: Container[str]) -> Iterator[tuple[str, Made]]:
    """Small networks that are not known yet, as far as there is time for one that takes as long as the longest."""
    longest = 0.0
    for name in (n for n in NETWORKS[:: wish.every] if n not in known):
        begin = time.monotonic()
        if begin + longest > wish.until:
            return
        row = network(name)
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / f"{name}.onnx"
            onnx.save(fixed(row.build(), row.extents), path)
            feeds = row.sample()
            session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
            yield name, Made(Path(place), path, feeds, session.run(None, feeds))
        longest = max(longest, time.monotonic() - begin)


def models(wish: CheckRequest) -> Facts:
    """Outputs of fused networks: kernels of the library in the provider, with and without CUDA graphs."""
    found: dict[str, Facts] = {name: e for name, e in wish.known.get("networks", {}).items() if e["ok"]}
    for name, made in _networks(wish, {*found}):
        try:
            errors = _emulated_errors(made) if wish.emulated else _device_errors(made)
            found[name] = {"errors": errors, "ok": all(e <= LIMIT for e in errors.values())}
        except Exception as problem:
            found[name] = {"problem": str(problem)[:300], "ok": False}
    left = len(NETWORKS[:: wish.every]) - len(found)
    return {"networks": found, "out_of_time": left, "ok": bool(found) and all(each["ok"] for each in found.values())}


def _emulated_errors(made: Made) -> dict[str, float]:
    """The launcher runs over the stand-in for the driver, inside the CPU provider."""
    built = driver_mock.built_for_gpus(made.model, made.folder, ("sm_90",))
    np.savez(made.folder / "inputs.npz", **made.feeds)
    ran = driver_mock.ran(built, made.folder / "inputs.npz", made.folder, **driver_mock.ON_HOST)
    assert ran.status == "kernels for sm_90", ran.status
    assert any(call.startswith("launch") for call in ran.calls), "no kernel was launched"
    half = len(ran.outputs) // 2
    return {"first": error(ran.outputs[:half], made.wanted), "again": error(ran.outputs[half:], made.wanted)}


def _device_errors(made: Made) -> dict[str, float]:
    path, library = _fused(made)
    found = {}
    for graph in (False, True):
        _, outputs = prepared(path, library, made.feeds, gpu_provider("check", graph=graph))
        found["graph" if graph else "stream"] = error(outputs(), made.wanted)
    return found


def _fused(made: Made) -> tuple[Path, Path]:
    """The network built for this machine's GPU, and its library."""
    out = made.folder / "made.onnx"
    result = optimize(made.model, out, target="cuda", arch=("native",), overwrite=True)
    assert result.output.library is not None, "no kernel was made"
    return out, Path(result.output.library)


def times(wish: CheckRequest) -> Facts:
    """Networks against their originals in the same provider, in turns: graphs on both sides, or on none."""
    if wish.emulated:
        return {"skipped": "there is no device: nothing is timed", "ok": True}
    found: dict[str, Facts] = dict(wish.known.get("networks", {}))
    for name, made in _networks(wish, {*found}):
        path, library = _fused(made)
        found[name] = {}
        for graph in (False, True):
            provider = gpu_provider("check", graph=graph)
            sides = [prepared(*files, made.feeds, provider)[0] for files in ((made.model, None), (path, library))]
            of_turns, (before, after) = ratio(*sides)
            found[name]["graph" if graph else "stream"] = {"before_ms": before, "after_ms": after, "ratio": of_turns}
    return {"networks": found, "out_of_time": len(NETWORKS[:: wish.every]) - len(found), "ok": True}


# one file -------------------------------------------------------------------------------------------------------------

PARTS: Mapping[str, Callable[[CheckRequest], Facts]] = {
    "facts": facts, "kernels": kernels, "models": models, "times": times, "bandwidth": bandwidth, "full": full,
    "compile": compiled, "sanitize": sanitize,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run the parts, each of which adds to the file as soon as it ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--emulated", action="store_true", help="the emulator in place of a device")
    parser.add_argument("--every", type=int, default=1, help="take one of so many kernels and networks")
    parser.add_argument("--until", type=float, default=540.0, help="seconds after which a part begins nothing new")
    parser.add_argument("--models", type=Path, help="a folder with packs of networks of full size")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="of running them")
    parser.add_argument("--megabytes", type=float, default=256.0, help="of the tensors of bandwidth")
    parser.add_argument(
        "--kept", type=Path, help="file or folder of what was made beforehand (benchmarks.gpu.cases.kept)"
    )
    parser.add_argument("--workers", type=int, default=min(os.cpu_count() or 1, MOST_WORKERS), help="of kernels")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        if asked.kept is not None and asked.kept.is_file():
            asked.kept = unpacked(asked.kept, Path(folder)).folder
        return _main(asked)


def _main(asked: argparse.Namespace) -> int:
    device: Device = Emulated() if asked.emulated else Cuda(Kept(asked.kept).compiled)
    known: dict[str, Facts] = json.loads(asked.result.read_text()) if asked.result.exists() else {}
    for name in asked.parts:
        begin = time.monotonic()
        wish = CheckRequest(
            device, asked.emulated, asked.every, begin + asked.until, known.get(name, {}), asked.models,
            asked.ways, asked.megabytes, asked.kept, asked.workers,
        )  # fmt: skip
        found = PARTS[name](wish)
        known[name] = found | {"seconds": round(time.monotonic() - begin, 1)}
        asked.result.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(f"{name:8} {'ok' if found['ok'] else 'WRONG'} {_line(found)}\n")
        for line in _besides(found):
            sys.stdout.write(f"    {line}\n")
        sys.stdout.flush()
    return 0 if all(known[name]["ok"] for name in asked.parts) else 1


def _line(found: Facts) -> str:
    """The figures of a part in one line."""
    said = {key: value for key, value in found.items() if isinstance(value, int | float | str) and key != "ok"}
    said |= {f"{name}": each.get("errors", each) for name, each in found.get("networks", {}).items()}
    said |= {"wrong": len(found["wrong"])} if "wrong" in found else {}
    return ", ".join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in said.items()
    )


def _besides(found: Facts) -> Iterator[str]:
    """What is wrong, and how near to wrong the others are, in some lines."""
    for each in found.get("wrong", [])[:MOST_LINES]:
        yield f"{each['case']}: {each['problem'].splitlines()[0][:150]}"
    nearest = sorted(((share or 0.0, name) for name, (share, _) in found.get("shares", {}).items()), reverse=True)
    if nearest:
        yield "nearest to their bounds: " + ", ".join(f"{name} {share:.2g}" for share, name in nearest[:FEW])
    furthest = sorted(((apart or 0.0, name) for name, (_, apart) in found.get("shares", {}).items()), reverse=True)
    if furthest:
        yield "furthest from the emulator: " + ", ".join(f"{name} {apart:.2g}" for apart, name in furthest[:FEW])
    if found.get("slowest"):
        yield "slowest: " + ", ".join(f"{name} {seconds:.2g} s" for name, seconds in found["slowest"].items())
    for tool, facts in found.get("tools", {}).items():
        counts = ", ".join(
            f"{key} {len(facts[key])}" for key in ("kernels", "errors", "wrong", "unfinished", "not_run")
        )
        yield f"{tool}: {counts}, ended {facts['ended']}"
        said = {name: each["first"] for name, each in facts["errors"].items()} | facts["wrong"] | facts["unfinished"]
        yield from (f"  {name}: {text[:150]}" for name, text in [*said.items()][:FEW])


if __name__ == "__main__":
    sys.exit(main())
