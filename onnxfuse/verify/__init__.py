"""Compares original and rewritten model numerically, in a child process: whole models, and fused nodes with bodies."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from onnxfuse.config import VERIFIER
from onnxfuse.errors import DeviceError, OnnxFuseError
from onnxfuse.runtime.attempts import persistent_child
from onnxfuse.runtime.folders import work_folder
from onnxfuse.runtime.provider import CPU, Provider
from onnxfuse.verify import compare
from onnxfuse.verify.verdicts import ModeVerdict, Verdict, verdict_on

_PROBE = "probe "  # what the note of a child begins with while it tries some kernels, whose names follow


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """One fused node against its function body; `ok` is None when the body does not run alone."""

    name: str
    op_type: str
    ok: bool | None
    error: float | None
    limit: float | None
    message: str = ""


def verify_models(
    a: str | Path,
    b: str | Path,
    *,
    library: str | Path | None = None,
    isas: Sequence[str] = (),
    inputs: str | Path | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    precision: str = "fp32",
    custom_libraries: Sequence[str | Path] = (),
    dims: Mapping[str, int] | None = None,
    reference: Path | None = None,
    time_limit: float | None = None,
    memory_limit: int | None = None,
    stop: threading.Event | None = None,
    provider: Provider = CPU,
) -> Verdict:
    """Run `a` and `b` on the same inputs, `b` with and without `library`, each with all optimizations and with none.

    With `library` it runs once for each of its `isas`, instruction sets that this machine has; where none is named, the
    library chooses.

    The limit of an output is ten times the largest distance among the original's own runs (all optimizations, none,
    inputs perturbed by one rounding), at least a floor by dtype and by the `precision` that weights of `b` were rounded
    to (see `compare.rounded`); `rtol` (relative L2) and `atol` (RMS) replace it.
    `inputs` is an .npz file or a test_data_set folder; without it they are random, of two sizes where symbols are not
    fixed by `dims`. `custom_libraries` are custom operators that both models need.

    In a quantized model one rounding can change a quantized value by one step, and later layers amplify that: outputs
    of the whole model say little about a kernel. If `a` quantizes and no tolerance is given, runs with kernels may
    differ as far as the original differs from itself under perturbations (`Verdict.informational`), and kernels are
    checked one by one with `verify_groups`; the model without kernels is held to the limit above.

    `provider` is where `b` runs: that of a GPU as `runtime.provider.gpu_provider` gives it. `a` runs on the CPU and in
    it, and the distance between the two counts among its own runs.

    If values differ, or none can be compared, and no tolerance is given, models that choose (TopK, NonMaxSuppression
    and their like) run again, cut there, with what `a` chooses given to both (`verify.choices`): that is the answer.

    `reference` is the file that `verify_reference` wrote for `a` with the same settings. Setting `stop` ends the run
    with DeviceError. Raises BudgetError when a limit is exceeded, UsageError and ModelError for unreadable files.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        return Verdict(None, None, None, None, message="onnxruntime is not installed")
    request = _request("models", library, isas, inputs, seed, dims, custom_libraries)
    request |= {"a": _whole(a), "b": _whole(b), "rounding": compare.ROUNDINGS[precision]}
    request["reference"] = None if reference is None else _whole(reference)
    request["provider"] = asdict(provider)
    with work_folder() as folder:
        notes = Path(folder, "notes")
        try:
            answer = _ask(request, notes, time_limit, memory_limit, stop)
        except DeviceError as problem:
            return _undone(problem, notes)
        verdict = verdict_on(answer, rtol, atol, precision)
        unclear = not verdict.ok and verdict.runs and all(run.ok or run.error is not None for run in verdict.runs)
        if unclear and rtol is None and atol is None and (cut := _cut(request, folder, time_limit, memory_limit)):
            answer = _ask(request | cut | {"reference": None}, notes, time_limit, memory_limit, stop)
            return replace(verdict_on(answer, precision=precision), loads=verdict.loads, chosen=True)
        return verdict


def _cut(
    request: Mapping[str, Any], folder: Path, time_limit: float | None, memory_limit: int | None
) -> dict[str, str]:
    """Files to be compared instead of those of a request: models cut where they choose; none where they do not."""
    asked = {key: request[key] for key in ("a", "b", "custom", "inputs", "seed", "dims")}
    with suppress(DeviceError):
        asked |= {"do": "choices", "out": str(folder)}
        return dict(_ask(asked, Path(folder, "choices"), time_limit, memory_limit))
    return {}


def verify_reference(
    a: str | Path,
    out: Path,
    *,
    inputs: str | Path | None = None,
    seed: int = 0,
    precision: str = "fp32",
    custom_libraries: Sequence[str | Path] = (),
    dims: Mapping[str, int] | None = None,
    time_limit: float | None = None,
    stop: threading.Event | None = None,
) -> Path | None:
    """Writes the outputs of `a` on the inputs that `verify_models` would choose to the file `out`, its `reference`.

    Returns None if that fails; `verify_models` without a reference gives the reason. Setting `stop` ends it that way.
    """
    request = _request("reference", None, (), inputs, seed, dims, custom_libraries)
    request = {key: request[key] for key in ("do", "custom", "inputs", "seed", "dims")}
    request |= {"a": _whole(a), "rounding": compare.ROUNDINGS[precision], "out": _whole(out)}
    with work_folder() as folder, suppress(OnnxFuseError):
        _ask(request, Path(folder, "notes"), time_limit, None, stop)
        return out
    return None


def verify_place(
    a: str | Path,
    provider: Provider,
    *,
    inputs: str | Path | None = None,
    seed: int = 0,
    custom_libraries: Sequence[str | Path] = (),
    dims: Mapping[str, int] | None = None,
    time_limit: float | None = None,
    memory_limit: int | None = None,
) -> str:
    """Why `a` does not run in a provider, on inputs that `verify_models` would choose; empty where it does.

    A process that dies there is such a reason. Raises BudgetError when a limit is exceeded.
    """
    request = _request("place", None, (), inputs, seed, dims, custom_libraries)
    request = {key: request[key] for key in ("do", "custom", "inputs", "seed", "dims")}
    request |= {"a": _whole(a), "provider": asdict(provider)}
    with work_folder() as folder:
        try:
            return str(_ask(request, Path(folder, "notes"), time_limit, memory_limit))
        except DeviceError as problem:
            return problem.message


def _request(
    do: str,
    library: str | Path | None,
    isas: Sequence[str],
    inputs: str | Path | None,
    seed: int,
    dims: Mapping[str, int] | None,
    custom: Sequence[str | Path],
) -> dict[str, Any]:
    return {
        "do": do,
        "library": None if library is None else _whole(library),
        "isas": list(isas) or [""],
        "custom": [_whole(each) for each in custom],
        "inputs": None if inputs is None else _whole(inputs),
        "seed": seed,
        "dims": dict(dims or {}),
    }


def _whole(path: str | Path) -> str:
    return str(Path(path).absolute())


def _ask(
    request: dict[str, Any],
    notes: Path,
    time_limit: float | None,
    memory_limit: int | None,
    stop: threading.Event | None = None,
) -> Any:
    return persistent_child(
        VERIFIER,
        request | {"notes": str(notes)},
        stage="verify",
        time_limit=time_limit,
        memory_limit=memory_limit,
        stop=stop,
    )


def _undone(problem: DeviceError, notes: Path) -> Verdict:
    """The verdict when the child died: negative if the model under test was running, else undecided."""
    doing = notes.read_text(encoding="utf-8") if notes.exists() else ""
    if not doing or doing.startswith("the original"):
        return Verdict(None, None, None, None, message=problem.message)
    run = ModeVerdict(doing, False, "", None, None, None, problem.message)
    return Verdict(False, None, None, None, (run,), message=f"{doing}: {problem.message}")


def verify_groups(
    model: str | Path,
    library: str | Path,
    inputs: str | Path | None = None,
    *,
    isas: Sequence[str] = (),
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    reductions: Mapping[str, int] | None = None,
    roundings: Mapping[str, float] | None = None,
    narrowed: Collection[str] = (),
    skip: Sequence[str] = (),
    custom_libraries: Sequence[str | Path] = (),
    time_limit: float | None = None,
    memory_limit: int | None = None,
    provider: Provider = CPU,
    reference: Path | None = None,
) -> tuple[GroupVerdict, ...]:
    """Run every fused node of `model` (domains `onnxfuse.*`) in `library` and as its function body, on captured inputs.

    Of several instruction sets (`isas` as for `verify_models`), a result is the one furthest from the body.
    `reductions` has the longest sum of each operator type, which determines its bound; the default is the largest
    extent of an input. `roundings` has the rounding errors of operands and results by operator type, `narrowed` the
    operator types whose values are stored in 16 bits instead of float32. `skip` names nodes that are left out. A kernel
    that crashes its process gives a result like others. Kernels run in the `provider`, bodies on the CPU. `reference`
    is the file that `verify_reference` wrote for the original: random inputs that told nothing of it are not tried.

    Raises DeviceError when the model does not run without the library, BudgetError when a limit is exceeded.
    """
    request = _request("groups", library, isas, inputs, seed, dims, custom_libraries)
    request |= {"model": _whole(model), "reductions": dict(reductions or {}), "roundings": dict(roundings or {})}
    request["narrowed"] = sorted(narrowed)
    request["provider"] = asdict(provider.ungraphed)
    request["reference"] = None if reference is None else _whole(reference)
    crashed: list[GroupVerdict] = []
    with work_folder() as folder:
        while True:
            notes = Path(folder, str(len(crashed)))
            try:
                left_out = [*skip, *(each.name for each in crashed)]
                answer = _ask(request | {"skip": left_out}, notes, time_limit, memory_limit)
            except DeviceError as problem:
                doing = notes.read_text(encoding="utf-8") if notes.exists() else ""
                if not doing.startswith("node "):
                    raise
                op_type, name = doing.removeprefix("node ").split(" ", 1)
                crashed.append(GroupVerdict(name, op_type, False, None, None, problem.message))
                continue
            return (*(GroupVerdict(**each) for each in answer), *crashed)


def verify_culprits(
    a: str | Path,
    b: str | Path,
    library: str | Path,
    verdict: Verdict,
    kernels: Sequence[str],
    inputs: str | Path | None = None,
    *,
    isas: Sequence[str] = (),
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    precision: str = "fp32",
    custom_libraries: Sequence[str | Path] = (),
    time_limit: float | None = None,
    memory_limit: int | None = None,
    provider: Provider = CPU,
) -> tuple[str, ...]:
    """Operator types, of `kernels`, without which `b` passes in the ways in which it failed by the `verdict`.

    They are found by bisection, kernels switched off in the session; a process that dies has tried one set too many.
    What is left out is the least only as far as halves tell. Raises DeviceError when `a` does not run, BudgetError when
    a limit is exceeded.
    """
    request = _request("culprits", library, isas, inputs, seed, dims, custom_libraries)
    request |= {"a": _whole(a), "b": _whole(b), "rounding": compare.ROUNDINGS[precision], "kernels": list(kernels)}
    request["limits"] = {"rtol": rtol, "atol": atol, "precision": precision}
    request["provider"] = asdict(provider)
    request["failed"] = [run.name.partition(": ")[0] for run in verdict.runs if not run.ok]
    crashed: list[list[str]] = []
    with work_folder() as folder:
        if verdict.chosen:
            request |= _cut(request, folder, time_limit, memory_limit)
        while True:
            notes = Path(folder, str(len(crashed)))
            try:
                return tuple(_ask(request | {"crashed": crashed}, notes, time_limit, memory_limit))
            except DeviceError:
                doing = notes.read_text(encoding="utf-8") if notes.exists() else ""
                if not doing.startswith(_PROBE):
                    raise
                crashed.append(doing.removeprefix(_PROBE).split())


def bisected(items: Sequence[str], passes: Callable[[Sequence[str]], bool], most: int = 400) -> list[str]:
    """As many of the items, which do not pass all together, as do pass together: by halves, in so many trials at most.

    >>> bisected(list("abcdefgh"), lambda used: "c" not in used and not {"a", "g"} <= set(used))
    ['a', 'b', 'd', 'e', 'f', 'h']
    """
    kept: list[str] = []
    pending = [list(items)]
    wrong = True  # the first one, without a trial
    for _ in range(most):
        if not pending:
            break
        part = pending.pop(0)
        if not wrong and passes([*kept, *part]):
            kept += part
        elif len(part) > 1:
            pending[:0] = [part[: len(part) // 2], part[len(part) // 2 :]]
        wrong = False
    return kept
