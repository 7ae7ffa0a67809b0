"""The servers of the comparison through HTTP, and the load that is put on them. Judges nothing.

An idle server is stopped (SIGSTOP), so that it takes nothing from the one that is measured.
"""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

MODEL = "all-MiniLM-L6-v2"
# infinity-emb measures itself first.
START_WITHIN_S = 600
# Those that compute in turns have turns of this length: short beside what disturbs a shared machine, which comes and goes
# within seconds, and long beside what it takes to go on.
TURN_S = 0.1
# What magray's queue holds here, in time.
QUEUE_WAIT_S = 2


class Unavailable(Exception):
    """A server that does not start or does not answer; the message says why."""


@dataclass
class Server:
    """A server that answers OpenAI's /embeddings."""

    name: str
    command: list
    path: str
    port: int
    log: Path
    environment: dict = field(default_factory=dict)
    folder: Path | None = None
    key: str | None = None
    process: subprocess.Popen = None

    def start(self):
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=os.environ | self.environment, cwd=self.folder, start_new_session=True
            )
        until = time.monotonic() + START_WITHIN_S
        while True:
            try:
                self.vectors(["ready"])
                break
            except OSError as reason:
                if self.process.poll() is not None:
                    raise Unavailable(f"it ended at its start: {last_line(self.log)}") from None
                if time.monotonic() > until:
                    self.stop()
                    raise Unavailable(f"it does not answer: {reason}") from None
                time.sleep(0.2)
        self.rest()

    def rest(self):
        send(self.process, signal.SIGSTOP)

    def wake(self):
        send(self.process, signal.SIGCONT)

    def stop(self):
        if self.process and self.process.poll() is None:
            self.wake()
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    def vectors(self, texts):
        body = json.dumps({"model": MODEL, "input": texts}).encode()
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {self.key}"} if self.key else {})
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{self.path}", body, headers)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return [item["embedding"] for item in json.load(reply)["data"]]

    def memory_peak_mb(self):
        """The most memory that its main process has held."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        return 0.0


def magray(binary, model_dir, scratch, threads, name="magray", settings=(), queue_wait_s=QUEUE_WAIT_S):
    port = free_port()
    command = [binary, "serve", "--device", "cpu", "--preload", "--quiet", "--queue-wait", str(queue_wait_s)]
    command += ["--port", str(port), "--threads", str(threads), *settings]
    return Server(name, [*command, "--model", str(model_dir)], "/v1/embeddings", port, scratch / f"{name.replace(' ', '-')}.log")


def taking_turns(binary, model_dir, scratch, threads):
    """Two alike that are stopped half of the time: by the clock their work takes twice as long, and may do so. They refuse no
    sooner than if they went on, and later where a batch is done within a turn: that one is measured without stops."""
    start = (binary, model_dir, scratch, threads)
    return [magray(*start, f"magray in turns {side}", queue_wait_s=2 * QUEUE_WAIT_S) for side in (1, 2)]


# The ways to run infinity-emb, by name: its engine and the type of its numbers.
INFINITY = {
    "infinity-emb torch f32": ("torch", "float32"),
    "infinity-emb torch bf16": ("torch", "bfloat16"),
    "infinity-emb ONNX f32": ("optimum", "auto"),
}


def infinity(name, python, model_dir, scratch, threads):
    engine, dtype = INFINITY[name]
    port = free_port()
    program = "import sys; from infinity_emb.cli import cli; sys.argv[0] = 'infinity_emb'; cli()"
    options = ["--model-id", str(model_dir), "--served-model-name", MODEL, "--engine", engine, "--device", "cpu", "--dtype", dtype]
    if engine == "optimum":
        # It finds its file only where it is started, and does not read how the model pools.
        options[1:2] = [".", "--pooling-method", "mean"]
    command = [python, "-c", program, "v2", *options, "--host", "127.0.0.1", "--port", str(port)]
    quiet = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    return Server(
        name,
        command,
        "/embeddings",
        port,
        scratch / f"{name.replace(' ', '-')}.log",
        quiet | {"OMP_NUM_THREADS": str(threads), "INFINITY_LOG_LEVEL": "warning"},
        Path(model_dir) if engine == "optimum" else None,
    )


# Its ONNX engine wants the model in this form, with the names that transformers uses.
EXPORT = """
import sys, torch, transformers
model = transformers.AutoModel.from_pretrained(sys.argv[1], attn_implementation="eager").eval()
sample = torch.ones((2, 8), dtype=torch.int64)
names = ["input_ids", "attention_mask", "token_type_ids"]
axes = {name: {0: "texts", 1: "tokens"} for name in [*names, "last_hidden_state"]}
torch.onnx.export(
    model, (sample, sample, 0 * sample), sys.argv[2], input_names=names, output_names=["last_hidden_state"],
    dynamic_axes=axes, opset_version=17, dynamo=False,
)
"""


def export_onnx(python, model_dir):
    """Puts the model as ONNX beside its other files, once. Where that fails, the engine that needs it says so."""
    file = Path(model_dir) / "model.onnx"
    if not file.exists():
        unfinished = file.with_suffix(".part")
        done = subprocess.run([python, "-c", EXPORT, str(model_dir), str(unfinished)], capture_output=True, text=True)
        if done.returncode == 0:
            unfinished.rename(file)
        else:
            print(f"no ONNX file: {done.stderr.strip()[-300:]}", file=sys.stderr)


@dataclass(frozen=True)
class Load:
    """What the generator sends, and with how many threads: `rate` 0 is a closed loop."""

    bodies: Path
    connections: int
    seconds: float
    warmup: float
    rate: float = 0.0
    threads: int = 1


def put_load(generator, server, load):
    """Runs the generator against a server; its figures."""
    server.wake()
    done = subprocess.run(load_command(generator, server, load), capture_output=True, text=True)
    server.rest()
    return figures_in(done)


def bare_engine(binary, model_dir, threads, case, load):
    """The same load on the engine without HTTP and without a tokenizer, by the binary's own generator."""
    return figures_in(subprocess.run(engine_command(binary, model_dir, threads, case, load), capture_output=True, text=True))


def with_engine(generator, server, binary, model_dir, threads, case, load):
    """The same load through HTTP and on the bare engine in turns, so that both have the machine's good and bad moments alike.
    The figures of both, of which only counts mean something, since times have the other's turns in them; and by how much
    longer the turns of the server were, all in all."""
    through = load_command(generator, server, load), [server.process]
    return in_turns(load, through, (engine_command(binary, model_dir, threads, case, load), []))


def with_twin(generator, server, load, twin, twin_load):
    """Two loads on two servers in turns, as above; both last equally long."""
    one, other = (server, load), (twin, twin_load)
    return in_turns(load, *((load_command(generator, *pair), [pair[0].process]) for pair in (one, other)))


def in_turns(load, *sides):
    ended, seconds = take_turns(load.warmup, load.seconds, sides)
    return *map(figures_in, ended), seconds[0] / seconds[1] if seconds[1] else 1.0


def take_turns(lead, window, sides):
    """Runs two commands, of which only one goes on at any time, and with it the processes beside it; those stay stopped. What
    became of both commands, and the time that each has had in its window: that begins so much later than the command itself,
    whose first turn comes when those before it had theirs."""
    started, seconds = [], [0.0] * len(sides)
    try:
        for command, _ in sides:
            piped = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
            started.append(subprocess.Popen(command, **piped))
            send(started[-1], signal.SIGSTOP)
        turns, start = 0, time.monotonic()
        while any(process.poll() is None for process in started):
            own, began = turns % len(sides), time.monotonic()
            taking_part = [*sides[own][1], started[own]]
            for process in taking_part:
                send(process, signal.SIGCONT)
            turns += 1
            time.sleep(max(0.0, start + turns * TURN_S - time.monotonic()))
            for process in taking_part:
                send(process, signal.SIGSTOP)
            first = start + own * TURN_S + lead
            seconds[own] += overlap((began, time.monotonic()), (first, first + window))
    finally:
        for process in [process for _, beside in sides for process in beside]:
            send(process, signal.SIGSTOP)
        for process in started:
            send(process, signal.SIGKILL)
        said = [process.communicate() for process in started]
    ended = [subprocess.CompletedProcess(it.args, it.returncode, *texts) for it, texts in zip(started, said)]
    return ended, seconds


def overlap(one, other):
    """How long two times, from and to, are the same."""
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def whole_turns(seconds):
    """This time or a little more: as many turns of one as of the other."""
    return 2 * TURN_S * math.ceil(seconds / (2 * TURN_S))


def load_command(generator, server, load):
    words = [server.port, server.path, load.bodies, load.connections, load.seconds, load.warmup, load.rate, 1, load.threads]
    return [str(generator), *map(str, words)]


def engine_command(binary, model_dir, threads, case, load):
    length = ["--tokens", str(case.tokens)] if case.tokens else ["--ragged"]
    command = [binary, "load", "--json", "--quiet", "--device", "cpu", "--threads", str(threads)]
    command += ["--model", str(model_dir), "--texts", str(case.texts), *length, "--clients", str(case.connections)]
    # The model is loaded with the first request.
    return [*command, "--seconds", f"{load.seconds:g}", "--warmup", f"{max(load.warmup, 1.0):g}"]


def figures_in(done):
    """What a generator printed, which has ended."""
    if done.returncode:
        raise Unavailable(done.stderr.strip()[-200:] or "the generator failed")
    return json.loads(done.stdout)


def send(process, what):
    """Sends a signal to all of a process, if it still runs."""
    if process.poll() is None:
        os.killpg(process.pid, what)


def built_generator(root, scratch):
    """The generator, compiled."""
    program = scratch / "http_load"
    built = subprocess.run(["cc", "-O2", "-o", str(program), str(root / "bench" / "http_load.c"), "-lm", "-pthread"])
    if built.returncode:
        raise Unavailable("bench/http_load.c did not compile: a C compiler on Linux is needed")
    return program


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def last_line(log):
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][-300:] if lines else "it said nothing"
