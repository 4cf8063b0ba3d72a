"""Runs models with their sanitized libraries, every tensor in memory of its own.

Started by test_sanitized_networks.py with the sanitizers' libraries preloaded: an access outside of a tensor ends it.
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime as ort


def main(*runs: str) -> None:
    """Each run is MODEL=LIBRARY=FEEDS, the feeds an .npz file; FEEDS.out.npz takes the outputs."""
    for each in runs:
        model, library, feeds = each.split("=")
        sys.stderr.write(f"{feeds}\n")
        options = ort.SessionOptions()
        options.intra_op_num_threads = 2
        options.log_severity_level = 3
        options.enable_cpu_mem_arena = options.enable_mem_pattern = options.enable_mem_reuse = False
        options.register_custom_ops_library(library)
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        with np.load(feeds) as file:
            found = session.run(None, dict(file))
        np.savez(f"{feeds}.out.npz", *found)


if __name__ == "__main__":
    main(*sys.argv[1:])
