"""Runs a model with a library in a process whose environment names the CUDA driver to load."""

from __future__ import annotations

import json
import sys

import numpy as np
import onnxruntime


def main(model: str, library: str, domain: str, inputs: str, out: str) -> None:
    """The outputs of two runs in OUT, and on standard output what the library says of itself."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = dict(np.load(inputs))
    made = [value for _ in range(2) for value in session.run(None, feeds)]
    np.savez(out, *made)
    sys.stdout.write(json.dumps({"status": options.get_session_config_entry(f"{domain}.status")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
