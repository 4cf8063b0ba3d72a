"""The manifest of an output model: kernels and their original nodes, and how to load it. It is reproducible."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from onnxfuse.report.document import SCHEMA_VERSION, plain, version
from onnxfuse.report.result import GroupResult, Model


def manifest(
    model: Model,
    model_name: str,
    library: str | None,
    library_sha256: str | None,
    domain: str | None,
    groups: Sequence[GroupResult],
    build: dict[str, Any],
    loading: Mapping[str, Any],
    gain: Mapping[str, Any] | None = None,
    choices: Sequence[Mapping[str, Any]] = (),
    refusals: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The text of a manifest. `library` is the path of the library relative to the model.

    `build` has compiler and options, `loading` the cost of loading both models, and `refusals` why other nodes stay
    with the runtime. `gain` and `choices` are those of builds that measure.
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "onnxfuse_version": version("onnxfuse") or "unknown",
        "source": {"sha256": model.sha256, "opset": model.opset},
        "model": model_name,
        "library": library,
        "library_sha256": library_sha256,
        "domain": domain,
        "build": build,
        "kernels": [{"name": g.name, "kernel": g.kernel, "ops": list(g.ops), "nodes": list(g.nodes)} for g in groups],
        "refusals": plain(refusals),
        "loading": plain(loading),
        "load": loaders(model_name, library),
    }
    document |= {"gain": plain(gain)} if gain is not None else {}
    document |= {"choices": plain(choices)} if choices else {}
    return json.dumps(document, indent=2, ensure_ascii=False, sort_keys=False) + "\n"


def loaders(model: str, library: str | None) -> dict[str, str]:
    """For each language the lines that load a model with its library, to be run in the folder of the model.

    Without a library, the lines that load the model by itself.
    """
    if library is None:
        return {name: text.format(model=_quoted(model)) for name, text in _WITHOUT.items()}
    near = library if "/" in library else f"./{library}"
    words = {"model": _quoted(model), "library": _quoted(near)}
    return {name: text.format(**words) for name, text in _WITH.items()}


def _quoted(text: str) -> str:
    """A string literal that is valid in all these languages."""
    return json.dumps(text, ensure_ascii=False)


_WITH = {
    "onnxfuse": "session = onnxfuse.session({model})",
    "python": (
        "options = onnxruntime.SessionOptions(); options.register_custom_ops_library({library}); "
        "session = onnxruntime.InferenceSession({model}, options)"
    ),
    "c": (
        "api->CreateSessionOptions(&options); api->RegisterCustomOpsLibrary_V2(options, ORT_TSTR({library})); "
        "api->CreateSession(env, ORT_TSTR({model}), options, &session);"
    ),
    "cpp": (
        "Ort::SessionOptions options; options.RegisterCustomOpsLibrary(ORT_TSTR({library})); "
        "Ort::Session session(env, ORT_TSTR({model}), options);"
    ),
    "csharp": (
        "var options = new SessionOptions(); options.RegisterCustomOpLibrary({library}); "
        "var session = new InferenceSession({model}, options);"
    ),
    "java": (
        "var options = new OrtSession.SessionOptions(); options.registerCustomOpLibrary({library}); "
        "var session = OrtEnvironment.getEnvironment().createSession({model}, options);"
    ),
    "triton": "model_operations {{ op_library_filename: {library} }}  # in config.pbtxt, with an absolute path",
}
_WITHOUT = {
    "onnxfuse": "session = onnxfuse.session({model})",
    "python": "session = onnxruntime.InferenceSession({model})",
    "c": "api->CreateSession(env, ORT_TSTR({model}), options, &session);",
    "cpp": "Ort::Session session(env, ORT_TSTR({model}), Ort::SessionOptions());",
    "csharp": "var session = new InferenceSession({model});",
    "java": "var session = OrtEnvironment.getEnvironment().createSession({model});",
    "triton": "",
}
