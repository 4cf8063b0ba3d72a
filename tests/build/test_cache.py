"""A cache entry is either whole or absent, for any number of processes, and the least used go first."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onnxfuse.build.cache import Cache, key_of
from onnxfuse.errors import OutputError
from onnxfuse.runtime.process import run

KEY = key_of("a kernel")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def test_bytes_and_files_come_back(cache: Cache, tmp_path: Path):
    given = tmp_path / "given"
    given.write_bytes(b"from a file")
    assert cache.get(KEY) is None
    assert cache.put(KEY, b"from memory").read_bytes() == b"from memory"
    cache.put(key_of("other"), given)
    for key, content in ((KEY, b"from memory"), (key_of("other"), b"from a file")):
        found = cache.get(key)
        assert found is not None
        assert found.read_bytes() == content
    assert given.exists()


@pytest.mark.parametrize("damage", [b"", b"from memorz", b"from memory and more"], ids=["cut", "changed", "longer"])
def test_a_damaged_entry_is_absent_and_can_be_put_again(cache: Cache, damage: bytes):
    cache.put(KEY, b"from memory").write_bytes(damage)
    assert cache.get(KEY) is None
    assert cache.info().entries == 0
    cache.put(KEY, b"from memory")
    assert cache.get(KEY) is not None


def test_parts_of_a_key_do_not_run_together():
    assert len({key_of("ab", "c"), key_of("a", "bc"), key_of("abc"), key_of("ab", "c", "")}) == 4
    assert key_of("ä") == key_of("ä".encode())


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "A" * 64, "a" * 63])
def test_only_keys_are_keys(cache: Cache, key: str):
    with pytest.raises(ValueError, match="not a sha256 key"):
        cache.put(key, b"")


def test_gc_drops_what_was_used_longest_ago(cache: Cache):
    keys = [key_of(str(n)) for n in range(4)]
    for age, key in enumerate(keys):
        path = cache.put(key, bytes(100))
        os.utime(path, (time.time() - 1000 * (9 - age),) * 2)
    assert cache.get(keys[0]) is not None  # a use: the oldest is now keys[1]
    assert cache.info().bytes == 400
    after = cache.gc(250)
    assert (after.entries, after.bytes, after.removed) == (2, 200, 2)
    assert [cache.get(key) is not None for key in keys] == [True, False, False, True]
    assert cache.gc(0).entries == 0


def test_gc_drops_what_dead_processes_left(cache: Cache):
    folder = cache.put(KEY, b"kept").parent
    old, new = folder / ".new-old", folder / ".new-new"
    old.touch()
    new.touch()
    os.utime(old, (time.time() - 7200,) * 2)
    cache.gc(1 << 20)
    assert (old.exists(), new.exists()) == (False, True)
    assert cache.info().entries == 1


def test_a_root_that_cannot_be_written_says_what_to_do(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="--no-cache"):
        Cache(tmp_path / "file" / "cache").put(KEY, b"")


WORKER = """
import sys
from pathlib import Path
from onnxfuse.build.cache import Cache, key_of
cache = Cache(Path(sys.argv[1]))
for round in range(40):
    for n in range(5):
        content = str(n).encode() * 50_000
        found = cache.get(key_of(str(n)))
        if found is not None:
            try:
                assert found.read_bytes() == content, "half a file was seen"
            except FileNotFoundError:
                pass  # collected meanwhile
        cache.put(key_of(str(n)), content)
    if round % 10 == 9:
        cache.gc(100_000)
"""


def test_processes_may_share_a_cache(cache: Cache):
    root = str(Path(__file__).resolve().parents[2])
    command = (sys.executable, "-c", WORKER, str(cache.root))
    with ThreadPoolExecutor(3) as pool:
        for done in pool.map(lambda _: run(command, env={"PYTHONPATH": root}, time_limit=60), range(3)):
            assert (done.code, done.err) == (0, "")
    assert not list(cache.root.glob("*/.new-*"))
