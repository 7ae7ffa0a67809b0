"""Turns times of models that come and go into tables and verdicts. Pure: measures nothing, reads no file."""

import statistics

from .report import table

# What was asked of a model of 16 GB on an H200; elsewhere and for other sizes it says nothing.
TARGET_GPU, TARGET_BYTES = "H200", 15 * 10**9
MOST_MS = {"wake": 450, "offload": 100, "release": 500, "cold_wake": 1500}
FILE_LEAST_GB_S = 20
# Of this process, by the driver, where no worker is left.
COLD_MOST_BYTES = 0

WORDS = {
    "first_load": "first load to answer",
    "warm": "answer while it is there",
    "first_offload": "first offload after a load (waits for the copy on the host)",
    "offload": "offload",
    "wake": "wake to answer",
    "preheat": "preheat",
    "cold_wake": "cold wake to answer (worker started anew)",
    "release": "release",
    "reload": "load again to answer",
}
MOVING = ["first_load", "wake", "preheat", "cold_wake", "reload"]


def is_judged(gpu_name, size):
    return TARGET_GPU in gpu_name and size >= TARGET_BYTES


def magray_table(report, gpu_name):
    """One row a step: times, bytes a second, and what was asked."""
    judged = is_judged(gpu_name, report["bytes"])
    rows = []
    for found in report["phases"]:
        phase, median = found["phase"], found["median_ms"]
        speed = f"{gb_s(report['bytes'], median):.1f}" if phase in MOVING else "-"
        most = MOST_MS.get(phase) if judged else None
        rows.append([WORDS[phase], found["runs"], _spread(found), speed, most or "-", verdict(median, most)])
    return table(["magray: step", "runs", "ms: median (least-most)", "GB/s", "at most", "verdict"], rows)


def torch_table(found):
    rows = []
    for what, times in found["ms"].items():
        middle = statistics.median(times)
        spread = f"{middle:.1f} ({min(times):.1f}-{max(times):.1f})"
        rows.append([what, len(times), spread, f"{gb_s(found['bytes'], middle):.1f}"])
    return table([f"torch {found['torch']}: .to()", "runs", "ms: median (least-most)", "GB/s"], rows)


def memory_table(report):
    """What each state holds, of the whole GPU and of magray's pool."""
    before = next((state["device_used_bytes"] for state in report["memory"] if state["state"] == "before"), None)
    rows = []
    for state in report["memory"]:
        pool = state["pool"] or {}
        rows.append([
            state["state"],
            _mb(state["device_used_bytes"]),
            _mb(state["magray_used_bytes"]),
            *[_mb(pool.get(figure)) for figure in ("reserved_bytes", "used_bytes", "peak_used_bytes", "parked_bytes")],
            "yes" if state["has_worker"] else "no",
            _verdict_of_state(state, before),
        ])
    head = ["state", "whole GPU MB", "magray MB", "pool reserved", "used", "peak", "parked", "worker", "nothing left"]
    return table(head, rows)


def _verdict_of_state(state, before):
    """Without a worker the GPU must hold what it held before the first one came."""
    used = state["device_used_bytes"]
    if state["has_worker"] or used is None or before is None or state["state"] == "before":
        return "-"
    more = used - before
    return "holds" if more <= COLD_MOST_BYTES else f"MISSED: {more} bytes more"


def file_words(report, gpu_name):
    """How fast files of the file cache came to the GPU."""
    times = [found["median_ms"] for found in report["phases"] if found["phase"] in ("first_load", "reload")]
    speed = gb_s(report["bytes"], min(times))
    judged = is_judged(gpu_name, report["bytes"])
    asked = f", asked for {FILE_LEAST_GB_S}: {verdict(-speed, -FILE_LEAST_GB_S)}" if judged else ""
    return f"From the file cache to the first answer on the GPU: {min(times):.0f} ms, {speed:.1f} GB/s{asked}."


def verdict(value, most):
    if most is None:
        return "recorded"
    return "holds" if value <= most else "MISSED"


def gb_s(size, ms):
    return size / ms / 1e6


def random_words(report):
    """The rounds by chance in one sentence."""
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
