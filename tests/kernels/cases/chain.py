"""Cases of consecutive contractions: full and partial tiles, residuals, images, windows and normalizations between."""

from __future__ import annotations

from itertools import pairwise

from onnxfuse.ir.graph import Graph
from tests.kernels.cases.contraction import scaled
from tests.kernels.compiled import Case
from tests.rules.build import Build


def mlp(
    rows: tuple[int | str, ...], *widths: int, act: str = "Relu", residual: bool = False, also: bool = False
) -> Graph:
    """Products with weights of these widths behind each other, an activation after each but the last."""
    b = Build(20)
    x = y = b.input("x", *rows, widths[0])
    made = []
    for k, (have, want) in enumerate(pairwise(widths)):
        y = b.node("Add", b.node("MatMul", y, scaled(b, have, want)), scaled(b, want))
        if k < len(widths) - 2:
            y = b.node(act, y)
            made.append(y)
    if residual:
        y = b.node("Add", y, x)
    return b.graph(y, *(made if also else ()))


SHAPES = ((1, 24, 40, 24), (13, 24, 40, 33), (15, 16, 45, 16), (29, 31, 37, 41), (64, 128, 96, 128), (113, 9, 8, 70),
          (113, 32, 1024, 32), (430, 16, 2048, 8))  # fmt: skip


def chains() -> list[Case]:
    out = [Case(f"mlp_{m}_{a}_{b}_{c}", mlp((m,), a, b, c)) for m, a, b, c in SHAPES]
    out.append(Case("mlp_gelu", mlp((2, 3, 19), 24, 40, 24, act="Gelu", residual=True)))
    out.append(Case("mlp_three", mlp((1, 57), 24, 40, 64, 24, residual=True)))
    out.append(Case("mlp_both", mlp((2, 31), 24, 40, 24, residual=True, also=True)))
    out.append(Case("mlp_any", mlp(("M",), 24, 40, 24), ({"M": 1}, {"M": 30})))
    b = Build()  # a norm of both, in a phase of its own
    x = b.input("x", 37, 48)
    y = b.node("Relu", b.node("MatMul", x, scaled(b, 48, 80)))
    y = b.node("Add", b.node("MatMul", y, scaled(b, 80, 48)), x)
    y = b.node("LayerNormalization", y, b.weights(48), b.weights(48), axis=-1)
    out.append(Case("mlp_norm", b.graph(y)))
    b = Build()  # rows of the first are joined from several tensors: it packs them, in a phase of its own
    x = b.node("Concat", b.input("x", 31, 20), b.input("z", 31, 13), axis=1)
    y = b.node("Relu", b.node("MatMul", x, scaled(b, 33, 40)))
    out.append(Case("mlp_of_joined", b.graph(b.node("MatMul", y, scaled(b, 40, 24)))))
    b = Build()  # what the first makes is read twice: by the second and behind it
    y = b.node("Relu", b.node("MatMul", b.input("x", 37, 20), scaled(b, 20, 40)))
    out.append(Case("mlp_kept", b.graph(b.node("Add", b.node("MatMul", y, scaled(b, 40, 40)), y))))
    return out


def images() -> list[Case]:
    out = []
    for name, size, kernel, channels in (("lines", (14, 28), 3, (8, 32, 40)), ("odd", (9, 11), 3, (10, 16, 33)),
                                         ("points", (7, 9), 1, (17, 45, 12))):  # fmt: skip
        b = Build()
        x = b.input("x", 1, channels[0], *size)
        w = scaled(b, channels[1], channels[0], kernel, kernel)
        y = b.node("Conv", x, w, b.weights(channels[1]), pads=(kernel // 2,) * 4)
        y = b.node("Relu", y, out="between")
        y = b.node("Conv", y, scaled(b, channels[2], channels[1], 1, 1), b.weights(channels[2]))
        y = b.node("Relu", b.node("Add", y, b.input("r", 1, channels[2], *size)), out="y")
        out.append(Case(f"images_{name}", b.graph(y), last=("x", "r", "y")))
        out.append(Case(f"images_{name}_both", b.graph(y, "between"), last=("x", "r", "y", "between")))
    return out


def prologues() -> list[Case]:
    """Rows that are made before they are multiplied: scaled channels, a gate, a normalization that others read too."""
    out = []
    for name, rows, width in (("few", (31,), 40), ("many", (2, 397), 96)):
        b = Build()  # what squeeze and excitation multiply by
        x = b.node("Mul", b.input("x", *rows, width), b.input("s", width))
        out.append(Case(f"scaled_{name}", b.graph(b.node("Relu", b.node("MatMul", x, scaled(b, width, 24))))))
        b = Build()
        x, z = b.input("x", *rows, width), b.input("z", *rows, width)
        gate = b.node("Mul", b.node("Mul", x, b.node("Sigmoid", x)), z)
        out.append(Case(f"gated_{name}", b.graph(b.node("MatMul", gate, scaled(b, width, 24)))))
        b = Build()
        x = b.node("LayerNormalization", b.input("x", *rows, width), b.weights(width), b.weights(width), axis=-1)
        y = b.node("MatMul", x, scaled(b, width, 24))
        out.append(Case(f"normed_{name}", b.graph(y)))
        out.append(Case(f"normed_{name}_both", b.graph(y, x)))
    for size in ((28, 28), (7, 9)):
        b = Build()
        x = b.node("Mul", b.input("x", 1, 96, *size), b.input("s", 1, 96, 1, 1))
        y = b.node("Conv", x, scaled(b, 24, 96, 1, 1), b.weights(24))
        y = b.node("Relu", b.node("Conv", y, scaled(b, 72, 24, 1, 1), b.weights(72)), out="y")
        out.append(Case(f"excited_{size[0]}_{size[1]}", b.graph(y), last=("x", "y")))
    return out


def inverted(
    size: tuple[int, int],
    channels: tuple[int, ...],
    *,
    kernel: int = 3,
    stride: int = 1,
    images: int | str = 1,
    **also: bool,
) -> Graph:
    """A convolution, a depthwise one and, with three numbers of channels, another; perhaps with the input added."""
    b = Build()
    x = b.input("x", images, channels[0], *size)
    y = b.node("Conv", x, scaled(b, channels[1], channels[0], 1, 1), b.weights(channels[1]))
    y = b.node("Relu", y, out="image")
    half = (kernel // 2,) * 4
    w = scaled(b, channels[1], 1, kernel, kernel)
    y = b.node("Conv", y, w, b.weights(channels[1]), group=channels[1], pads=half, strides=(stride,) * 2)
    y = b.node("Relu", y, out="between")
    if len(channels) > 2:
        y = b.node("Conv", y, scaled(b, channels[2], channels[1], 1, 1), b.weights(channels[2]), out="made")
        y = b.node("Add", y, x) if also.get("added") else y
    return b.graph(y, *(("between",) if also.get("both") and len(channels) > 2 else ()))


def strips() -> list[Case]:
    """A window between convolutions: strides, windows over several lines, several images, results that others read."""
    made = {
        "strips_added": inverted((28, 28), (16, 48, 16), added=True),
        "strips_apart": inverted((28, 28), (16, 48, 24), stride=2),
        "strips_wide": inverted((29, 14), (8, 40, 17), kernel=5),
        "strips_steps": inverted((27, 28), (8, 33, 16), kernel=5, stride=2),
        "strips_images": inverted((14, 14), (16, 64, 16), images=3, added=True),
        "strips_any_images": inverted((14, 14), (16, 64, 16), images="N", added=True),
        "strips_any_apart": inverted((28, 28), (16, 48, 24), stride=2, images="N"),
        "strips_two": inverted((28, 14), (24, 48)),
        "strips_kept": inverted((28, 14), (24, 48, 16), both=True),
    }
    b = Build()  # the first convolution of a network and the pool after it
    y = b.node("Conv", b.input("x", 1, 8, 56, 56), scaled(b, 32, 8, 3, 3), b.weights(32), pads=(1,) * 4, strides=(2, 2))
    y = b.node("MaxPool", b.node("Relu", y, out="image"), kernel_shape=(3, 3), strides=(2, 2), pads=(1,) * 4)
    made["strips_pool"] = b.graph(y)
    counts = {name: ({"N": 1}, {"N": 3}) for name in made if "any" in name}
    return [Case(name, g, counts.get(name, ({},)), last=("x", *g.outputs)) for name, g in made.items()]


CASES: tuple[Case, ...] = (*chains(), *images(), *prologues(), *strips())
