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

from .batches import sorted_groups
from .gpu_cases import MINILM, SHAPES
from .gpu_ways import COMPILED, EAGER, NO_MASK, ONE_BY_ONE, SORTED, precision
from .peer_process import padded, timed

import torch
from transformers import AttentionInterface, BertConfig, BertModel

MASKLESS = "maskless"


def maskless_attention(_module, query, key, value, _mask, scaling=None, **_more):
    """Attention for texts that need no mask. With transformers' own, PyTorch takes none of its fused kernels while a CUDA
    graph is recorded, and falls back to the plain one, which takes three times as long."""
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scaling)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(MASKLESS, maskless_attention)


def main():
    device, model_dir, cases_file = sys.argv[1:]
    # Libraries print to stdout at will; the protocol gets a descriptor of its own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    cases = json.loads(Path(cases_file).read_text())
    torch.manual_seed(0)
    # Loaded once for all ways of running it.
    folder = None if model_dir == "-" else model_dir
    encoder = functools.cache(lambda shape, number, attention: Encoder(shape, folder, device, number, attention))
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
    """BERT with mean pooling, normalised. Random weights where no folder gives MiniLM's."""

    def __init__(self, name, model_dir, device, number, attention):
        super().__init__()
        if model_dir and name == MINILM:
            bert = BertModel.from_pretrained(model_dir, attn_implementation=attention, add_pooling_layer=False)
        else:
            shape = SHAPES[name]
            config = BertConfig(
                hidden_size=shape.hidden,
                num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads,
                intermediate_size=shape.ffn,
                attn_implementation=attention,
            )
            bert = BertModel(config, add_pooling_layer=False)
        self.bert = bert.eval().to(device, number)

    def forward(self, ids, mask=None):
        tokens = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        if mask is None:
            mean = tokens.mean(dim=1)
        else:
            weight = mask.unsqueeze(-1).to(tokens.dtype)
            mean = (tokens * weight).sum(dim=1) / weight.sum(dim=1)
        return torch.nn.functional.normalize(mean.float(), dim=-1)


def make_runner(case, way, encoder, device):
    """A call that takes the case's ids from page-locked memory of the host and gives its vectors on the host."""
    number = torch.float32 if device == "cpu" or precision(way) == "f32" else torch.float16
    needs_no_mask = way in (NO_MASK, COMPILED, ONE_BY_ONE)
    model, texts = encoder(case["model"], number, MASKLESS if needs_no_mask else "sdpa"), case["ids"]
    if way == SORTED:
        texts, groups = sorted(texts, key=len), sorted_groups(texts)
    elif way == ONE_BY_ONE:
        groups = [[text] for text in texts]
    else:
        groups = [texts]
    # The order in which the texts came.
    back = torch.argsort(torch.tensor([case["ids"].index(text) for text in texts]), stable=True)
    inputs = [on_host(group, device) for group in groups]
    if needs_no_mask:
        inputs = [given[:1] for given in inputs]
    if device == "cpu":
        return lambda: torch.cat([model(*given) for given in inputs])[back]
    home = torch.empty(len(texts), model.bert.config.hidden_size).pin_memory()
    on_gpu = lambda given: [part.to(device, non_blocking=True) for part in given]
    if way == EAGER:
        return to_host(lambda: model(*on_gpu(inputs[0])), home)
    if way == COMPILED:
        # A shape of its own for every case: more than the compiler remembers by default.
        torch._dynamo.config.recompile_limit = 64
        fast = torch.compile(model, mode="max-autotune", dynamic=False)
        return to_host(lambda: fast(*on_gpu(inputs[0])), home)
    recorded, passes = {}, []
    for at, given in enumerate(inputs):
        # Texts of one length share a recording where each is run alone.
        key = given[0].shape if way == ONE_BY_ONE else at
        if key not in recorded:
            recorded[key] = captured(model, on_gpu(given))
        passes.append((given, *recorded[key]))
    if len(passes) == 1:
        return to_host(lambda: replayed(*passes[0]), home)
    back = back.to(device)
    kept = torch.Tensor.clone if way == ONE_BY_ONE else lambda out: out
    return to_host(lambda: torch.cat([kept(replayed(*one)) for one in passes])[back], home)


def to_host(call, home):
    """The call with its result copied into page-locked memory."""

    def run():
        home.copy_(call(), non_blocking=True)
        torch.cuda.synchronize()
        return home

    return run


def on_host(texts, device):
    ids, mask = (torch.from_numpy(part) for part in padded(texts))
    return (ids, mask) if device == "cpu" else (ids.pin_memory(), mask.pin_memory())


def captured(model, given):
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
    return given, graph, out


def replayed(inputs, given, graph, out):
    for there, here in zip(given, inputs):
        there.copy_(here, non_blocking=True)
    graph.replay()
    return out


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
