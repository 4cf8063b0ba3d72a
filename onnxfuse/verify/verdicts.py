"""Verdicts: whether the distances measured between two models are within their limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from onnxfuse.runtime.memory import LoadCost
from onnxfuse.verify import compare

ORIGINAL = "original"  # name of its entry among the costs of loading
_UNREPRODUCED = "the original does not reproduce its own outputs"


@dataclass(frozen=True, slots=True)
class ModeVerdict:
    """A run of the model under test in one mode, and its output with the largest ratio of error to limit."""

    name: str  # such as "with library, all optimizations"
    ok: bool
    output: str
    error: float | None  # relative L2 error; share of unequal elements for integers; None when it did not run
    limit: float | None
    max_abs: float | None
    message: str = ""
    evaluator: str = ""  # the float64 evaluator, if error and limit are distances from its outputs
    with_library: bool = False  # whether kernels ran


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to "do both models compute the same?"; `ok` is None when the question could not be asked."""

    ok: bool | None
    max_error: float | None  # of the output and run with the largest ratio of error to limit
    limit: float | None
    tolerance: float | None  # the smallest relative tolerance (L2) under which every float output passes
    runs: tuple[ModeVerdict, ...] = ()
    unsteady: tuple[str, ...] = ()  # outputs that the original does not reproduce itself; not compared
    informational: bool = (
        False  # the model is quantized: output differences are informational, `verify_groups` checks kernels
    )
    chosen: bool = False  # what the original chooses was given to both: outputs are those of models cut there
    inputs: int = 0  # how many sets of inputs were tried
    cached: bool = False  # the same bytes passed before; nothing was run
    message: str = ""
    loads: tuple[LoadCost, ...] = ()  # of the original, and of the model under test in each optimized run mode

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON document."""
        return asdict(self)


def verdict_on(
    measured: Mapping[str, Any], rtol: float | None = None, atol: float | None = None, precision: str = "fp32"
) -> Verdict:
    """The verdict on the result of `child.measure`; `rtol` (relative L2) and `atol` (RMS) replace computed limits."""
    if "problem" in measured:
        return _only_loaded(measured)
    floors = [max(measured["floor"], compare.rounded(precision, each)) for each in measured["sensitivity"]]
    measured = {**measured, "floors": floors, "asked": rtol is not None or atol is not None}
    names: list[str] = measured["outputs"]
    own = [max(each, default=0.0) for each in measured["own"]]
    reproduced = [i for i in range(len(names)) if own[i] <= compare.REPRODUCED]
    common: dict[str, Any] = {"inputs": measured["sets"]}
    common["loads"] = tuple(LoadCost(**each) for each in measured.get("loads", ()))
    if measured["quantized"] and not measured["asked"]:
        return _quantized_verdict(measured, **common)
    common["unsteady"] = tuple(n for i, n in enumerate(names) if i not in reproduced)
    runs = tuple(
        _checked_run(each, measured, reproduced, lambda found, i, own: _limit(found, i, own, measured, rtol, atol))
        for each in measured["runs"]
    )
    failed = [run for run in runs if not run.ok]
    if names and not reproduced and not any(run.error is None for run in failed):
        return Verdict(None, None, None, None, runs, message=_UNREPRODUCED, **common)
    compared = [run for run in runs if run.error is not None and run.limit is not None]
    worst = max(compared, key=lambda run: compare.excess(run.error or 0.0, run.limit or 0.0), default=None)
    return Verdict(
        ok=not failed,
        max_error=worst.error if worst else None,
        limit=worst.limit if worst else None,
        tolerance=_tolerance(measured, reproduced),
        runs=runs,
        message=f"{failed[0].name}: {failed[0].message}" if failed else "",
        **common,
    )


def _only_loaded(measured: Mapping[str, Any]) -> Verdict:
    """The verdict if the original does not run: undecided, or negative if the other model does not even load."""
    runs = tuple(_unmeasured(r, ok=not r["message"]) for r in measured["runs"])
    failed = [run for run in runs if not run.ok]
    if failed:
        return Verdict(False, None, None, None, runs, message=f"{failed[0].name}: {failed[0].message}")
    message = f"{measured['problem']}; the result was loaded with and without its library"
    return Verdict(None, None, None, None, runs, message=message)


def _quantized_verdict(measured: Mapping[str, Any], **common: Any) -> Verdict:
    """The verdict on a quantized model: its `like_reference` run, if there is one, is held to the usual limits.

    Other runs may differ from the original by twice what optimizations and perturbed weights and inputs change it. An
    output whose shape differs among those runs, such as a length computed from quantized values, is not compared.
    """
    perturbed = measured["perturbed"]
    widest = [max(far, *measured["own"][i], 0.0) for i, far in enumerate(perturbed)]
    comparable = [i for i, far in enumerate(widest) if far < math.inf]
    floats = [i for i in comparable if not measured["exact"][i]]
    common["unsteady"] = tuple(name for i, name in enumerate(measured["outputs"]) if i not in comparable)

    def near(found: compare.Distance, i: int, own: float) -> float:
        most = max(compare.UNRELATED, float(measured["floors"][i]))
        return min(most, compare.limit([own], measured["floors"][i], measured["exact"][i]))

    def wide(found: compare.Distance, i: int, own: float) -> float:
        return compare.quantized_limit([own, perturbed[i]], measured["floors"][i])

    runs = [
        _checked_run(run, measured, comparable, near)
        if run["like_reference"]
        else _checked_run(run, measured, floats, wide)
        for run in measured["runs"]
    ]
    worst = max((run for run in runs if run.error is not None), key=lambda run: run.error or 0.0, default=None)
    failed = [run for run in runs if not run.ok]
    if measured["outputs"] and not comparable and not failed:
        return Verdict(None, None, None, None, tuple(runs), message=_UNREPRODUCED, informational=True, **common)
    message = f"{failed[0].name}: {failed[0].message}" if failed else ""
    error, limit = (worst.error, worst.limit) if worst else (None, None)
    return Verdict(not failed, error, limit, None, tuple(runs), message=message, informational=True, **common)


def _checked_run(
    run: Mapping[str, Any],
    measured: Mapping[str, Any],
    outputs: Sequence[int],
    limit: Callable[[compare.Distance, int, float], float],
) -> ModeVerdict:
    """A run, with each of the compared outputs checked against its limit."""
    if run["message"]:
        return _unmeasured(run, ok=False)
    found = [compare.Distance(**each) for each in run["largest" if measured["asked"] else "distances"]]
    limits = {i: limit(found[i], i, run["own"][i]) for i in outputs}
    if not limits:
        return _unmeasured(run, ok=True)
    errors = {i: found[i].error for i in limits}
    evaluator = ""
    over = [i for i in limits if errors[i] > limits[i] and not measured["exact"][i]]
    if over and run["true"] is not None and not measured["asked"]:
        evaluator = run["true"]["evaluator"]
        errors |= {i: run["true"]["errors"][i] for i in over}
        limits |= {i: max(limits[i], run["true"]["limits"][i]) for i in over}
    at = max(limits, key=lambda i: compare.excess(errors[i], limits[i]))
    ok = errors[at] <= limits[at]
    words = "" if ok else _message(measured, at, found[at], errors[at], limits[at])
    return ModeVerdict(
        run["name"],
        ok,
        measured["outputs"][at],
        errors[at],
        limits[at],
        found[at].max_abs,
        words,
        evaluator,
        with_library=run["with_library"],
    )


def _unmeasured(run: Mapping[str, Any], *, ok: bool) -> ModeVerdict:
    """The verdict on a run without an output to compare."""
    return ModeVerdict(run["name"], ok, "", None, None, None, run["message"], with_library=run["with_library"])


def _message(measured: Mapping[str, Any], at: int, found: compare.Distance, error: float, limit: float) -> str:
    """The message about an output over its limit, with the inputs on which it was found."""
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


def _tolerance(measured: Mapping[str, Any], reproduced: Sequence[int]) -> float | None:
    floats = [i for i in reproduced if not measured["exact"][i]]
    errors = [run["largest"][i]["error"] for run in measured["runs"] if run["largest"] for i in floats]
    return max(errors, default=None)
