"""Says what machine and which versions a comparison ran on. Names no host, no user and no path."""

import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

FLAGS = ["avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"]
PACKAGES = ["torch", "transformers", "sentence-transformers", "onnxruntime", "openvino", "numpy"]

# Asks another interpreter for the versions of those packages that it has.
VERSIONS = """
import importlib.metadata, json, sys
found = {}
for package in sys.argv[1:]:
    try:
        found[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def usable_cores():
    return len(os.sched_getaffinity(0))


def cores():
    """Those of the machine, also where this process may not use them all."""
    return os.cpu_count() or 1


def load():
    """How many programs wanted to compute on average in the last minute."""
    return os.getloadavg()[0]


def describe():
    """Facts of the machine, as pairs of a name and its value."""
    info = _cpu_info()
    flags = set(info.get("flags", info.get("Features", "")).split())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": f"{info.get('model name', platform.machine())}, model {info.get('model', '?')}",
        "cores": str(usable_cores()),
        "instructions": ", ".join(flag for flag in FLAGS if flag in flags) or "none of those looked for",
        "memory": f"{memory:.0f} GiB",
        "kernel": platform.release(),
    }


def versions(python, magray, root, packages=PACKAGES):
    """Versions of the contenders; `magray` may be None."""
    done = subprocess.run([python, "-c", VERSIONS, *packages], capture_output=True, text=True)
    found = json.loads(done.stdout) if done.returncode == 0 else {}
    if magray:
        found["magray"] = f"{_first_line([magray, '--version'])} ({_commit(root)})"
    return found


def peaks(root, scratch, threads):
    """Measured peaks in TFLOP/s by precision; empty where there is no C compiler or no x86."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler or platform.machine() != "x86_64":
        return {}
    program = scratch / "peaks"
    built = subprocess.run([compiler, "-O2", "-pthread", "-o", str(program), str(root / "bench" / "peaks.c")])
    if built.returncode:
        return {}
    done = subprocess.run([str(program), str(threads)], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def private_words(*paths):
    """Words of this machine that no report may hold, the longest first."""
    words = {str(Path(path).resolve()) for path in paths} | {str(path) for path in paths}
    words |= {str(Path.home()), platform.node()}
    # Short words ("/", "a") would tear ordinary text apart.
    return sorted((word for word in words if len(word) > 4), key=len, reverse=True)


def scrubbed(text, hidden):
    """The text without these words, which a library's message may have carried in."""
    for word in hidden:
        text = text.replace(word, "...")
    return text


def _cpu_info():
    try:
        block = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in block.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def _commit(root):
    """The commit of the binary: the folder's where the program built it, else what `MAGRAY_COMMIT` names."""
    if os.environ.get("MAGRAY_BIN"):
        return os.environ.get("MAGRAY_COMMIT") or "commit not named"
    commit = _first_line(["git", "-C", str(root), "rev-parse", "--short", "HEAD"])
    if commit == "unknown":
        return "commit unknown"
    changed = subprocess.run(["git", "-C", str(root), "diff", "--quiet", "HEAD", "--", "crates"]).returncode
    return f"{commit}, with changes" if changed else commit


def _first_line(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return done.stdout.splitlines()[0] if done.stdout.strip() else "unknown"
