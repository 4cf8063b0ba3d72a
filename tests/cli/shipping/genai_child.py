"""Generates tokens with onnxruntime-genai: a program of its own, since that brings its own copy of the runtime."""

from __future__ import annotations

import json
import sys

import onnxruntime_genai as genai


def tokens(folder: str, prompt: list[int]) -> list[int]:
    """The prompt and what the model goes on with, the likeliest token each time."""
    model = genai.Model(folder)
    search = genai.GeneratorParams(model)
    search.set_search_options(max_length=40, do_sample=False)
    generator = genai.Generator(model, search)
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
    return [int(each) for each in generator.get_sequence(0)]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(tokens(sys.argv[1], json.loads(sys.argv[2]))))
