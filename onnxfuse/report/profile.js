// The page of a profile: times by layer, the roofline, memory over time.
"use strict";

bars(document.getElementById("times"), data.layers.map((l) => ({ name: l.layer || "elsewhere", times: l.time_ms })),
  "Nothing was looked at node by node.");
roofline(document.getElementById("roofline"), data.peaks, data.models.map((model) => ({ name: model.path, dots: model.ops
  .filter((o) => o.flops && o.bytes && o.time_ms)
  .map((o) => ({ name: `${o.name} (${short(o.op_type)})`, x: o.flops / o.bytes, y: o.gflops, ms: o.time_ms })) })));
memory(document.getElementById("memory"), data.models.map((model, at) => ({ name: model.path, steps: data.steps[at] })));
