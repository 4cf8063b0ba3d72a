"""Networks over waveforms with symbolic batch and length: voice activity with If and LSTM, and a spectrogram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from models.net import Net, Spread
from models.parts import reversed_pairs, vector
from models.shapes import cut, extent, squeeze, unsqueeze
from models.sized import sized

RATE = 16000
BIAS = Spread(0.1, 0.1)


def fourier(window: int) -> np.ndarray[Any, Any]:
    """Filters (window + 2, 1, window) of a Conv that computes the Fourier transform of a window: real, imaginary."""
    angles = 2 * np.pi * np.outer(np.arange(window // 2 + 1), np.arange(window)) / window
    shape = np.hanning(window + 1)[:-1] / window**0.5
    return (np.concatenate([np.cos(angles), -np.sin(angles)]) * shape)[:, None]


def _conv(net: Net, x: str, name: str, sizes: tuple[int, int, int], stride: int = 1) -> str:
    """Conv over time with a bias; `sizes` are (outputs, inputs, size)."""
    outputs, inputs, size = sizes
    weight = net.weight(f"{name}.weight", net.draw(f"{name}.weight", sizes, Spread((inputs * size) ** -0.5)))
    how: dict[str, Any] = {
        "dilations": (1,), "group": 1, "kernel_shape": (size,), "pads": (size // 2,) * 2, "strides": (stride,),
    }  # fmt: skip
    return net.node("Conv", x, weight, vector(net, f"{name}.bias", outputs, BIAS), **how)


def _transform(net: Net, x: str, window: int, hop: int) -> str:
    """(batch, samples) to (batch, window + 2, frames)."""
    filters = net.weight("stft.forward_basis_buffer", fourier(window))
    how: dict[str, Any] = {
        "dilations": (1,), "group": 1, "kernel_shape": (window,), "pads": (0, 0), "strides": (hop,)
    }  # fmt: skip
    return net.node("Conv", unsqueeze(net, x, 1), filters, **how)


# --- voice activity --------------------------------------------------------------------------------------------------


def voice_activity(
    window: int = 32, widths: Sequence[int] = (16, 12, 12, 16), hidden: int = 16, seed: int = 0
) -> onnx.ModelProto:
    """Whether somebody speaks: input (batch, samples), state (2, batch, hidden), sr to output (batch, 1) and stateN.

    One If over the sampling rate, whose branches have weights of their own as Constant nodes: 16 kHz, and half of it
    with windows half as long. Reflected ends, a Fourier transform as a convolution, magnitudes, strided convolutions,
    an LSTM whose states come from the input, the mean over frames, and the If that tracing made of `squeeze(-1)`.
    """
    net = Net("voice_activity", "decomposed", 16, seed)
    net.input("input", TensorProto.FLOAT, ("batch", "samples"))
    net.input("state", TensorProto.FLOAT, (2, "batch", hidden))
    net.input("sr", TensorProto.INT64, ())
    branches = {
        name: _body(branch(name, size, widths, hidden, seed))
        for name, size in (("then", window), ("else", window // 2))
    }
    how = {f"{name}_branch": graph for name, graph in branches.items()}
    chosen, state = net.nodes("If", 2, net.node("Equal", "sr", net.constant(RATE)), **how)
    net.node("Identity", chosen, out="output")
    net.node("Identity", state, out="stateN")
    return net.model({"output": ("batch", 1), "stateN": (2, "batch", hidden)})


def branch(name: str, window: int, widths: Sequence[int], hidden: int, seed: int = 0) -> onnx.ModelProto:
    """A branch of the If as a model of its own, its weights measured."""
    net = Net(name, "decomposed", 16, seed + window)
    net.input("input", TensorProto.FLOAT, ("batch", "samples"))
    net.input("state", TensorProto.FLOAT, (2, "batch", hidden))
    outputs = _detection(net, window, widths, hidden)
    made = net.model({outputs[0]: ("batch", 1), outputs[1]: (2, "batch", hidden)})
    random = np.random.default_rng(9)
    wave, state = random.standard_normal((3, 40 * window)), 0.5 * random.standard_normal((2, 3, hidden))
    feed = {"input": wave.astype(np.float32), "state": state.astype(np.float32)}
    return sized(made, feed, {"forward_basis": 0.0})


def _body(model: onnx.ModelProto) -> onnx.GraphProto:
    """A model as a body of If: its inputs come from outside, each weight is a Constant node, as in traced files."""
    graph = model.graph
    weights = [helper.make_node("Constant", [], [each.name], value=each) for each in graph.initializer]
    body = helper.make_graph([*weights, *graph.node], f"{graph.name}_branch", [], graph.output)
    _rename(body, f"{graph.name}.")
    return body


def _rename(graph: onnx.GraphProto, prefix: str) -> None:
    """A prefix for the names that are made in a graph, so that two branches share none."""
    inner = [a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    made = {name for each in (graph, *inner) for node in each.node for name in node.output}
    for each in (graph, *inner):
        for node in each.node:
            for names in (node.input, node.output):
                names[:] = [prefix + name if name in made else name for name in names]
        for value in each.output:
            value.name = prefix + value.name


def _detection(net: Net, window: int, widths: Sequence[int], hidden: int) -> tuple[str, str]:
    pads = net.node("Concat", net.constant([0, window // 4]), _zeros(net, 2), axis=0)
    padded = net.node("Pad", "input", reversed_pairs(net, pads), mode="reflect")
    bins = window // 2 + 1
    both = _transform(net, padded, window, window // 2)
    halves = (
        net.node("Pow", cut(net, both, 1, start, end), net.constant(2.0)) for start, end in ((0, bins), (bins, 1 << 40))
    )
    x, inputs = net.node("Sqrt", net.node("Add", *halves)), bins
    for number, (width, stride) in enumerate(zip(widths, (1, 2, 2, 1), strict=True)):
        x = net.node("Relu", _conv(net, x, f"encoder.{number}", (width, inputs, 3), stride))
        inputs = width
    y, state = _remembered(net, net.node("Transpose", x, perm=(2, 0, 1)), inputs, hidden)
    y = net.node("Relu", net.node("Transpose", y, perm=(1, 2, 0)))
    spoken = net.node("Sigmoid", _conv(net, y, "decoder", (1, hidden, 1)))
    mean = net.node("ReduceMean", spoken, axes=[2], keepdims=1)
    return _squeezed(net, mean), state


def _zeros(net: Net, count: int) -> str:
    value = onnx.numpy_helper.from_array(np.zeros(1, np.int64))
    return net.node("ConstantOfShape", net.constant([count]), value=value)


def _remembered(net: Net, x: str, inputs: int, hidden: int) -> tuple[str, str]:
    """An LSTM over frames; the first state comes from the input `state`, the last is stacked again."""
    weights = [
        net.weight(f"decoder.rnn.{kind}", net.draw(kind, (1, 4 * hidden, size), Spread(1.5 * size**-0.5)))
        for kind, size in (("weight_ih", inputs), ("weight_hh", hidden))
    ]
    shift = net.weight("decoder.rnn.bias", net.draw("decoder.rnn.bias", (1, 8 * hidden), BIAS))
    first = [unsqueeze(net, net.node("Gather", "state", net.constant(part), axis=0), 0) for part in (0, 1)]
    y, *last = net.nodes("LSTM", 3, x, *weights, shift, "", *first, hidden_size=hidden)
    return squeeze(net, y, 1), net.node("Concat", *last, axis=0)


def _squeezed(net: Net, x: str) -> str:
    """`squeeze(-1)` as tracing wrote it: an If over the extent, which is always 1."""
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("squeezed", "kept")]
    at = helper.make_node("Constant", [], ["at"], value_ints=[-1])
    then = helper.make_graph([at, helper.make_node("Squeeze", [x, "at"], ["squeezed"])], "one", [], results[:1])
    other = helper.make_graph([helper.make_node("Identity", [x], ["kept"])], "more", [], results[1:])
    single = net.node("Equal", extent(net, x, -1), net.constant(1))
    (out,) = net.nodes("If", 1, single, then_branch=then, else_branch=other)
    return out


# --- spectrogram -----------------------------------------------------------------------------------------------------


def spectrogram(
    window: int = 64, hop: int = 20, bands: int = 16, widths: Sequence[int] = (8, 12), seed: int = 0
) -> onnx.ModelProto:
    """Features of speech, and two convolutions on them: waveform (batch, samples) to embedding (batch, frames, width).

    A Fourier transform by two convolutions, powers, mel bands, their logarithm, each band less its mean over time and
    divided by its deviation over time.
    """
    net = Net("spectrogram", "decomposed", 13, seed)
    net.input("waveform", TensorProto.FLOAT, ("batch", "samples"))
    x, bins, filters = unsqueeze(net, "waveform", 1), window // 2 + 1, fourier(window)
    parts = []
    for name, values in (("real", filters[:bins]), ("imaginary", filters[bins:])):
        weight = net.weight(f"stft.{name}", values)
        part = net.node("Conv", x, weight, kernel_shape=(window,), strides=(hop,))
        parts.append(net.node("Pow", part, net.constant(2.0)))
    power = net.node("Transpose", net.node("Add", *parts), perm=(0, 2, 1))
    mel = net.node("MatMul", power, net.weight("mel", _triangles(bins, bands)))
    level = net.node("Log", net.node("Clip", mel, net.constant(1e-5)))
    x = _normalized(net, net.node("Mul", level, net.constant(float(10 / np.log(10)))))
    x, inputs = net.node("Transpose", x, perm=(0, 2, 1)), bands
    for number, width in enumerate(widths):
        x, inputs = net.node("Relu", _conv(net, x, f"conv.{number}", (width, inputs, 3), 1 + number)), width
    net.node("Transpose", x, perm=(0, 2, 1), out="embedding")
    made = net.model({"embedding": ("batch", "frames", widths[-1])})
    wave = np.random.default_rng(9).standard_normal((3, 40 * window)).astype(np.float32)
    return sized(made, {"waveform": wave}, {"stft": 0.0, "mel": 0.0})


def _triangles(bins: int, bands: int) -> np.ndarray[Any, Any]:
    """Overlapping triangles over the bins, wider from band to band."""
    edges = (bins - 1) * (np.arange(bands + 2) / (bands + 1)) ** 1.5
    at = np.arange(bins)[:, None]
    rising = (at - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - at) / (edges[2:] - edges[1:-1])
    return np.maximum(np.minimum(rising, falling), 0) + 0.05


def _normalized(net: Net, x: str) -> str:
    """Less the mean over time, divided by the deviation over time."""
    centred = net.node("Sub", x, net.node("ReduceMean", x, axes=[1], keepdims=1))
    variance = net.node("ReduceMean", net.node("Mul", centred, centred), axes=[1], keepdims=1)
    return net.node("Div", centred, net.node("Add", net.node("Sqrt", variance), net.constant(1e-5)))
