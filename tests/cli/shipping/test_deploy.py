"""Programs that the pages and archives hold for other hosts: each is well-formed, and compiled where its tools are."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import tree_sitter
import tree_sitter_c_sharp
import tree_sitter_cpp
import tree_sitter_java

from onnxfuse.report.programs import programs
from onnxfuse.runtime import process
from tests.craft.sources import ROOT

PAGES = (ROOT / "docs" / "deploy.md", ROOT / "README.md")
GRAMMARS = {"cpp": tree_sitter_cpp, "csharp": tree_sitter_c_sharp, "java": tree_sitter_java}
ENDS = {".cpp": "cpp", ".cs": "csharp", ".java": "java"}
HEADERS = [Path(p) for p in ("/usr/include/onnxruntime", "/usr/local/include/onnxruntime", "/usr/local/include")]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    """The code of the pages in a language, and the programs of an archive."""
    texts = [
        text for page in PAGES for kind, text in _BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language
    ]
    shipped = programs("model.onnx", "libmodel.so")
    return texts + [text for name, text in shipped.items() if ENDS.get(Path(name).suffix) == language]


def wrong(language: str, text: str) -> list[str]:
    """The lines that are not of the language, each once."""
    parser = tree_sitter.Parser(tree_sitter.Language(GRAMMARS[language].language()))
    found, stack = {}, [parser.parse(text.encode()).root_node]
    while stack:
        node = stack.pop()
        if node.is_error or node.is_missing:
            found[node.start_point[0]] = text.splitlines()[node.start_point[0]]
        stack += node.children
    return list(found.values())


@pytest.mark.parametrize("language", GRAMMARS)
def test_a_program_is_well_formed(language: str):
    found = blocks(language)
    assert len(found) >= 3, "of both pages and the archive"
    for text in found:
        assert wrong(language, text) == []
    assert wrong(language, found[0].replace(";", "", 1).replace("(", "", 1)), "the parser finds what is wrong"


@pytest.mark.parametrize("path", HEADERS, ids=str)
def test_programs_in_cpp_compile_where_the_headers_are(path: Path, tmp_path: Path):
    compiler = shutil.which("c++")
    if compiler is None or not (path / "onnxruntime_cxx_api.h").exists():
        pytest.skip("no headers of ONNX Runtime here")
    for text in (each for each in blocks("cpp") if "int main" in each):
        (tmp_path / "host.cpp").write_text(text, encoding="utf-8")
        done = process.run((compiler, "-std=c++17", "-fsyntax-only", f"-I{path}", str(tmp_path / "host.cpp")))
        assert done.code == 0, done.err


def test_configurations_can_be_read():
    (text,) = blocks("json")
    assert json.loads(text)["model"]["decoder"]["session_options"]["custom_ops_library"].endswith(".so")
    texts = [*blocks("protobuf"), programs("m.onnx", "libm.so")["config.pbtxt"]]
    assert len(texts) == 2
    for text in texts:
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert all(re.fullmatch(r'\w+: ("[\w./]+"|\d+)|\w+ \{ \w+: "[\w./]+" \}', line) for line in lines), text


def test_shell_lines_are_well_formed():
    for text in blocks("sh"):
        assert process.run(("sh", "-n", "-c", text)).code == 0, text
