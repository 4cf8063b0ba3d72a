"""Standard operators without a row: what they do that no kernel does, and whether anything changes that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from onnxfuse.ir.graph import Decision, Node

Why = tuple[str, str, str]  # code, reason, unlock

FLOATS = "Cast to float32 in front of it, and back"
INVALID = "correct the call: ONNX Runtime refuses it too"
OLDEST = 7  # the first opset whose broadcasting is that of NumPy
READ = ("Shape", "Size")  # operators of which only what they read of a shape is used
_SHAPE: Why = ("E-COST", "only reads a shape, which costs ONNX Runtime nothing", "none needed")
_HOLDS: Why = ("E-SUBGRAPH", "contains subgraphs, which are fused separately", "none needed")
_HELD: Why = ("E-DTYPE", "holds strings or a sparse tensor", "none needed: ONNX Runtime reads it once")
_RANDOM: Why = ("E-RANDOM", "draws random numbers", "none: a kernel gives the same values each time")
_COUNTS: Why = (
    "E-NO-KERNEL",
    "makes a result whose size depends on values",
    "none: the size of what a kernel makes follows from the sizes of its inputs",
)
_SEQUENCE: Why = ("E-NO-KERNEL", "works on sequences or optionals", "none: kernels take tensors only")
_STRINGS: Why = ("E-DTYPE", "works on strings", "none: kernels take numbers only")
_PLAIN: Why = ("E-NO-KERNEL", "has no definition in onnxfuse", "none: ONNX Runtime's own kernel runs")

_RANDOMS = "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike"
_SEQUENCES = (
    "ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct SequenceEmpty "
    "SequenceErase SequenceInsert SequenceLength SplitToSequence"
)
_TEXTS = "ImageDecoder RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer"
_OTHERS = "BitCast DFT DeformConv Det MaxRoiPool MaxUnpool MelWeightMatrix STFT Scatter TensorScatter TopK"
ABSENT: dict[str, Why] = {
    op: why
    for ops, why in (
        *((op, _SHAPE) for op in READ),
        ("If Loop Scan SequenceMap", _HOLDS),
        ("Constant", _HELD),
        (_RANDOMS, _RANDOM),
        ("Compress NonMaxSuppression NonZero Unique", _COUNTS),
        (_SEQUENCES, _SEQUENCE),
        (_TEXTS, _STRINGS),
        (_OTHERS, _PLAIN),
    )
    for op in ops.split()
}
# Operators that ONNX defines by a function of others, which is read where the types of their inputs are known.
_FUNCTIONS = (
    "AffineGrid Attention BlackmanWindow CausalConvWithState HammingWindow HannWindow LinearAttention "
    "NegativeLogLikelihoodLoss RotaryEmbedding SoftmaxCrossEntropyLoss SwiGLU"
)
BY_FUNCTION = frozenset(_FUNCTIONS.split())


def absent(node: Node, opset: int, versions: Sequence[tuple[int, int]], rows: Iterable[str]) -> Decision:
    """The refusal of a node of the default domain that no row serves.

    `versions` are the first and last opsets of rows that it has in others; `rows` are the operators with rows.
    """
    about = (node.name,)
    if not opset:
        newer = f"an opset from {OLDEST} to the newest that the installed onnx knows"
        return Decision("E-NO-KERNEL", about, f"{node.op}: operators of the model's opset have no definitions", newer)
    later = min((since for since, _ in versions if since > opset), default=0)
    if later or versions:
        unlock = f"an opset of {later} or newer" if later else f"none: opset {opset} has no {node.op}"
        return Decision("E-NO-KERNEL", about, f"{node.op} of opset {opset} is not supported", unlock)
    if node.op in ABSENT:
        code, reason, unlock = ABSENT[node.op]
        return Decision(code, about, f"{node.op} {reason}", unlock)
    if node.op in BY_FUNCTION:
        said = f"{node.op} is a function of other operators, which is not known for these inputs"
        return Decision("E-SHAPE-UNKNOWN", about, said, "give --input-shape")
    names = ", ".join(get_close_matches(node.op, rows, 3))
    said = f"ONNX has no operator {node.op}" + f" (similar: {names})" * bool(names)
    return Decision("E-NO-KERNEL", about, said, "correct its name" if names else "none: it is not known")
