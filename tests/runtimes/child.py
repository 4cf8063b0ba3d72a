"""Runs models in the runtime of the interpreter that starts this file, which needs onnxruntime and NumPy alone.

A request on stdin names a model, its library or none, and inputs; the answer on stdout tells which operators ran.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime as ort


def ran(request):
    """Run the model on each set of inputs; the operators that its nodes ran as, each with how often."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if request["optimize"] else levels.ORT_DISABLE_ALL
    for key, value in request["config"].items():
        options.add_session_config_entry(key, value)
    if request["library"]:
        options.register_custom_ops_library(request["library"])
    with tempfile.TemporaryDirectory() as folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder, "run"))
        session = ort.InferenceSession(request["model"], options, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_outputs()]
        for given, out in request["sets"]:
            with np.load(given) as feeds:
                np.savez(out, **dict(zip(names, session.run(names, dict(feeds)), strict=True)))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    counts = {}
    for each in events:
        if each.get("cat") == "Node" and each["name"].endswith("_kernel_time"):
            counts[each["args"]["op_name"]] = counts.get(each["args"]["op_name"], 0) + 1
    return counts


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    answers = [ran(request) for request in asked]
    sys.stdout.write(json.dumps({"runtime": ort.__version__, "numpy": np.__version__, "ran": answers}))
