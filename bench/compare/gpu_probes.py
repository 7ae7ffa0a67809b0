"""Measures what is not a race: other precisions, memory, start-up, products. Judges nothing.

Each probe gives a list of rows for `gpu_report`; what cannot run here is told and left out, and the others go on.
"""

import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from .contenders import Unavailable
from .gpu_cases import EQUAL, MINILM, RAGGED, SHAPES, fewer, tokens_each
from .gpu_contenders import MagrayOn

# Those that no peer here computes in.
PRECISIONS = ["int8", "tf32"]
PRODUCT_ROWS = [4096, 16384, 65536]
BYTES = {"f32": 4, "bf16": 2}
STARTS = 3


@dataclass
class Probe:
    """What the probes share."""

    inputs: object
    seconds: float
    rehearse: bool
    note: object

    def magray(self, precision, **more):
        return MagrayOn("magray", precision, self.inputs, more.pop("device", self.inputs.device), **more)

    def tell(self, what, reason):
        self.note(f"{what}: not measured: {reason}")


def precisions(probe):
    """Rows of a precision and its ms, by case."""
    rows = []
    for precision in PRECISIONS:
        magray = probe.magray(precision)
        try:
            times = {title: magray.median_ms(title, probe.seconds / 2) for title in [*EQUAL, RAGGED[-1]]}
        except Unavailable as reason:
            probe.tell(f"precision {precision}", reason)
            continue
        probe.note(f"precision {precision}  " + "  ".join(f"{title} {ms:.3f} ms" for title, ms in times.items()))
        rows.append((precision, times))
    return rows


def memory(probe, gpu):
    """Rows of a precision, the bytes of the GPU before, the most during a run, and the bytes of the weights."""
    rows = []
    for precision, width in BYTES.items():
        flags = ["--batch", str(fewer(512, probe.rehearse)), "--tokens", str(tokens_each(probe.rehearse))]
        magray = probe.magray(precision)
        command = magray.command(MINILM, "--seconds", str(max(1.0, probe.seconds)), *flags)
        before = most = gpu.used_bytes()
        serving = subprocess.Popen(
            command, env=magray.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            while serving.poll() is None:
                most = max(most, gpu.used_bytes())
                # Often enough to see the peak of a process that serves for a second.
                time.sleep(0.01)
        finally:
            serving.kill()
            serving.wait()
        if serving.returncode:
            probe.tell(f"memory {precision}", f"magray ended with status {serving.returncode}")
            continue
        weights = SHAPES[MINILM].weights() * width
        probe.note(f"memory {precision}  before {before}  most {most}  weights {weights} bytes")
        rows.append((precision, before, most, weights))
    return rows


def start_up(probe):
    """Rows of a way to start and its seconds, one a start."""
    ways = [("filled cache", probe.inputs.device, False, STARTS), ("empty cache", probe.inputs.device, True, 2)]
    if probe.inputs.model_dir:
        ways += [("auto, first use: measures CPU and GPU", "auto", True, 1), ("auto, filled cache", "auto", False, STARTS)]
    ways.append(("on the CPU", "cpu", False, STARTS))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "kept")
        for title, device, anew, times in ways:
            try:
                if not anew:
                    # Not counted: it fills the cache, and brings the files into memory.
                    started_s(probe, device, kept)
                taken = [started_s(probe, device, Path(folder, f"{device}-{at}") if anew else kept) for at in range(times)]
            except Unavailable as reason:
                probe.tell(f"start-up, {title}", reason)
                continue
            probe.note(f"start-up, {title:40} " + "  ".join(f"{seconds:.3f} s" for seconds in taken))
            rows.append((title, taken))
    return rows


def started_s(probe, device, cache):
    """Seconds from the start of a process to its end, with one vector between them."""
    magray = probe.magray("auto", device=device)
    if probe.inputs.model_dir:
        command = [probe.inputs.magray, "embed", "--quiet", "--device", device]
        command += ["--model", probe.inputs.model_dir, "hello world"]
    else:
        command = magray.command(MINILM, "--batch", "1", "--tokens", "16", "--seconds", "0")
    start = time.perf_counter()
    done = subprocess.run(
        command, env={**os.environ, "XDG_CACHE_HOME": str(cache)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    taken = time.perf_counter() - start
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise Unavailable(words[-1] if words else f"magray ended with status {done.returncode}")
    return taken


def products(probe, torch):
    """Rows of a product by PyTorch: the model, inputs, outputs, and the microseconds by rows."""
    rows = []
    for name, shape in SHAPES.items():
        for inputs, outputs in shape.products():
            taken = {}
            for count in PRODUCT_ROWS:
                try:
                    taken[count] = torch.product_us(fewer(count, probe.rehearse), (inputs, outputs))
                except Unavailable as reason:
                    probe.tell(f"product {inputs} x {outputs}", reason)
                    return rows
            probe.note(f"product {name} {inputs} x {outputs}  " + "  ".join(f"{n}: {us:.1f} us" for n, us in taken.items()))
            rows.append((name, inputs, outputs, taken))
    return rows
