"""Runs of a session by IO binding: inputs and outputs lie at fixed addresses in the memory of its provider."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnxruntime as ort

from onnxfuse.runtime.provider import Provider

BEFORE_REPLAY = 3  # runs of a session with CUDA graphs until it replays: two ordinary ones, and the captured one
_UNCAPTURED = "-1"  # the number of a graph by which the runtime is told to run as usual


class Bound:
    """A session whose inputs and outputs are bound; a call runs it and waits until it has ended.

    `held` names outputs of the host's memory. The first run, which is no graph's, tells the shapes of outputs. Sets of
    inputs of one session that are bound at a time have a graph each, by its `number`. Exceptions are the runtime's.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        feeds: Mapping[str, ort.OrtValue],
        names: Sequence[str],
        provider: Provider,
        held: Collection[str] = (),
        number: int = 0,
    ) -> None:
        self._session = session
        self._binding = session.io_binding()
        for name, value in feeds.items():
            self._binding.bind_ortvalue_input(name, value)
        for name in names:
            self._binding.bind_output(name, "cpu" if name in held else provider.memory)
        first = _captured_as(_UNCAPTURED if provider.captures else "")
        self._options = _captured_as(str(number or "")) if provider.graph else first
        session.run_with_iobinding(self._binding, first)
        self.outputs: list[ort.OrtValue] = list(self._binding.get_outputs())
        for name, value in zip(names, self.outputs, strict=True):
            self._binding.bind_ortvalue_output(name, value)
        for _ in range(BEFORE_REPLAY if provider.graph else 0):
            self()

    def __call__(self) -> None:
        """One run."""
        self._session.run_with_iobinding(self._binding, self._options)


def _captured_as(graph: str) -> ort.RunOptions:
    """Options of runs that are captured as a graph of this number; as the usual one without."""
    made = ort.RunOptions()
    if graph:
        made.add_run_config_entry("gpu_graph_id", graph)
    return made
