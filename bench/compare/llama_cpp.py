#!/usr/bin/env python3
"""llama.cpp through its C interface: how fast prompt and new tokens are, the logits of given tokens, and smaller files of a model.

Runs in a process of its own, since a library that dies takes its process along. Takes the folder of the npm package
`@node-llama-cpp/linux-x64` (`bins/linux-x64`) or of any build with shared libraries; needs nothing beside Python.

    llama_cpp.py LIBRARIES speed MODEL --prompt-tokens 512 --context 512 --tokens 64 --threads 2
    llama_cpp.py LIBRARIES logits MODEL IDS OUT --one-by-one-from 0
    llama_cpp.py LIBRARIES tokenise MODEL TEXTS OUT
    llama_cpp.py LIBRARIES quantise MODEL OUT Q4_0
"""

import argparse
import ctypes
import json
import sys
import time
from pathlib import Path

# Structures that are passed by value are larger here than in any version: nothing else is passed on the stack behind them.
ROOM = 1024
FILE_TYPES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q4_K_M": 15, "Q6_K": 18}
PART_TOKENS = 512


class Parameters(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * ROOM)]

    def numbers(self):
        return ctypes.cast(ctypes.byref(self), ctypes.POINTER(ctypes.c_uint32))


class Batch(ctypes.Structure):
    _fields_ = [
        ("count", ctypes.c_int32),
        ("tokens", ctypes.POINTER(ctypes.c_int32)),
        ("embeddings", ctypes.c_void_p),
        ("positions", ctypes.POINTER(ctypes.c_int32)),
        ("sequence_counts", ctypes.POINTER(ctypes.c_int32)),
        ("sequences", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("wanted", ctypes.POINTER(ctypes.c_int8)),
    ]


class Library:
    def __init__(self, folder):
        folder = Path(folder).resolve()
        first = lambda pattern: str(next(path for path in sorted(folder.glob(pattern)) if "common" not in path.name))
        self.base = ctypes.CDLL(first("libggml-base*.so*"), mode=ctypes.RTLD_GLOBAL)
        ggml = next(path for path in sorted(folder.glob("libggml*.so*")) if path.name.startswith(("libggml.so", "libggml.v")))
        self.ggml = ctypes.CDLL(str(ggml), mode=ctypes.RTLD_GLOBAL)
        self.llama = ctypes.CDLL(first("libllama.*"), mode=ctypes.RTLD_GLOBAL)
        self.silence = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
        self.llama.llama_log_set(self.silence, None)
        self.ggml.ggml_backend_load_all_from_path(str(folder).encode())
        self.llama.llama_backend_init()
        for name in ("llama_model_default_params", "llama_context_default_params", "llama_model_quantize_default_params"):
            getattr(self.llama, name).restype = Parameters
        pointer = ctypes.c_void_p
        self._declare("llama_model_load_from_file", pointer, ctypes.c_char_p, Parameters)
        self._declare("llama_init_from_model", pointer, pointer, Parameters)
        self._declare("llama_set_n_threads", None, pointer, ctypes.c_int32, ctypes.c_int32)
        self._declare("llama_decode", ctypes.c_int32, pointer, Batch)
        self._declare("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), pointer, ctypes.c_int32)
        self._declare("llama_get_memory", pointer, pointer)
        self._declare("llama_memory_clear", None, pointer, ctypes.c_bool)
        self._declare("llama_model_get_vocab", pointer, pointer)
        self._declare("llama_vocab_n_tokens", ctypes.c_int32, pointer)
        self._declare("llama_print_system_info", ctypes.c_char_p)

    def _declare(self, name, result, *arguments):
        function = getattr(self.llama, name)
        function.restype, function.argtypes = result, arguments


class Model:
    """A model with room for one sequence."""

    def __init__(self, library, path, context, threads):
        self.llama = library.llama
        model = self.llama.llama_model_load_from_file(str(path).encode(), self.llama.llama_model_default_params())
        if not model:
            raise SystemExit(f"llama.cpp does not read {Path(path).name}")
        self.vocabulary = self.llama.llama_model_get_vocab(model)
        self.vocab = max(self.llama.llama_vocab_n_tokens(self.vocabulary), 0)
        settings = self.llama.llama_context_default_params()
        numbers = settings.numbers()
        numbers[0], numbers[1], numbers[2] = context, max(PART_TOKENS, 64), PART_TOKENS
        self.context = self.llama.llama_init_from_model(model, settings)
        self.llama.llama_set_n_threads(self.context, threads, threads)
        self.sequence = (ctypes.c_int32 * 1)(0)

    def clear(self):
        self.llama.llama_memory_clear(self.llama.llama_get_memory(self.context), True)

    def step(self, ids, start, wanted):
        count = len(ids)
        sequences = (ctypes.POINTER(ctypes.c_int32) * count)(*[self.sequence] * count)
        batch = Batch(
            count,
            (ctypes.c_int32 * count)(*ids),
            None,
            (ctypes.c_int32 * count)(*range(start, start + count)),
            (ctypes.c_int32 * count)(*[1] * count),
            sequences,
            (ctypes.c_int8 * count)(*[at in wanted for at in range(count)]),
        )
        if self.llama.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama.cpp did not compute a step")

    def logits(self, at):
        return self.llama.llama_get_logits_ith(self.context, at)

    def prompt(self, ids, start=0):
        for first in range(0, len(ids), PART_TOKENS):
            part = ids[first : first + PART_TOKENS]
            self.step(part, start + first, {len(part) - 1})


def made_up(count, vocab):
    """Tokens that follow from their places alone: those of `magray-bench generate`."""
    return [((i * 0x9E3779B97F4A7C15 & (1 << 64) - 1) >> 33) % vocab for i in range(count)]


def speed(library, arguments):
    """Rates of a prompt and of new tokens, which are given ones: no time goes into choosing them."""
    model = Model(library, arguments.model, arguments.context + arguments.tokens + PART_TOKENS, arguments.threads)
    vocab = arguments.vocab or model.vocab
    model.prompt(made_up(64, vocab))
    model.clear()
    prompt, more = made_up(arguments.prompt_tokens, vocab), made_up(arguments.context - arguments.prompt_tokens, vocab)
    started = time.perf_counter()
    model.prompt(prompt)
    prompt_s = time.perf_counter() - started
    if more:
        model.prompt(more, len(prompt))
    new = made_up(arguments.tokens, vocab)
    started = time.perf_counter()
    for at, token in enumerate(new):
        model.step([token], arguments.context + at, {0})
    new_s = time.perf_counter() - started
    print(json.dumps({
        "prompt_tokens_per_s": len(prompt) / prompt_s,
        "new_tokens_per_s": len(new) / new_s,
        "system": library.llama.llama_print_system_info().decode(),
    }))


def logits(library, arguments):
    lists = [json.loads(line) for line in Path(arguments.ids).read_text().splitlines()]
    model = Model(library, arguments.model, max(map(len, lists)) + PART_TOKENS, arguments.threads)
    start = arguments.one_by_one_from
    with open(arguments.out, "wb") as out:
        for ids in lists:
            model.clear()
            at_once = len(ids) if start == 0 else min(start, len(ids))
            wanted = range(at_once) if start == 0 else [at_once - 1]
            model.step(ids[:at_once], 0, set(wanted))
            for at in wanted:
                out.write(ctypes.string_at(model.logits(at), 4 * model.vocab))
            for at in range(at_once, len(ids)):
                model.step([ids[at]], at, {0})
                out.write(ctypes.string_at(model.logits(0), 4 * model.vocab))


def tokenise(library, arguments):
    """Writes a list of ids for each JSON text of a file."""
    model = Model(library, arguments.model, PART_TOKENS, 1)
    function = library.llama.llama_tokenize
    function.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool, ctypes.c_bool)
    with open(arguments.out, "w") as out:
        for line in Path(arguments.texts).read_text().splitlines():
            text = json.loads(line).encode()
            ids = (ctypes.c_int32 * (len(text) + 8))()
            count = function(model.vocabulary, text, len(text), ids, len(ids), True, False)
            out.write(json.dumps(list(ids[:count])) + "\n")


def quantise(library, arguments):
    settings = library.llama.llama_model_quantize_default_params()
    settings.numbers()[1] = FILE_TYPES[arguments.type]
    names = [str(path).encode() for path in (arguments.model, arguments.out)]
    library.llama.llama_model_quantize.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)
    library.llama.llama_model_quantize.restype = ctypes.c_uint32
    if library.llama.llama_model_quantize(*names, ctypes.byref(settings)) != 0:
        raise SystemExit(f"llama.cpp did not write {Path(arguments.out).name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries")
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("speed")
    one.set_defaults(run=speed)
    one.add_argument("model")
    one.add_argument("--prompt-tokens", type=int, default=512)
    one.add_argument("--context", type=int, default=512)
    one.add_argument("--tokens", type=int, default=64)
    one.add_argument("--threads", type=int, default=2)
    one.add_argument("--vocab", type=int, help="tokens of a model that has no vocabulary")
    one = commands.add_parser("logits")
    one.set_defaults(run=logits)
    for name in ("model", "ids", "out"):
        one.add_argument(name)
    one.add_argument("--one-by-one-from", type=int, default=0)
    one.add_argument("--threads", type=int, default=2)
    one = commands.add_parser("tokenise")
    one.set_defaults(run=tokenise)
    for name in ("model", "texts", "out"):
        one.add_argument(name)
    one = commands.add_parser("quantise")
    one.set_defaults(run=quantise)
    for name in ("model", "out"):
        one.add_argument(name)
    one.add_argument("type", choices=sorted(FILE_TYPES))
    arguments = parser.parse_args()
    arguments.run(Library(arguments.libraries), arguments)


if __name__ == "__main__":
    sys.exit(main())
