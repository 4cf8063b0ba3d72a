"""What the propagation of types starts from, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

from onnxfuse.ir.graph import Constant, Node, TensorType
from onnxfuse.ir.index import Index
from onnxfuse.load.dims import Names
from onnxfuse.load.infer import Claim, NodeInference
from onnxfuse.load.sequences import Around, Items, Results


@dataclass(frozen=True, slots=True)
class Setting:
    """What propagation starts from. `claimed` is ONNX inference of the whole model, `declared` the model's own word.

    `through` gives what is known of the results of a node with bodies, `inside` the types of results (by their names)
    that the function body of an operator without a row tells.
    """

    nodes: Sequence[Node]
    live: Container[str]  # names of the nodes that run whenever the model does
    inputs: Mapping[str, TensorType | None]
    constants: Mapping[str, Constant]
    opset: int
    claimed: Mapping[str, Claim]
    declared: Mapping[str, Claim]
    inference: NodeInference
    names: Names
    known: Mapping[str, tuple[Index, ...]] = field(default_factory=dict)  # elements of inputs, where they are known
    items: Items = field(default_factory=dict)  # of inputs
    through: Callable[[Node, Around], Results] = lambda node, around: Results()
    inside: Callable[[Node, Around], Mapping[str, TensorType]] = lambda node, around: {}


@dataclass(frozen=True, slots=True)
class Shapes:
    """A type (or None) for every value, what sequences hold, the known integers, and what they rest on.

    `contradicted`: by the names of dimensions the model runs at one size of a symbol at most. `facts` are at least 0 in
    every run in which the model succeeds; the types of `unproven` values are the model's own word; `warnings` are
    sentences about claims that contradict each other. `invalid` says by names of nodes what their operators do not
    allow in them.
    """

    types: Mapping[str, TensorType | None]
    items: Items
    known: Mapping[str, tuple[Index, ...]]
    facts: tuple[Index, ...]
    unproven: tuple[str, ...]
    warnings: tuple[str, ...]
    contradicted: bool
    invalid: Mapping[str, str]
