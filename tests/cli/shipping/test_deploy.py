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


# What ONNX Runtime declares of what the programs call, so that they compile where its jar is not installed.
JAVA_API = {
    "OrtException": "public class OrtException extends Exception { static final long serialVersionUID = 1; }",
    "ValueInfo": "public interface ValueInfo {}",
    "OnnxValue": "public interface OnnxValue extends AutoCloseable { ValueInfo getInfo() throws OrtException; }",
    "OnnxTensor": """public abstract class OnnxTensor implements OnnxValue {
      public static OnnxTensor createTensor(OrtEnvironment environment, java.nio.LongBuffer data, long[] shape)
          throws OrtException { return null; } }""",
    "OrtEnvironment": """public final class OrtEnvironment implements AutoCloseable {
      public static OrtEnvironment getEnvironment() { return null; }
      public OrtSession createSession(String path, OrtSession.SessionOptions options) throws OrtException
          { return null; }
      public void close() {} }""",
    "OrtSession": """public class OrtSession implements AutoCloseable {
      public long getNumInputs() { return 0; }
      public long getNumOutputs() { return 0; }
      public java.util.Set<String> getInputNames() { return null; }
      public Result run(java.util.Map<String, ? extends OnnxTensor> inputs) throws OrtException { return null; }
      public void close() throws OrtException {}
      public static class Result implements AutoCloseable {
        public OnnxValue get(int index) { return null; }
        public void close() {} }
      public static class SessionOptions implements AutoCloseable {
        public void registerCustomOpLibrary(String path) throws OrtException {}
        public void close() {} } }""",
}


@pytest.mark.skipif(shutil.which("javac") is None, reason="no Java compiler here")
def test_programs_in_java_compile_against_the_declarations(tmp_path: Path):
    javac, api = str(shutil.which("javac")), tmp_path / "ai" / "onnxruntime"
    api.mkdir(parents=True)
    for name, text in JAVA_API.items():
        (api / f"{name}.java").write_text(f"package ai.onnxruntime;\n{text}\n", encoding="utf-8")
    for at, text in enumerate(blocks("java")):
        folder = tmp_path / str(at)
        folder.mkdir()
        program = text if "class " in text else _in_a_class(text)
        name = re.findall(r"class (\w+)", program)[0]
        file = folder / f"{name}.java"
        file.write_text(program, encoding="utf-8")
        asked = (javac, "-cp", str(tmp_path), "-d", str(folder), str(file))
        done = process.run(asked)
        assert done.code == 0, done.err + done.out
        file.write_text(program.replace("registerCustomOpLibrary", "registerCustomOps"), encoding="utf-8")
        assert process.run(asked).code != 0, "the compiler finds what is wrong"


def _in_a_class(lines: str) -> str:
    """Lines of a method as a program."""
    imports = [line for line in lines.splitlines() if line.startswith("import ")]
    body = "\n".join(line for line in lines.splitlines() if line not in imports)
    return "\n".join(
        ("import ai.onnxruntime.*;", *imports, "class Load {", f"void load() throws Exception {{ {body} }} }}")
    )


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
