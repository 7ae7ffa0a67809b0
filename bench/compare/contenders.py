"""The programs that are compared, each behind the same two questions: a timing, the vectors. Judges none of them."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import npy

PACKAGE_PARENT = Path(__file__).resolve().parents[1]
REFERENCE = "torch f32"
RAGGED = "32 ragged"
# Cases that are only for contenders which pad; see `peer_process`.
ONE_BY_ONE, SORTED = f"{RAGGED}, one by one", f"{RAGGED}, sorted groups"


class Unavailable(Exception):
    """This contender cannot run here; the message says why. The others go on."""


@dataclass
class Inputs:
    """What all contenders share."""

    model_dir: Path
    scratch: Path
    threads: int
    batches: dict
    python: str
    magray: str

    def batches_file(self):
        return self.scratch / "batches.json"

    def ids_file(self, case):
        return self.scratch / f"ids-{case.replace(' ', '-')}.json"

    def write(self):
        """Writes the batches once: every contender reads the same files."""
        self.batches_file().write_text(json.dumps(self.batches))
        for case, batch in self.batches.items():
            self.ids_file(case).write_text(json.dumps(batch))


class PeerProcess:
    """A long-lived process that answers questions, one JSON line each; frozen while others are measured."""

    def begin(self, command, **environment):
        """Starts the process and waits for its first line."""
        self._noise = tempfile.TemporaryFile("w+")
        everything = {**os.environ, "PYTHONPATH": str(PACKAGE_PARENT), **environment}
        self._process = subprocess.Popen(
            command, env=everything, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._noise, text=True
        )
        self._read()
        self._process.send_signal(signal.SIGSTOP)

    def ask(self, message):
        # Frozen between questions: some libraries spin on a core for a while after their last call.
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            return self._read()
        except BrokenPipeError:
            raise Unavailable(self._last_words()) from None
        finally:
            self._process.send_signal(signal.SIGSTOP)

    def stop(self):
        if hasattr(self, "_process"):
            self._process.kill()
            self._process.wait()

    def _read(self):
        line = self._process.stdout.readline()
        if not line:
            raise Unavailable(self._last_words())
        return json.loads(line)

    def _last_words(self):
        self._process.wait()
        self._noise.seek(0)
        lines = self._noise.read().strip().splitlines()
        return lines[-1] if lines else f"ended with status {self._process.returncode}"


@dataclass
class Peer(PeerProcess):
    """A library in a process of its own."""

    name: str
    precision: str
    is_ours = False

    def takes(self, case):
        return True

    def start(self, inputs):
        command = [inputs.python, "-m", "compare.peer_process", self.name, str(inputs.model_dir), str(inputs.scratch)]
        command += [str(inputs.threads), str(inputs.batches_file())]
        self.begin(command, OMP_NUM_THREADS=str(inputs.threads))

    def median_ms(self, case, seconds):
        return self.ask({"case": case, "seconds": seconds})["median_ms"]

    def vectors(self, case):
        return self.ask({"case": case, "vectors": True})["vectors"]


@dataclass
class Magray:
    """The release binary, run anew for each timing; it reports the time of the forward passes alone."""

    name: str
    precision: str
    is_ours = True

    def takes(self, case):
        # It pads nothing: to divide a batch is no way for it.
        return case not in (ONE_BY_ONE, SORTED)

    def start(self, inputs):
        self._inputs = inputs
        # The first case only shows that this path and this precision exist on the machine.
        self.median_ms(next(iter(inputs.batches)), 0.01)

    def median_ms(self, case, seconds):
        return self._bench(case, seconds)["median_ms"]

    def vectors(self, case):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "vectors.npy")
            self._bench(case, 0.01, "--vectors", str(file))
            return npy.read_rows(file)

    def stop(self):
        """Nothing outlives a question."""

    def _bench(self, case, seconds, *more):
        given = self._inputs
        command = [given.magray, "bench", "embed", "--json", "--device", "cpu", "--model", str(given.model_dir)]
        command += ["--precision", self.precision, "--threads", str(given.threads)]
        command += ["--ids", str(given.ids_file(case)), "--seconds", str(seconds), *more]
        return json.loads(run_magray(command))


def run_magray(command, environment=None):
    """Runs the binary and gives its standard output; a failure is told in its own last words."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        words = done.stderr.strip().splitlines()
        raise Unavailable(words[-1] if words else f"magray ended with status {done.returncode}")
    return done.stdout


def all_contenders():
    """Every contender; the reference of the accuracy is the first."""
    return [
        Peer(REFERENCE, "f32"),
        Peer("torch bf16", "bf16"),
        Peer("torch.compile f32", "f32"),
        Peer("torch.compile bf16", "bf16"),
        Peer("ORT f32", "f32"),
        Peer("ORT int8", "int8"),
        Peer("OpenVINO f32", "f32"),
        Peer("OpenVINO bf16", "bf16"),
        Peer("OpenVINO int8", "int8"),
        Magray("magray auto", "auto"),
        Magray("magray int8", "int8"),
        Magray("magray f32", "f32"),
    ]


def start_all(contenders, inputs):
    """Starts each; gives those that run, and the reason of each that does not, by name."""
    running, refused = [], {}
    for contender in contenders:
        print(f"starting {contender.name}", file=sys.stderr)
        try:
            contender.start(inputs)
            running.append(contender)
        except Unavailable as reason:
            contender.stop()
            refused[contender.name] = str(reason)
    return running, refused
