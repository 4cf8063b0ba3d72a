"""Original against rewritten model by numbers, in a child process: models, and each fused node against its body."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnxfuse.errors import DeviceError
from onnxfuse.runtime.attempts import persistent_child
from onnxfuse.runtime.folders import work_folder
from onnxfuse.runtime.memory import Load
from onnxfuse.verify import compare

_CHILD = "onnxfuse.verify.child"
_PROBE = "probe "  # what the note of a child begins with while it tries some kernels, whose names follow
WITH_LIBRARY = "with library"  # the names of runs with kernels begin so


@dataclass(frozen=True, slots=True)
class Run:
    """One way to run the model under test, and its output that is nearest its limit or furthest over it."""

    name: str  # such as "with library, all optimizations"
    ok: bool
    output: str
    error: float | None  # relative L2 error; share of unequal elements for integers; None when it did not run
    limit: float | None
    max_abs: float | None
    message: str = ""
    evaluator: str = ""  # what said what float64 makes of it, where error and limit are distances from that


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to "do both models compute the same?"; `ok` is None when the question could not be asked."""

    ok: bool | None
    max_error: float | None  # with its limit: of the output and run that are nearest the limit or furthest over it
    limit: float | None
    tolerance: float | None  # the smallest relative tolerance (L2) under which every float output passes
    runs: tuple[Run, ...] = ()
    unsteady: tuple[str, ...] = ()  # outputs that the original itself does not reproduce; not compared
    told: bool = False  # outputs behind kernels are told: of codes, kernels answer alone (`verify_groups`)
    inputs: int = 0  # how many sets of inputs were tried
    cached: bool = False  # the same bytes passed before; nothing was run
    message: str = ""
    loads: tuple[Load, ...] = ()  # the original, and the model under test in each way that was optimized

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON document."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class GroupResult:
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
    time_limit: float | None = None,
    memory_limit: int | None = None,
) -> Verdict:
    """Run `a` and `b` on the same inputs, `b` with and without `library`, each with all optimizations and with none.

    With `library` it runs once for each of its `isas`, instruction sets that this machine has; where none is named, the
    library chooses.

    The limit of an output is ten times the largest distance among the original's own runs (all optimizations, none,
    inputs moved by one rounding), at least a floor by type and by the `precision` that weights of `b` were rounded to
    (see `compare.rounded`); `rtol` (relative L2) and `atol` (RMS) replace it.
    `inputs` is an .npz file or a test_data_set folder; without it they are random, of two sizes where symbols are not
    fixed by `dims`. `custom_libraries` are what both models need anyway.

    One rounding can make a step of an integer code, and layers behind it more steps: what a quantized network gives is
    no measure of its kernels. Where `a` makes codes and no tolerance is given, runs with kernels are told, and held
    only to have something to do with the original; the model without kernels is held to the limit above all the same.

    Raises BudgetError when a limit is exceeded, UsageError and ModelError for what cannot be read.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        return Verdict(None, None, None, None, message="onnxruntime is not installed")
    request = _request("models", library, isas, inputs, seed, dims, custom_libraries)
    request |= {"a": _whole(a), "b": _whole(b), "rounding": compare.ROUNDINGS[precision]}
    with work_folder() as folder:
        notes = Path(folder, "notes")
        try:
            answer = _ask(request, notes, time_limit, memory_limit)
        except DeviceError as problem:
            return _undone(problem, notes)
    return judged(answer, rtol, atol, precision)


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


def _ask(request: dict[str, Any], notes: Path, time_limit: float | None, memory_limit: int | None) -> Any:
    request = request | {"notes": str(notes)}
    return persistent_child(_CHILD, request, stage="verify", time_limit=time_limit, memory_limit=memory_limit)


def _undone(problem: DeviceError, notes: Path) -> Verdict:
    """The child did not answer: the model under test is at fault when it was running, else nothing can be said."""
    doing = notes.read_text(encoding="utf-8") if notes.exists() else ""
    if not doing or doing.startswith("the original"):
        return Verdict(None, None, None, None, message=problem.message)
    run = Run(doing, False, "", None, None, None, problem.message)
    return Verdict(False, None, None, None, (run,), message=f"{doing}: {problem.message}")


def judged(
    measured: Mapping[str, Any], rtol: float | None = None, atol: float | None = None, precision: str = "fp32"
) -> Verdict:
    """The verdict on what `child.measure` measured."""
    if "problem" in measured:
        return _only_loaded(measured)
    floors = [max(measured["floor"], compare.rounded(precision, moved)) for moved in measured["moved"]]
    measured = {**measured, "floors": floors, "asked": rtol is not None or atol is not None}
    names: list[str] = measured["outputs"]
    own = [max(each, default=0.0) for each in measured["own"]]
    steady = [i for i in range(len(names)) if own[i] <= compare.STEADY]
    common = {"unsteady": tuple(n for i, n in enumerate(names) if i not in steady), "inputs": measured["sets"]}
    common["loads"] = tuple(Load(**each) for each in measured.get("loads", ()))
    if measured["coded"] and not measured["asked"]:
        return _told(measured, **common)
    runs = tuple(
        _judged_run(each, measured, steady, lambda found, i, own: _limit(found, i, own, measured, rtol, atol))
        for each in measured["runs"]
    )
    failed = [run for run in runs if not run.ok]
    if names and not steady and not any(run.error is None for run in failed):
        message = "the original does not reproduce its own outputs"
        return Verdict(None, None, None, None, runs, message=message, **common)
    compared = [run for run in runs if run.error is not None and run.limit is not None]
    worst = max(compared, key=lambda run: compare.excess(run.error or 0.0, run.limit or 0.0), default=None)
    return Verdict(
        ok=not failed,
        max_error=worst.error if worst else None,
        limit=worst.limit if worst else None,
        tolerance=_tolerance(measured, steady),
        runs=runs,
        message=f"{failed[0].name}: {failed[0].message}" if failed else "",
        **common,
    )


def _only_loaded(measured: Mapping[str, Any]) -> Verdict:
    """The verdict where the original does not run: what it does not say either is whether the other one loads."""
    runs = tuple(Run(r["name"], not r["message"], "", None, None, None, r["message"]) for r in measured["runs"])
    failed = [run for run in runs if not run.ok]
    if failed:
        return Verdict(False, None, None, None, runs, message=f"{failed[0].name}: {failed[0].message}")
    message = f"{measured['problem']}; the result was loaded with and without its library"
    return Verdict(None, None, None, None, runs, message=message)


def _told(measured: Mapping[str, Any], **common: Any) -> Verdict:
    """The verdict on a model of codes: its last run is the one without a library that is nearest to the original.

    All others may be as far from it as steps of codes drive them: twice as far as the original is driven from itself,
    by optimizations and by weights and inputs that are moved a little.
    """
    floats = [i for i, exact in enumerate(measured["exact"]) if not exact]
    every = range(len(measured["outputs"]))

    def near(found: compare.Distance, i: int, own: float) -> float:
        most = max(compare.UNRELATED, float(measured["floors"][i]))
        return min(most, compare.limit([own], measured["floors"][i], measured["exact"][i]))

    def wide(found: compare.Distance, i: int, own: float) -> float:
        return compare.coded_limit([own, measured["shaken"][i]], measured["floors"][i])

    runs = [
        _judged_run(run, measured, every, near)
        if run is measured["runs"][-1] and not run["name"].startswith(WITH_LIBRARY)
        else _judged_run(run, measured, floats, wide)
        for run in measured["runs"]
    ]
    worst = max((run for run in runs if run.error is not None), key=lambda run: run.error or 0.0, default=None)
    failed = [run for run in runs if not run.ok]
    message = f"{failed[0].name}: {failed[0].message}" if failed else ""
    error, limit = (worst.error, worst.limit) if worst else (None, None)
    return Verdict(not failed, error, limit, None, tuple(runs), message=message, told=True, **common)


def _judged_run(
    run: Mapping[str, Any],
    measured: Mapping[str, Any],
    outputs: Sequence[int],
    limit: Callable[[compare.Distance, int, float], float],
) -> Run:
    """A run by those of its outputs that are compared, each within its limit."""
    if run["message"]:
        return Run(run["name"], False, "", None, None, None, run["message"])
    found = [compare.Distance(**each) for each in run["largest" if measured["asked"] else "distances"]]
    limits = {i: limit(found[i], i, run["own"][i]) for i in outputs}
    if not limits:
        return Run(run["name"], True, "", None, None, None)
    errors = {i: found[i].error for i in limits}
    evaluator = ""
    over = [i for i in limits if errors[i] > limits[i] and not measured["exact"][i]]
    if over and run["true"] is not None and not measured["asked"]:
        evaluator = run["true"]["evaluator"]
        errors |= {i: run["true"]["errors"][i] for i in over}
        limits |= {i: max(limits[i], run["true"]["limits"][i]) for i in over}
    at = max(limits, key=lambda i: compare.excess(errors[i], limits[i]))
    ok = errors[at] <= limits[at]
    words = "" if ok else _words(measured, at, found[at], errors[at], limits[at])
    return Run(run["name"], ok, measured["outputs"][at], errors[at], limits[at], found[at].max_abs, words, evaluator)


def _words(measured: Mapping[str, Any], at: int, found: compare.Distance, error: float, limit: float) -> str:
    """What is wrong with an output, and on which inputs."""
    said = found.reason or f"error {error:.3g} above {limit:.3g}"
    return f"output {measured['outputs'][at]}: {said} on {measured['shapes'][found.at]} (seed {measured['seed']})"


def _limit(
    found: compare.Distance,
    output: int,
    own: float,
    measured: Mapping[str, Any],
    rtol: float | None,
    atol: float | None,
) -> float:
    exact = measured["exact"][output]
    if exact or (rtol is None and atol is None):
        return compare.limit([own], measured["floors"][output], exact)
    return (rtol or 0.0) + ((atol or 0.0) / found.rms if found.rms else 0.0)


def _tolerance(measured: Mapping[str, Any], steady: Sequence[int]) -> float | None:
    floats = [i for i in steady if not measured["exact"][i]]
    errors = [run["largest"][i]["error"] for run in measured["runs"] if run["largest"] for i in floats]
    return max(errors, default=None)


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
    held: Collection[str] = (),
    skip: Sequence[str] = (),
    custom_libraries: Sequence[str | Path] = (),
    time_limit: float | None = None,
    memory_limit: int | None = None,
) -> tuple[GroupResult, ...]:
    """Run every fused node of `model` (domains `onnxfuse.*`) in `library` and as its function body, on captured inputs.

    A result is that of the instruction set, of `isas` as `verify_models` takes them, that is furthest from the body.
    `reductions` tells the longest sum of each operator type, which sets its bound; else the largest extent of an input
    stands for it. `roundings` tells how far kernels of an operator type round what they multiply or make, `held` whose
    values of 16 bits stand for float32 ones, so that nothing more is rounded. `skip` names nodes that are left out. A
    kernel that brings its process down is a result like others.

    Raises DeviceError when the model does not run without the library, BudgetError when a limit is exceeded.
    """
    request = _request("groups", library, isas, inputs, seed, dims, custom_libraries)
    request |= {"model": _whole(model), "reductions": dict(reductions or {}), "roundings": dict(roundings or {})}
    request["held"] = sorted(held)
    crashed: list[GroupResult] = []
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
                crashed.append(GroupResult(name, op_type, False, None, None, problem.message))
                continue
            return (*(GroupResult(**each) for each in answer), *crashed)


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
) -> tuple[str, ...]:
    """Operator types, of `kernels`, without which `b` passes in the ways in which it failed by the `verdict`.

    They are found by bisection, kernels switched off in the session; a process that dies has tried one set too many.
    What is left out is the least only as far as halves tell. Raises DeviceError when `a` does not run, BudgetError when
    a limit is exceeded.
    """
    request = _request("culprits", library, isas, inputs, seed, dims, custom_libraries)
    request |= {"a": _whole(a), "b": _whole(b), "rounding": compare.ROUNDINGS[precision], "kernels": list(kernels)}
    request["limits"] = {"rtol": rtol, "atol": atol, "precision": precision}
    request["failed"] = [run.name.partition(": ")[0] for run in verdict.runs if not run.ok]
    crashed: list[list[str]] = []
    with work_folder() as folder:
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
