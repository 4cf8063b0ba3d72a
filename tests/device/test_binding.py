"""Which runs of a bound session are captured as CUDA graphs, and as which, over a session that is none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from onnxfuse.runtime.binding import BEFORE_REPLAY, Bound
from onnxfuse.runtime.provider import Provider

GRAPH = Provider("CUDAExecutionProvider", {"enable_cuda_graph": "1"}, "cpu", bound=True, graph=True)


@dataclass
class Session:
    """Notes the graphs that runs ask for; "": that of the session."""

    graphs: list[str] = field(default_factory=list)

    def io_binding(self) -> Session:
        return self

    def bind_ortvalue_input(self, name: str, value: Any) -> None: ...

    def bind_output(self, name: str, device: str) -> None: ...

    def bind_ortvalue_output(self, name: str, value: Any) -> None: ...

    def get_outputs(self) -> list[ort.OrtValue]:
        return [ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32))]

    def run_with_iobinding(self, binding: Session, options: ort.RunOptions) -> None:
        try:
            self.graphs.append(options.get_run_config_entry("gpu_graph_id"))
        except Exception:  # the runtime's error for an entry that does not exist
            self.graphs.append("")


@pytest.mark.parametrize(
    ("provider", "number", "first", "others"),
    [
        (GRAPH, 0, "-1", [""] * (BEFORE_REPLAY + 1)),
        (GRAPH, 2, "-1", ["2"] * (BEFORE_REPLAY + 1)),
        (GRAPH.uncaptured, 0, "-1", ["-1"]),
        (GRAPH.ungraphed, 0, "", [""]),
    ],
)
def test_runs_are_captured_where_they_are_to_be(provider: Provider, number: int, first: str, others: list[str]) -> None:
    """The first run never is: it tells the shapes of outputs."""
    session = Session()
    run = Bound(session, {}, ["y"], provider, number=number)
    run()
    assert session.graphs == [first, *others]
