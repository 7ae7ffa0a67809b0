"""The package as an environment has it: its Python files, the library that was built, and the program in the place of its scripts."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "crates" / "magray-engine" / "tests" / "fixtures"
EMBEDDER, RANKER, CLASSIFIER = (str(FIXTURES / name) for name in ("bert", "xlm-roberta-classify", "bert-classify"))
# Batches of other sizes sum up in another order.
TOLERANCE = 1e-4
SETTINGS = {"device": "cpu", "threads": 1, "precision": "f32", "server": ""}
ENGINE = {name: value for name, value in SETTINGS.items() if name != "server"}
# Rounds of the tests that look for rare hangs; 1000 for a long run.
ROUNDS = int(os.environ.get("MAGRAY_PYTHON_ROUNDS", "8"))
# A child that takes longer hangs.
HANGS_AFTER_S = 120


def lay_out(folder, library):
    """Makes the package in a folder; what a wheel unpacks to."""
    package = Path(folder, "magray")
    shutil.copytree(ROOT / "crates" / "magray-python" / "python" / "magray", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / f"_magray.abi3{'.so' if sys.platform != 'win32' else '.pyd'}").symlink_to(Path(library).resolve())
    return folder


def run(code, *arguments, **options):
    """Runs a script of the package in an interpreter of its own; its exit code, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, *map(str, arguments)],
        capture_output=True, text=True, timeout=HANGS_AFTER_S, stdin=subprocess.DEVNULL, **options,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


class Isolated(unittest.TestCase):
    """A home of its own, and nothing of the user's settings."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.home = Path(folder.name)
        for name in ("MAGRAY_SERVER", "MAGRAY_API_KEY"):
            os.environ.pop(name, None)
