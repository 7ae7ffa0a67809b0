"""Runs PyTorch on a GPU as a process that answers timings and vectors, one JSON line each. Compares nothing.

Use: python -m compare.gpu_torch DEVICE MODEL_DIR|- CASES.json, the cases being {TITLE: {"model": SHAPE, "ids": [[..], ..]}}
Asked `{"case": C, "way": W, "seconds": S}` it answers `{"median_ms": .., "runs": ..}`, with `"vectors": true` instead of
the seconds `{"vectors": [[..], ..]}`; asked `{"product": [ROWS, INPUTS, OUTPUTS]}`, `{"us": ..}`; `{"error": ..}` where
that fails. Its first line is `{"ready": true}`. A time is from token ids on the host to vectors on the host. DEVICE `cpu` is for rehearsals.
"""

import functools
import json
import os
import sys
import time
from pathlib import Path

from .gpu_cases import MINILM, SHAPES
from .gpu_ways import COMPILED, EAGER, GROUPS, NO_MASK, SORTED
from .peer_process import padded, timed

import torch
from transformers import BertConfig, BertModel


def main():
    device, model_dir, cases_file = sys.argv[1:]
    # Libraries print to stdout at will; the protocol gets a descriptor of its own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    cases = json.loads(Path(cases_file).read_text())
    torch.manual_seed(0)
    # Loaded once for all ways of running it.
    encoder = functools.cache(lambda shape: Encoder(shape, None if model_dir == "-" else model_dir, device))
    runner = functools.cache(lambda title, way: make_runner(cases[title], way, encoder, device))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            try:
                found = answer(json.loads(line), runner, device)
            # Whatever a library throws ends one way of running it, not the others.
            except Exception as error:
                found = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
            print(json.dumps(found), file=answers, flush=True)


def answer(asked, runner, device):
    if "product" in asked:
        return {"us": product_us(*asked["product"], device)}
    call = runner(asked["case"], asked["way"])
    return {"vectors": call().tolist()} if asked.get("vectors") else timed(call, asked["seconds"])


class Encoder(torch.nn.Module):
    """BERT with mean pooling, normalised, in f16 on a GPU. Random weights where no folder gives MiniLM's."""

    def __init__(self, name, model_dir, device):
        super().__init__()
        if model_dir and name == MINILM:
            bert = BertModel.from_pretrained(model_dir, attn_implementation="sdpa", add_pooling_layer=False)
        else:
            shape = SHAPES[name]
            config = BertConfig(
                hidden_size=shape.hidden,
                num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads,
                intermediate_size=shape.ffn,
                attn_implementation="sdpa",
            )
            bert = BertModel(config, add_pooling_layer=False)
        self.bert = bert.eval().to(device, torch.float32 if device == "cpu" else torch.float16)

    def forward(self, ids, mask=None):
        tokens = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        if mask is None:
            mean = tokens.mean(dim=1)
        else:
            weight = mask.unsqueeze(-1).to(tokens.dtype)
            mean = (tokens * weight).sum(dim=1) / weight.sum(dim=1)
        return torch.nn.functional.normalize(mean.float(), dim=-1)


def make_runner(case, way, encoder, device):
    """A call that takes the case's ids from the host and gives its vectors on the host."""
    model, texts = encoder(case["model"]), case["ids"]
    if way == SORTED:
        return sorted_runner(model, texts, device)
    inputs = on_host(texts, device)
    if way == NO_MASK:
        inputs = inputs[:1]
    if device == "cpu":
        return lambda: model(*inputs)
    if way == EAGER:
        return lambda: model(*(part.to(device, non_blocking=True) for part in inputs)).cpu()
    if way == COMPILED:
        # A shape of its own for every case: more than the compiler remembers by default.
        torch._dynamo.config.recompile_limit = 64
        fast = torch.compile(model, mode="max-autotune", dynamic=False)
        return lambda: fast(*(part.to(device, non_blocking=True) for part in inputs)).cpu()
    start, out = captured(model, inputs, device)

    def run():
        start()
        return out.cpu()

    return run


def sorted_runner(model, texts, device):
    """As a careful user would run ragged texts: sorted by length, padded within groups only, a graph each."""
    order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
    size = -(-len(order) // GROUPS)
    groups = [on_host([texts[at] for at in order[first : first + size]], device) for first in range(0, len(order), size)]
    back = torch.empty(len(order), dtype=torch.int64)
    back[torch.tensor(order)] = torch.arange(len(order))
    if device == "cpu":
        return lambda: torch.cat([model(*group) for group in groups])[back]
    passes = [captured(model, group, device) for group in groups]
    back = back.to(device)

    def run():
        for start, _ in passes:
            start()
        # One copy back for all groups, in the order in which the texts came.
        return torch.cat([out for _, out in passes])[back].cpu()

    return run


def on_host(texts, device):
    ids, mask = (torch.from_numpy(part) for part in padded(texts))
    return (ids, mask) if device == "cpu" else (ids.pin_memory(), mask.pin_memory())


def captured(model, inputs, device):
    """Records a pass as a CUDA graph; gives the call that starts it, and the tensor that it fills."""
    given = [part.to(device) for part in inputs]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    # What allocates or tunes on first use must have done so before the recording.
    with torch.cuda.stream(side):
        for _ in range(3):
            model(*given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(*given)

    def start():
        for there, here in zip(given, inputs):
            there.copy_(here, non_blocking=True)
        graph.replay()

    return start, out


def product_us(rows, inputs, outputs, device):
    """Microseconds of one matrix product by PyTorch (cuBLAS) with its bias, on the device's own clock."""
    number = torch.float32 if device == "cpu" else torch.bfloat16
    x = torch.randn(rows, inputs, device=device, dtype=number)
    layer = torch.nn.Linear(inputs, outputs, device=device, dtype=number)
    if device == "cpu":
        start = time.perf_counter()
        layer(x)
        return (time.perf_counter() - start) * 1e6
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    best = float("inf")
    for _ in range(5):
        layer(x)
        begin.record()
        for _ in range(20):
            layer(x)
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) * 1e3 / 20)
    return best


if __name__ == "__main__":
    main()
