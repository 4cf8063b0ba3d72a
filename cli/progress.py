"""Progress: the lines of the steps of `optimize`, and the current activity, on an updated line or in plain lines."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

from onnxfuse.errors import between, counted

from . import show
from .flags import OTHERS, SuggestingChoice, flag
from .show import Screen, bytes_text, milliseconds

MODES = ("auto", "plain", "none")
_MOVES, _REPEATS = 0.1, 5.0  # seconds between updates of the line on a terminal, and between plain lines
_SOON = 0.3  # seconds until the first plain line
_TURNING = "|/-\\"
_NAMES = {"build": "compile"}  # names of steps in messages

# The steps of `optimize` ----------------------------------------------------------------------------------------------


def _read(facts: Mapping[str, Any]) -> str:
    return f"{facts['path']}  opset {facts['opset']}, {counted(facts['nodes'], 'node')}, {bytes_text(facts['bytes'])}"


def _rewrite(facts: Mapping[str, Any]) -> str:
    rules = ", ".join(f"{rule} {count}" for rule, count in facts["rules"].items())
    return f"{facts['before']} -> {counted(facts['after'], 'node')}" + (f" ({rules})" if rules else "")


def _plan(facts: Mapping[str, Any]) -> str:
    made = f"{counted(facts['nodes'], 'node')} -> {counted(facts['kernels'], 'kernel')}"
    left = f"{made}; {counted(facts['left'], 'node')} left to ONNX Runtime"
    return left + (f"   (why: onnxfuse explain {facts['path']})" if facts["left"] else "")


def _compile(facts: Mapping[str, Any]) -> str:
    cached = f", {facts['cached']} from cache" if facts["cached"] else ""
    return f"{counted(facts['distinct'], 'distinct kernel')}{cached}, {facts['compiler']}, {facts['seconds']:.1f} s"


def _verify(facts: Mapping[str, Any]) -> str:
    if facts["ok"] is None:
        return f"not possible: {facts['message']}"
    sets = counted(facts["inputs"], "input")
    if facts["max_error"] is None:
        return f"{sets}: {facts['message'] or 'nothing to compare'}"
    alone = "; quantized: kernels are compared one by one" if facts["informational"] else ""
    sets += ", choices given as the original makes them" if facts["chosen"] else ""
    text = f"{sets}, max relative error {facts['max_error']:.1e} (limit {facts['limit']:.1e}{alone})"
    return f"{text}, as found before" if facts["cached"] else text


def _guide(facts: Mapping[str, Any]) -> str:
    count = facts["dropped"]
    slower = "is slower as a kernel and stays" if count == 1 else "are slower as kernels and stay"
    dropped = f"; {count} {slower} with ONNX Runtime" if count else ""
    return f"{counted(facts['measured'], 'area')} measured{dropped}"


def _gain(facts: Mapping[str, Any]) -> str:
    times = f"{milliseconds(facts['before_ms'])} -> {milliseconds(facts['after_ms'])} ms"
    bounds = between(facts["low"], facts["high"])
    quotient = facts["before_ms"] / facts["after_ms"] if facts["after_ms"] else 0.0
    other = "" if facts["low"] <= quotient <= facts["high"] else f"; these least times differ by {quotient:.2f}x"
    text = f"{times} ({facts['speedup']:.2f}x, 95 %: {bounds}, spread {facts['spread'] * 100:.1f} %{other})"
    text += ", on a busy machine" if facts["busy"] else ""
    return f"{text}, as measured before" if facts["cached"] else text


def _wrote(facts: Mapping[str, Any]) -> str:
    return "  ".join(facts["paths"])


LINES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "read": _read,
    "rewrite": _rewrite,
    "plan": _plan,
    "compile": _compile,
    "verify": _verify,
    "guide": _guide,
    "gain": _gain,
    "wrote": _wrote,
    "note": lambda facts: str(facts["text"]),
    "tune": lambda facts: f"{counted(facts['measured'], 'sample')} measured, {facts['left']} left of this plan",
}


def step_line(on: Screen, what: str, facts: Mapping[str, Any]) -> str:
    """The line of one step of `optimize`."""
    text = f"{what:<10}{LINES[what](facts)}"
    if what == "verify" and facts["ok"] is not None:
        verdict = on.styled("ok", "good") if facts["ok"] else on.styled("FAILED", "bad")
        text = f"{text}    {verdict}"
    return text


# What is under way ----------------------------------------------------------------------------------------------------


class Progress:
    """The current activity: `begin` names it, `part` counts. If `moves` is None, nothing is shown."""

    def __init__(self, on: Screen, moves: bool | None) -> None:
        self.on, self.moves = on, moves
        self._lock, self._end = threading.Lock(), threading.Event()
        self._what, self._count, self._since, self._turn = "start", "", time.monotonic(), 0
        self._thread = threading.Thread(target=self._repeat, daemon=True, name="onnxfuse-progress")

    def begin(self, what: str) -> None:
        """Start an activity; a terminal sees it at once, however short it is."""
        with self._lock:
            self._what, self._count, self._since = _NAMES.get(what, what), "", time.monotonic()
            if self.moves:
                self._show()

    def part(self, done: int, of: int) -> None:
        """Set how much of it is done."""
        with self._lock:
            self._count = f" {done}/{of}"

    def say(self, text: str) -> None:
        """Print a line; not with --quiet."""
        with self._lock:
            if self.moves:
                show.moving("")
            self.on.say(text)

    def hear(self, what: str, facts: Mapping[str, Any]) -> None:
        """Events of a build, without the lines of its steps."""
        if what == "begin":
            self.begin(str(facts["step"]))
        elif what == "part":
            self.part(int(facts["done"]), int(facts["of"]))

    def tell(self, what: str, facts: Mapping[str, Any]) -> None:
        """Events of `optimize`."""
        self.hear(what, facts)
        if what in LINES:
            self.say(step_line(self.on, what, facts))

    def start(self) -> None:
        """Start to show it."""
        if self.moves is not None:
            self._thread.start()

    def finish(self) -> None:
        """Stop to show it."""
        if self.moves is not None and not self._end.is_set():
            self._end.set()
            self._thread.join()
            if self.moves:
                show.moving("")

    def _repeat(self) -> None:
        pause = 0.0 if self.moves else _SOON
        while not self._end.wait(pause):
            pause = _MOVES if self.moves else _REPEATS
            with self._lock:
                self._show()

    def _show(self) -> None:
        seconds = int(time.monotonic() - self._since)
        text = f"{self._what}{self._count}" + (f", {seconds} s" if seconds else "")
        if not self.moves:
            self.on.say(f"{text} ...")
            return
        self._turn += 1
        turning = _TURNING[self._turn % len(_TURNING)]
        show.moving(f"{turning} {text}"[: shutil.get_terminal_size().columns - 1])


@contextmanager
def progress(on: Screen, mode: str = "auto") -> Iterator[Progress]:
    """A context that shows the current activity: `auto` only on terminals, as an updated line; `plain` in lines."""
    moves = None if on.quiet or mode == "none" else True if mode == "auto" and on.terminal else None
    moves = False if mode == "plain" and not on.quiet else moves
    made = Progress(on, moves)
    made.start()
    try:
        yield made
    finally:
        made.finish()


def progressing(verb: Callable[..., None]) -> Callable[..., None]:
    """Decorator for long-running verbs, which get the screen, and `at` to report progress."""

    @wraps(verb)
    def run(*, quiet: bool, verbose: bool, progress_mode: str, **values: Any) -> None:
        screen = show.screen(quiet=quiet, verbose=verbose)
        with progress(screen, progress_mode) as at:
            verb(screen=screen, at=at, **values)

    about = "show progress: on terminals in one updated line, as `plain` lines, or not at all"
    return flag(
        "progress", type=SuggestingChoice(MODES), default=MODES[0], param="progress_mode", help=about, section=OTHERS
    )(run)
