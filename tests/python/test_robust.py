"""Threads, forks, spawns, interrupts and ends of the interpreter: no round of them hangs or crashes.

MAGRAY_PYTHON_ROUNDS=1000 for a long run.
"""

import signal
import subprocess
import sys
import threading
import unittest

import numpy as np
from installed import EMBEDDER, HANGS_AFTER_S, ROUNDS, SETTINGS, TOLERANCE, Isolated, run

BEGIN = f"""
import asyncio, os, signal, sys, threading, time
from magray import Encoder
encoder = Encoder({EMBEDDER!r}, **{SETTINGS!r})
LONG = ["the river and the cat " * 60] * 20000
"""
# Each of them ends in a way of its own while work is under way.
ENDINGS = {
    "the main thread ends beside daemons": """
for _ in range(4):
    threading.Thread(target=encoder.encode, args=(LONG,), daemon=True).start()
encoder.encode("a")
""",
    "daemons ask and ask": """
def ask():
    while True:
        encoder.encode("a")
for _ in range(8):
    threading.Thread(target=ask, daemon=True).start()
encoder.encode(["a"] * 64)
""",
    "sys.exit with an awaited task": """
async def main():
    task = asyncio.ensure_future(encoder.aencode(LONG))
    await encoder.aencode("a")
    sys.exit(0)
try:
    asyncio.run(main())
except SystemExit:
    pass
""",
    "an exception with threads that wait": """
for _ in range(2):
    threading.Thread(target=encoder.encode, args=(LONG,), daemon=True).start()
sys.excepthook = lambda *_: None
raise SystemExit(0)
""",
    "a pending result is dropped at the end": """
pending = encoder.engine.native().embed(LONG[:3000], None, 64, None, False, False)
assert pending.wait(0) is None
""",
    "a fork ends before its parent": """
pid = os.fork()
if pid == 0:
    assert encoder.encode("a").shape
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
encoder.encode("a")
""",
    "a fork while threads compute": """
threads = [threading.Thread(target=encoder.encode, args=(LONG[:500],), daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
pid = os.fork()
if pid == 0:
    encoder.encode(["a", "b"])
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
""",
}
INTERRUPTED = BEGIN + """
# What a shell began in the background ignores interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    print("ready", flush=True)
    while True:
        encoder.encode(LONG)
except KeyboardInterrupt:
    print(encoder.encode("a").shape, flush=True)
"""
SPAWNED = """
import multiprocessing, sys
from magray import Encoder
def work(encoder, text):
    return encoder.encode(text)[:3].tolist()
if __name__ == "__main__":
    encoder = Encoder(sys.argv[1], device="cpu", threads=1, precision="f32", server="")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        rows = pool.starmap(work, [(encoder, "a"), (encoder, "b")])
    assert rows[0] == encoder.encode("a")[:3].tolist()
"""


class RobustTest(Isolated):
    def test_eight_threads_get_their_own_rows(self):
        from magray import Encoder

        encoder = Encoder(EMBEDDER, **SETTINGS)
        texts = [f"river {number}" for number in range(8)]
        expected, wrong = encoder.encode(texts), []

        def ask(own):
            for _ in range(ROUNDS):
                row = encoder.encode([texts[own], "a cat"])[0]
                if abs(row - expected[own]).max() > TOLERANCE:
                    wrong.append(own)

        threads = [threading.Thread(target=ask, args=(own,)) for own in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANGS_AFTER_S)
        self.assertFalse(any(thread.is_alive() for thread in threads))
        self.assertEqual(wrong, [])
        encoder.close()

    def test_no_way_to_end_hangs(self):
        for number in range(max(ROUNDS, len(ENDINGS))):
            name, code = list(ENDINGS.items())[number % len(ENDINGS)]
            with self.subTest(ending=name, round=number):
                self.assertEqual(run(BEGIN + code), (0, "", ""))

    def test_an_interrupt_ends_a_call_and_the_engine_goes_on(self):
        for number in range(max(2, ROUNDS // 8)):
            with self.subTest(round=number):
                with subprocess.Popen([sys.executable, "-B", "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True) as child:
                    self.assertEqual(child.stdout.readline(), "ready\n")
                    child.send_signal(signal.SIGINT)
                    try:
                        printed, _ = child.communicate(timeout=HANGS_AFTER_S)
                    except subprocess.TimeoutExpired:
                        # It would compute for ever.
                        child.kill()
                        raise
                self.assertRegex(printed, r"^\(\d+,\)\n$")
                self.assertEqual(child.returncode, 0)

    def test_a_spawned_process_makes_its_own_engine(self):
        script = self.home / "spawned.py"
        script.write_text(SPAWNED)
        done = subprocess.run([sys.executable, "-B", script, EMBEDDER], capture_output=True, text=True, timeout=HANGS_AFTER_S)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_what_was_made_before_a_fork_says_so(self):
        code = BEGIN + """
from magray import Forked
native = encoder.engine.native()
pid = os.fork()
if pid == 0:
    try:
        native.embed(["a"], None, 64, None, False, False)
    except Forked as told:
        os._exit(0 if "before a fork" in str(told) else 2)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
"""
        self.assertEqual(run(code), (0, "", ""))

    def test_a_result_that_is_not_waited_for_is_not_there_yet(self):
        from magray import Cancelled, Encoder

        encoder = Encoder(EMBEDDER, **SETTINGS)
        pending = encoder.engine.native().embed(["a river " * 200] * 4000, None, 64, None, False, False)
        self.assertIsNone(pending.wait(0))
        pending.cancel()
        with self.assertRaises(Cancelled):
            pending.wait()
        self.assertEqual(np.asarray(encoder.encode("a")).ndim, 1)


if __name__ == "__main__":
    unittest.main()
