"""The programs that are compared on the GPU: PyTorch in several ways, and magray on any device. Judges none of them."""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import gpu_ways, npy
from .contenders import PeerProcess, Unavailable, run_magray
from .gpu_cases import BY_TITLE, MINILM


# Never the CPU in the place of the GPU.
SETTINGS = "[gpu]\nfallback_enabled = false\n"


@dataclass
class GpuInputs:
    """What all contenders share."""

    device: str
    # MiniLM's folder, or None for random weights.
    model_dir: str | None
    scratch: Path
    batches: dict
    python: str
    magray: str

    def cases_file(self):
        return self.scratch / "cases.json"

    def ids_file(self, title):
        return self.scratch / f"ids-{title.replace(' ', '-')}.json"

    def cache(self):
        """Compiled kernels are kept here, so that no run depends on what an earlier one left."""
        return self.scratch / "cache"

    def model_of(self, shape):
        return self.model_dir if self.model_dir and shape == MINILM else f"synthetic:{shape}"

    def write(self):
        """Writes the batches once: every contender reads the same files."""
        cases = {title: {"model": BY_TITLE[title].model, "ids": ids} for title, ids in self.batches.items()}
        self.cases_file().write_text(json.dumps(cases))
        for title, ids in self.batches.items():
            self.ids_file(title).write_text(json.dumps(ids))


class Torch(PeerProcess):
    """One process for all ways, so that they share the weights and the context of the GPU."""

    def start(self, inputs):
        model_dir = str(Path(inputs.model_dir).resolve()) if inputs.model_dir else "-"
        command = [inputs.python, "-m", "compare.gpu_torch", inputs.device, model_dir, str(inputs.cases_file())]
        # A rehearsal on busy cores is quicker with one thread that waits for no other.
        self.begin(command, **({"OMP_NUM_THREADS": "1"} if inputs.device == "cpu" else {}))

    def ask(self, message):
        found = super().ask(message)
        if "error" in found:
            raise Unavailable(found["error"])
        return found

    def product_us(self, rows, shape):
        return self.ask({"product": [rows, *shape]})["us"]


@dataclass
class TorchWay:
    """PyTorch run in one way."""

    name: str
    process: Torch
    is_ours = False

    @property
    def precision(self):
        return gpu_ways.precision(self.name)

    def takes(self, title):
        return gpu_ways.takes(self.name, title)

    def median_ms(self, title, seconds):
        return self.process.ask({"case": title, "way": self.name, "seconds": seconds})["median_ms"]

    def vectors(self, title):
        return self.process.ask({"case": title, "way": self.name, "vectors": True})["vectors"]


@dataclass
class MagrayOn:
    """The binary on one device in one precision, run anew for each question."""

    name: str
    precision: str
    inputs: GpuInputs
    device: str
    is_ours = True

    def takes(self, title):
        return self.precision != "f32" or BY_TITLE[title].model == MINILM

    def median_ms(self, title, seconds):
        return self.run_case(title, seconds)["median_ms"]

    def vectors(self, title):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "vectors.npy")
            self.run_case(title, 0, "--vectors", str(file))
            return npy.read_rows(file)

    def run_case(self, title, seconds, *more):
        """The report on one of the cases."""
        ids = str(self.inputs.ids_file(title))
        return self.bench(BY_TITLE[title].model, "--seconds", str(seconds), "--ids", ids, *more)[0]

    def bench(self, shape, *flags):
        """The reports of `magray bench embed`, one a batch."""
        command = self.command(shape, *flags)
        reports = [json.loads(line) for line in run_magray(command, self.environment()).splitlines()]
        for report in reports:
            # Figures of a GPU that came from the CPU would be worse than none.
            if report["device"].partition(":")[0] != self.device.partition(":")[0]:
                raise Unavailable(f"magray computed on {report['device']}: {report.get('fallback', 'no reason given')}")
        return reports

    def command(self, shape, *flags):
        settings = self.inputs.scratch / "settings.toml"
        settings.write_text(SETTINGS)
        command = [self.inputs.magray, "bench", "embed", "--json", "--config", str(settings), "--device", self.device]
        return [*command, "--model", self.inputs.model_of(shape), "--precision", self.precision, *flags]

    def environment(self):
        return {**os.environ, "XDG_CACHE_HOME": str(self.inputs.cache())}
