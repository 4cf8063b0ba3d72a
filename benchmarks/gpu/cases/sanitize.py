"""Kernels under the tools of compute-sanitizer, several processes at once."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import chain, zip_longest
from pathlib import Path

from benchmarks.gpu.cases.workers import RIGHT, Setup
from benchmarks.gpu.wish import CheckRequest, Facts
from onnxfuse.ir.kernel import Kernel
from onnxfuse.render.cuda import device_text
from tests.kernels.compiled import Case
from tests.threads.scheduled import TABLES, kernel_of, name_of, scheduled

TOOLS = ("memcheck", "racecheck", "synccheck")
KERNELS = 40  # for each tool
PROCESSES = 4  # at once, of each tool
SECONDS = 60  # of one process
SAID = 4  # lines of an error that are kept
_SUMMARY = re.compile(r"(ERROR|RACECHECK|SYNCCHECK) SUMMARY: .*")


@dataclass
class Watched:
    """What a tool said of some cases: those that came to an end, how, and errors by case, with their first lines."""

    ended: dict[str, str] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)
    summaries: list[str] = field(default_factory=list)
    unfinished: dict[str, str] = field(default_factory=dict)


def sanitize(wish: CheckRequest) -> Facts:
    """Some kernels of each table under each tool; racecheck those alone that have shared memory."""
    program = sanitizer()
    if wish.emulated or program is None:
        return {"skipped": "no device, or no compute-sanitizer", "ok": True}
    with ThreadPoolExecutor(PROCESSES * len(TOOLS)) as pool:
        parts: dict[str, list[list[str]]] = {}
        for tool in TOOLS:
            shared = tool == "racecheck"
            names = [case.name for case in spread(max(KERNELS // wish.every, 1), in_shared if shared else is_kernel)]
            parts[tool] = [names[n::PROCESSES] for n in range(PROCESSES) if names[n::PROCESSES]]
        jobs = {tool: [pool.submit(_watched, program, tool, each, wish) for each in parts[tool]] for tool in TOOLS}
        found = {tool: _merged([job.result() for job in jobs[tool]]) for tool in TOOLS}
    facts = {tool: _facts(found[tool], [*chain(*parts[tool])]) for tool in TOOLS}
    clean = all(not each["errors"] and each["ended"] and not each["wrong"] for each in facts.values())
    return {"tools": facts, "ok": clean}


def sanitizer() -> str | None:
    """The program, where it is installed."""
    usual = sorted(Path("/usr/local").glob("cuda*/bin/compute-sanitizer"))
    return shutil.which("compute-sanitizer") or next(map(str, usual), None)


def is_kernel(case: Case) -> bool:
    """Whether a case has a kernel."""
    return isinstance(scheduled(case), Kernel)


def in_shared(case: Case) -> bool:
    """Whether threads of a case's kernel exchange values in shared memory."""
    if not is_kernel(case):
        return False
    kernel = kernel_of(case)
    asked = any(phase.launch is not None and phase.launch.shared.constant != 0 for phase in kernel.phases)
    return asked or "__shared__" in device_text(kernel, name_of(case))


def spread(count: int, wanted: Callable[[Case], bool]) -> list[Case]:
    """Cases from all tables in turns, evenly from each."""
    turns = chain(*zip_longest(*(_evenly(table) for table in TABLES.values())))
    found: list[Case] = []
    for case in turns:
        if len(found) == count:
            break
        if case is not None and wanted(case):
            found.append(case)
    return found


def _evenly(table: Sequence[Case]) -> Iterator[Case]:
    """All of a table, so that any first ones are far from each other."""
    steps = (step for step in (16, 4, 1) if step <= len(table) or step == 1)
    yield from dict.fromkeys(chain(*(table[::step] for step in steps)))


def _watched(program: str, tool: str, names: Sequence[str], wish: CheckRequest) -> Watched:
    """What a tool says of cases; another process goes on behind one in which the device was lost."""
    found, todo = Watched(), list(names)
    while todo:
        seconds = min(SECONDS, wish.until - time.monotonic())
        if seconds < 5:
            break
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "setup.json"
            setup = asdict(Setup(kept=None if wish.kept is None else str(wish.kept), compared=False))
            file.write_text(json.dumps(setup | {"names": todo}))
            command = ["timeout", "-k", "5", f"{seconds:.0f}", program, "--tool", tool, "--print-limit", "20"]
            command += [sys.executable, "-u", "-m", "benchmarks.gpu.cases.workers", str(file)]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            text = done.stdout.decode(errors="replace")
            late = done.returncode in (124, 137)
            why = f"not done in {seconds:.0f} s" if late else f"the process ended with {done.returncode}"
        begun = read(text, todo, found)
        left = [name for name in todo if name not in found.ended]
        if not left:
            break
        if not begun:  # it does not even start: the same would come again
            found.unfinished |= dict.fromkeys(left, f"{why}: {text[-300:]}")
            break
        last = begun[-1]
        if last in left:
            found.unfinished[last] = why
        todo = [name for name in left if name != last]
    return found


def read(text: str, names: Sequence[str], found: Watched) -> list[str]:
    """Add what the output of a tool says, and name the cases that were begun.

    An error is of the case whose function it names, or else of the one that was begun last.
    """
    begun: list[str] = []
    blocks: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        match line.split():
            case ["case", name] if name in names:
                begun.append(name)
            case ["ended", name, kind, *rest] if name in names:
                found.ended[name] = kind if kind == RIGHT else f"{kind} {' '.join(rest)}"
            case ["=========", *words] if words:
                if summary := _SUMMARY.search(line):
                    found.summaries.append(summary[0])
                elif words[0] != "COMPUTE-SANITIZER":
                    if not line.startswith("=========  "):  # what follows an error is indented
                        blocks.append((begun[-1] if begun else "", []))
                    if blocks:
                        blocks[-1][1].append(line.removeprefix("=========").strip())
    longest = sorted(names, key=len, reverse=True)
    for last, lines in blocks:
        whole = "\n".join(lines)
        of = next((name for name in longest if re.search(rf"\bgpu_{re.escape(name)}_\d+\b", whole)), last)
        found.errors.setdefault(of, []).append(" | ".join(lines[:SAID])[:300])
    return begun


def _merged(parts: Sequence[Watched]) -> Watched:
    whole = Watched()
    for part in parts:
        whole.ended |= part.ended
        whole.unfinished |= part.unfinished
        whole.summaries += part.summaries
        for name, errors in part.errors.items():
            whole.errors.setdefault(name, []).extend(errors)
    return whole


def _facts(found: Watched, names: Sequence[str]) -> Facts:
    errors = {name: {"count": len(said), "first": said[0]} for name, said in found.errors.items()}
    wrong = {name: kind for name, kind in found.ended.items() if kind != RIGHT}
    not_run = [name for name in names if name not in found.ended and name not in found.unfinished]
    return {
        "kernels": list(names), "ended": len(found.ended), "errors": errors, "wrong": wrong,
        "unfinished": found.unfinished, "not_run": not_run, "summaries": found.summaries,
    }  # fmt: skip
