"""The package as a whole: its version, what its import loads, and its types: mypy --strict finds nothing, in it and in a program that uses it."""

import importlib.util
import subprocess
import sys
import tomllib
import unittest

from installed import ROOT, Isolated

PROGRAM = """
import numpy as np
from numpy.typing import NDArray
from magray import Chat, Collection, CrossEncoder, Encoder, Engine, __version__

def work(texts: list[str]) -> NDArray[np.float32]:
    encoder = Encoder(device="cpu")
    rows: NDArray[np.float32] = encoder.encode(texts, normalize_embeddings=True)
    ranked = CrossEncoder("m").rank("q", texts)
    best: int = ranked[0]["corpus_id"]
    text: str = Chat("m")("hello").text
    hits = Collection("notes", encoder).search(text, best)
    print("magray " + __version__)
    with Engine() as engine:
        return rows if hits else engine.embed(texts)
"""


class TypesTest(Isolated):
    def test_the_package_tells_its_version(self):
        version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
        self.assertEqual(importlib.import_module("magray").__version__, version)

    def test_what_is_not_awaited_loads_no_event_loop(self):
        code = "import sys; from magray import Chat, Encoder; sys.exit('asyncio' in sys.modules)"
        self.assertEqual(subprocess.run([sys.executable, "-c", code]).returncode, 0)

    @unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed")
    def test_strict_types_hold(self):
        program = self.home / "program.py"
        program.write_text(PROGRAM)
        package = ROOT / "crates" / "magray-python"
        settings = ["--config-file", str(package / "pyproject.toml"), "--cache-dir", str(self.home / "cache")]
        for files in (["python/magray"], [str(program)]):
            done = subprocess.run(
                [sys.executable, "-m", "mypy", "--strict", *settings, *files],
                cwd=package, capture_output=True, text=True, env={"MYPYPATH": str(package / "python"), "PATH": ""},
            )  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
