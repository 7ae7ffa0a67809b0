"""Turns times of models that come and go into tables and verdicts. Pure: measures nothing, reads no file."""

import statistics

from .report import Line, table
from .rounds import HIT, MISS, ROUNDS_LEAST

# What was asked of a model of 16 GB on an H200; elsewhere and for other sizes it says nothing.
TARGET_GPU, TARGET_BYTES = "H200", 15 * 10**9
MOST_MS = {"first_offload": 300, "wake": 450, "offload": 100, "release": 500, "cold_wake": 500}
FILE_LEAST_GB_S = 20

WORDS = {
    "first_load": "first load to answer",
    "warm": "answer while it is there",
    "first_offload": "first offload after a load",
    "early_wake": "wake to answer right after it",
    "offload": "offload",
    "wake": "wake to answer",
    "preheat": "preheat",
    "cold_wake": "cold wake to answer (worker started anew)",
    "release": "release",
    "reload": "load again to answer",
}
MOVING = ["first_load", "early_wake", "wake", "preheat", "cold_wake", "reload"]


def is_judged(gpu_name, size):
    return TARGET_GPU in gpu_name and size >= TARGET_BYTES


def lines(report, gpu_name, title):
    """The first table: the steps that have a bar, and what may be left on the GPU."""
    judged = is_judged(gpu_name, report["bytes"])
    found = []
    for phase in report["phases"]:
        most = MOST_MS.get(phase["phase"])
        if most and judged:
            words = f"{phase['median_ms']:.1f} ms"
            result = verdict(phase["median_ms"] <= most, phase["runs"])
            found.append(Line(f"{title}: {WORDS[phase['phase']]}", words, bar=f"<= {most} ms", result=result))
    for state, more in left_bytes(report).items():
        found.append(Line(f"{title}: left on the GPU, {state}", f"{more} bytes", bar="0 bytes", result=MISS if more > 0 else HIT))
    return found


def magray_table(report):
    """One row a step: times and bytes a second."""
    rows = []
    for found in report["phases"]:
        speed = f"{gb_s(report['bytes'], found['median_ms']):.1f}" if found["phase"] in MOVING else "-"
        rows.append([WORDS[found["phase"]], found["runs"], _spread(found), speed])
    return table(["magray: step", "runs", "ms: median (least-most)", "GB/s"], rows)


def torch_table(found):
    rows = []
    for what, times in found["ms"].items():
        middle = statistics.median(times)
        spread = f"{middle:.1f} ({min(times):.1f}-{max(times):.1f})"
        rows.append([what, len(times), spread, f"{gb_s(found['bytes'], middle):.1f}"])
    return table([f"torch {found['torch']}: .to()", "runs", "ms: median (least-most)", "GB/s"], rows)


def memory_table(report):
    """What each state holds, of the whole GPU and of magray's pool."""
    rows = []
    for state in report["memory"]:
        pool = state["pool"] or {}
        rows.append([
            state["state"],
            _mb(state["device_used_bytes"]),
            _mb(state["magray_used_bytes"]),
            *[_mb(pool.get(figure)) for figure in ("reserved", "used", "peak_used", "parked")],
            "yes" if state["has_worker"] else "no",
        ])
    return table(["state", "whole GPU MB", "magray MB", "pool reserved", "used", "peak", "parked", "worker"], rows)


def left_bytes(report):
    """Bytes more than before the first worker, by state without a worker."""
    known = [state for state in report["memory"] if state["device_used_bytes"] is not None and not state["has_worker"]]
    before = next((state["device_used_bytes"] for state in known if state["state"] == "before"), None)
    if before is None:
        return {}
    return {state["state"]: state["device_used_bytes"] - before for state in known if state["state"] != "before"}


def file_line(report, gpu_name):
    """How fast files of the file cache came to the GPU: the median of the loads after the first."""
    again = next((found for found in report["phases"] if found["phase"] == "reload"), None)
    found = again or next(found for found in report["phases"] if found["phase"] == "first_load")
    speed = gb_s(report["bytes"], found["median_ms"])
    words = (f"From files: {WORDS[found['phase']]}", f"{speed:.1f} GB/s")
    if not is_judged(gpu_name, report["bytes"]):
        return Line(*words)
    return Line(*words, bar=f">= {FILE_LEAST_GB_S} GB/s", result=verdict(speed >= FILE_LEAST_GB_S, found["runs"]))


def verdict(holds, runs):
    """As in every comparison: fewer than five runs decide nothing."""
    return (HIT if holds else MISS) if runs >= ROUNDS_LEAST else f"undecided: {runs} of {ROUNDS_LEAST} rounds"


def gb_s(size, ms):
    return size / ms / 1e6


def random_words(report):
    """The random moves in one sentence."""
    left = report["left"]
    kinds = ["device_bytes", "pool_bytes", "shared_memory_bytes", "file_descriptors", "processes"]
    found = ", ".join(f"{kind.replace('_', ' ')} {left[kind]}" for kind in kinds)
    return (
        f"{report['rounds']} rounds over {report['models']} models with room for {report['fit']} (seed {report['seed']}, "
        f"{report['seconds']:.0f} s): {report['requests']} requests, failed {report['failed']}, refused {report['refused']}, "
        f"wrong {report['wrong']}, other bits {report['other_bits']}; {report['loads']} loads, {report['offloads']} "
        f"offloads, at most {report['resident_max']} models on the GPU. Left at the end: {found}."
    )


def _spread(found):
    return f"{found['median_ms']:.1f} ({found['min_ms']:.1f}-{found['max_ms']:.1f})"


def _mb(value):
    return "-" if value is None else f"{value / 1e6:.1f}"
