"""Small models, at six sizes each, of every class of kernels that was once slower than the runtime's own nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import onnx

from models import convolutions, loops, recurrent
from models.borders import BORDERS

Size = int | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Class:
    """What builds the model at a size, and the sizes."""

    build: Callable[[Size], onnx.ModelProto]
    sizes: Sequence[Size]


def _all() -> dict[str, Class]:
    found = {name: Class(build, sizes) for name, (build, sizes) in convolutions.models().items()}  # type: ignore[arg-type]
    found |= {name: Class(row.build, row.sizes) for name, row in BORDERS.items()}  # type: ignore[arg-type]
    found |= {name: Class(build, sizes) for name, (build, sizes) in recurrent.models().items()}  # type: ignore[arg-type]
    bodies = {f"loop, {name}": partial(loops.model, name) for name in loops.BODIES}
    found |= {name: Class(build, loops.ELEMENTS) for name, build in bodies.items()}  # type: ignore[arg-type]
    return found | {"loop, weights carried": Class(loops.cell, loops.HIDDEN)}  # type: ignore[arg-type]


CLASSES: Mapping[str, Class] = _all()
