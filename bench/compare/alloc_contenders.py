"""Runs the allocators that are compared, each as a process of its own that answers a line of JSON a case. Judges nothing."""

import gzip
import json
import shutil
import subprocess
from pathlib import Path

from .contenders import Unavailable

BENCH = Path(__file__).resolve().parents[1]
OURS, ASYNC, PLAIN, TORCH = "magray", "cudaMallocAsync", "cudaMalloc", "torch"
LIVE = [1_000, 10_000, 100_000]
SIZE_MAX_KIB = 256
MIB = 1 << 20
ROUNDS_OF_SURVIVORS = 1_000
# What `bench/traces/embeddings.trace` is.
EMBEDDINGS = (
    "the 48 allocations of one worker under `magray-bench load` with MiniLM, which are its weights and the work buffers of "
    "the batch sizes that it met; it is no hour of mixed serving"
)


class Contender:
    """One allocator."""

    def __init__(self, name, command, folder=None):
        self.name, self._command, self._folder = name, command, folder

    def answers(self, flags, timeout=120):
        """The lines that it printed, each as a dict; the first says what the clock takes."""
        try:
            done = subprocess.run(
                [*self._command, *map(str, flags)], capture_output=True, text=True, timeout=timeout, cwd=self._folder
            )
        except (OSError, subprocess.TimeoutExpired) as reason:
            raise Unavailable(f"{type(reason).__name__}: {reason}") from None
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise Unavailable(f"it ended with {done.returncode}: {last}")
        return lines


def ours(binary, device):
    return Contender(OURS, [binary, "alloc", "--json", "--device", device])


def peers(python, scratch):
    """The others; those of CUDA are built now."""
    program = build_peers(scratch)
    cuda = [Contender(name, [str(program), name]) for name in (ASYNC, PLAIN)]
    # Run as a module: its folder must be the one that the package is in.
    return [*cuda, Contender(TORCH, [python, "-m", "compare.alloc_torch", str(scratch)], BENCH)]


def build_peers(scratch):
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if not nvcc:
        raise Unavailable("nvcc is missing: install the CUDA toolkit")
    program = scratch / "alloc_peers"
    source = BENCH / "alloc_peers.cu"
    done = subprocess.run([nvcc, "-O2", "-std=c++17", "-o", str(program), str(source)], capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"nvcc could not build {source.name}: {done.stderr.strip().splitlines()[-1:]}")
    return program


def pair_flags(name, seconds):
    """The flags of the timed cases. magray's own need no bound: a case takes it a tenth of a second."""
    live = ["--live", ",".join(map(str, LIVE))] if name == OURS else [w for n in LIVE for w in ("--live", n)]
    bound = [] if name == OURS else ["--seconds", seconds]
    return [*live, "--size-max", SIZE_MAX_KIB, *bound]


def trace_flags(traces):
    return [word for trace in traces for word in ("--trace", trace)]


def gather_traces(scratch, recorded):
    """Files of all traces: the two patterns of survivors, then what was recorded, unpacked."""
    folder = scratch / "traces"
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, stay in (("survivors-go", False), ("survivors-stay", True)):
        files.append(folder / name)
        files[-1].write_text("\n".join(survivors(stay)) + "\n")
    for path in recorded:
        if path.suffix == ".gz":
            unpacked = folder / path.stem
            unpacked.write_bytes(gzip.decompress(path.read_bytes()))
            path = unpacked
        files.append(path)
    return files


def survivors(stay):
    """Lines of a trace: two large blocks a round, and one of 2 MiB that goes a round later, or never."""
    lines = []
    for number in range(ROUNDS_OF_SURVIVORS):
        lines += [f"a x{number} {91 * MIB}", f"a y{number} {91 * MIB // 2}", f"a s{number} {2 * MIB}"]
        lines += [f"f x{number}", f"f y{number}"]
        if number and not stay:
            lines.append(f"f s{number - 1}")
    return lines
