"""Runs the cases of `magray-bench alloc` with PyTorch's caching allocator; a line of JSON each. Touches no memory.

Use: python -m compare.alloc_torch SCRATCH [--FLAG VALUE]...    the flags of bench/alloc_cases.h
Calls the allocator from C++ (bench/alloc_torch.cpp, built into SCRATCH). Where that does not build, it is called from
Python, and the first line says so: then `clock_ns` is what the interpreter itself takes of each time.
"""

import argparse
import ctypes
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch

BENCH = Path(__file__).resolve().parents[1]
SIZES_KIB = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10]


def main():
    scratch, flags = Path(sys.argv[1]), sys.argv[2:]
    torch.cuda.init()
    # The first call of all opens the GPU.
    torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(1 << 20))
    torch.cuda.synchronize()
    library, reason = build(scratch)
    if library is None:
        print(f"the C++ part does not build, Python is used: {reason}", file=sys.stderr)
        run_in_python(parse(flags))
        return 0
    words = [flag.encode() for flag in flags]
    run = ctypes.CDLL(str(library)).alloc_cases_torch
    return run(len(words), (ctypes.c_char_p * len(words))(*words))


def build(scratch):
    """The library, or None and why there is none."""
    compiler = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if not compiler:
        return None, "there is no C++ compiler"
    library, torch_folder = scratch / "alloc_torch.so", Path(torch.__file__).parent
    includes = [BENCH, torch_folder / "include", *cuda_includes(torch_folder)]
    command = [compiler, "-O2", "-std=c++20", "-shared", "-fPIC", str(BENCH / "alloc_torch.cpp"), "-o", str(library)]
    command += [f"-I{folder}" for folder in includes]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    command += [f"-L{torch_folder / 'lib'}", "-lc10", "-lc10_cuda", f"-Wl,-rpath,{torch_folder / 'lib'}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        return None, (errors or done.stderr.splitlines() or ["no message"])[0]
    return library, None


def cuda_includes(torch_folder):
    """Where the CUDA headers may lie: beside nvcc, or in the packages that torch came with."""
    places = []
    nvcc = shutil.which("nvcc")
    if nvcc:
        places.append(Path(nvcc).resolve().parents[1] / "include")
    if os.environ.get("CUDA_HOME"):
        places.append(Path(os.environ["CUDA_HOME"]) / "include")
    places.append(Path("/usr/local/cuda/include"))
    places += sorted((torch_folder.parent / "nvidia").glob("*/include"))
    return [place for place in places if place.is_dir()]


def parse(flags):
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--fill-seconds", type=float, default=5.0)
    parser.add_argument("--size-max", type=int, default=256)
    parser.add_argument("--live", type=int, action="append", default=[])
    parser.add_argument("--trace", action="append", default=[])
    return parser.parse_args(flags)


def run_in_python(options):
    take, give_back = torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete
    nothing = _pairs(lambda _: 0, lambda _: None, lambda: 0, options.pairs, options.seconds)
    tell({"clock_ns": _at(sorted(nothing), 50), "by": "python"})
    if not options.trace:
        for kib in SIZES_KIB:
            fresh()
            give_back(take(kib << 10))
            tell_pairs(_name(kib), _pairs(take, give_back, lambda: kib << 10, options.pairs, options.seconds))
        for live in options.live:
            many_alive(take, give_back, live, options)
    for trace in options.trace:
        replay(take, give_back, Path(trace))


def many_alive(take, give_back, count, options):
    """As in C++; only the sequence of numbers is another one."""
    fresh()
    chance = random.Random(5)
    sizes = [chance.randint(1, options.size_max << 10) for _ in range(count + options.pairs)]
    name = f"{count} alive, up to {_name(options.size_max)}"
    live, started = [], time.perf_counter()
    for size in sizes[:count]:
        live.append(take(size))
        if time.perf_counter() - started > options.fill_seconds:
            for block in live:
                give_back(block)
            tell({"case": name, "skipped": f"{len(live)} blocks took longer than {options.fill_seconds:g} s"})
            return
    picks = [(chance.randrange(count), chance.random() < 0.5) for _ in range(options.pairs)]
    times, now, begun = [], time.perf_counter_ns, time.perf_counter()
    for size, (which, goes_first) in zip(sizes[count:], picks):
        old = live[which]
        if goes_first:
            start = now()
            give_back(old)
            live[which] = take(size)
        else:
            start = now()
            live[which] = take(size)
            give_back(old)
        times.append(now() - start)
        if time.perf_counter() - begun > options.seconds:
            break
    for block in live:
        give_back(block)
    tell_pairs(name, times)


def replay(take, give_back, path):
    fresh()
    blocks, used, peak, allocations = {}, 0, 0, 0
    for line in path.read_text().splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] == "a":
            size = int(words[2])
            blocks[words[1]] = take(size), size
            used, allocations = used + size, allocations + 1
            peak = max(peak, used)
        else:
            block, size = blocks.pop(words[1])
            give_back(block)
            used -= size
    reserved = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
    for block, _ in blocks.values():
        give_back(block)
    wasted = max(0.0, 1 - peak / reserved)
    found = {"allocations": allocations, "peak_used_bytes": peak, "peak_reserved_bytes": reserved, "wasted": wasted}
    tell({"case": path.name, **found})


def fresh():
    """Nothing is cached, and the peaks begin anew."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def tell_pairs(name, times):
    times.sort()
    figures = {"p50_ns": _at(times, 50), "p99_ns": _at(times, 99), "mean_ns": sum(times) / len(times)}
    tell({"case": name, "pairs": len(times), **figures})


def tell(found):
    print(json.dumps(found), flush=True)


def _pairs(take, give_back, size, count, seconds):
    """Times of pairs, until there are enough or the time is over."""
    times, now, begun = [], time.perf_counter_ns, time.perf_counter()
    while len(times) < count and time.perf_counter() - begun < seconds:
        bytes_ = size()
        start = now()
        give_back(take(bytes_))
        times.append(now() - start)
    return times


def _at(times, percent):
    return times[(len(times) - 1) * percent // 100]


def _name(kib):
    return f"{kib >> 10} MiB" if kib % 1024 == 0 else f"{kib} KiB"


if __name__ == "__main__":
    sys.exit(main())
