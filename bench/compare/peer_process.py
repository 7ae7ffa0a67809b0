"""Runs one peer as a process that answers timings and vectors, one JSON line each. Measures nothing but the call itself.

Use: python -m compare.peer_process NAME MODEL_DIR SCRATCH THREADS BATCHES.json
Asked `{"case": C, "seconds": S}` it answers `{"median_ms": .., "runs": ..}`; asked `{"case": C, "vectors": true}`
it answers `{"vectors": [[..], ..]}`. Its first line is `{"ready": true}`.
"""

import json
import os
import random
import statistics
import sys
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

import numpy as np

from .batches import ragged_lengths, sorted_groups, texts_of

HEADS, HIDDEN, LAYERS = 12, 384, 6
# How a careful user of a peer that pads runs texts of unlike lengths: the words that end such a case.
ONE_BY_ONE, SORTED = ", one by one", ", sorted groups"
EQUAL_SHAPES = [(1, 16), (1, 128), (32, 128)]
# Ragged batches that OpenVINO's int8 is calibrated with.
CALIBRATION_BATCHES, CALIBRATION_SEED = 16, 7


def main():
    name, model_dir, scratch, threads, batches_file = sys.argv[1:]
    scratch, threads = Path(scratch), int(threads)
    # The peers' libraries print to stdout at will; the protocol gets a descriptor of its own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    embed = PEERS[name](Path(model_dir), scratch, threads)
    batches = json.loads(Path(batches_file).read_text())

    def answer(message):
        print(json.dumps(message), file=answers, flush=True)

    answer({"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        inputs = inputs_of(asked["case"], batches)
        if asked.get("vectors"):
            answer({"vectors": np.concatenate([embed(*one) for one in inputs]).astype(float).tolist()})
        else:
            answer(timed(lambda: [embed(*one) for one in inputs], asked["seconds"]))


def inputs_of(case, batches):
    """The calls that compute a case: one for all texts, or one for each text or group."""
    if case.endswith(ONE_BY_ONE):
        return [padded([text]) for text in batches[case.removesuffix(ONE_BY_ONE)]]
    if case.endswith(SORTED):
        return [padded(group) for group in sorted_groups(batches[case.removesuffix(SORTED)])]
    return [padded(batches[case])]


def padded(ids):
    """What a peer takes: a rectangle of ids and the mask that says which of them count."""
    width = max(map(len, ids))
    table = np.zeros((len(ids), width), np.int64)
    mask = np.zeros((len(ids), width), np.int64)
    for row, text in enumerate(ids):
        table[row, : len(text)] = text
        mask[row, : len(text)] = 1
    return table, mask


def timed(call, seconds):
    """The median of as many calls as fit into the time, three at least, after warm-up calls."""
    warm_until = time.perf_counter() + min(0.2, seconds / 4)
    call()
    while time.perf_counter() < warm_until:
        call()
    taken = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken) < 3:
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return {"median_ms": statistics.median(taken) * 1e3, "runs": len(taken)}


def torch_module(model_dir, attention="sdpa"):
    """The model with mean pooling and normalisation, as sentence-transformers computes it."""
    import torch
    from transformers import BertModel

    class Embedder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = BertModel.from_pretrained(model_dir, attn_implementation=attention, add_pooling_layer=False)

        def forward(self, ids, mask):
            tokens = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            weight = mask.unsqueeze(-1).float()
            mean = (tokens * weight).sum(dim=1) / weight.sum(dim=1)
            return torch.nn.functional.normalize(mean, dim=-1)

    return Embedder().eval()


def torch_peer(model_dir, threads, *, bf16=False, compiled=False):
    import torch

    torch.set_num_threads(threads)
    module = torch_module(model_dir)
    if bf16:
        module.bert.to(torch.bfloat16)
    run = compiled_call(module) if compiled else module

    def embed(ids, mask):
        with torch.inference_mode():
            return run(torch.from_numpy(ids), torch.from_numpy(mask)).float().numpy()

    return embed


def compiled_call(module):
    """torch.compile with frozen weights: equal texts by a program for their shape, ragged ones by one for any shape."""
    import torch
    import torch._inductor.config

    torch._inductor.config.freezing = True
    fixed = torch.compile(module, dynamic=False)
    any_shape = torch.compile(lambda ids, mask: module(ids, mask), dynamic=True)
    return lambda ids, mask: (fixed if ids.shape in EQUAL_SHAPES else any_shape)(ids, mask)


def made_once(file, make):
    """A file that is made on first use; an interrupted one is made again."""
    if not file.exists():
        unfinished = file.with_stem(file.stem + "-unfinished")
        make(str(unfinished))
        # OpenVINO writes the weights beside its file.
        for beside in file.parent.glob(unfinished.stem + ".*"):
            beside.rename(file.with_suffix(beside.suffix))
    return file


def onnx_file(model_dir, scratch):
    """The model as ONNX. Attention is exported in its plain form, which the optimizers know."""

    def export(file):
        import torch

        sample = (torch.ones((2, 8), dtype=torch.int64), torch.ones((2, 8), dtype=torch.int64))
        axes = {"ids": {0: "texts", 1: "tokens"}, "mask": {0: "texts", 1: "tokens"}, "embedding": {0: "texts"}}
        names = dict(input_names=["ids", "mask"], output_names=["embedding"])
        module = torch_module(model_dir, "eager")
        torch.onnx.export(module, sample, file, **names, dynamic_axes=axes, opset_version=17, dynamo=False)

    return made_once(scratch / "minilm-plain.onnx", export)


def ort_peer(model_dir, scratch, threads, *, int8):
    import onnxruntime

    def fuse(file):
        from onnxruntime.transformers import optimizer

        fused = optimizer.optimize_model(str(onnx_file(model_dir, scratch)), "bert", HEADS, HIDDEN)
        found = fused.get_fused_operator_statistics()
        if found.get("Attention") != LAYERS:
            raise SystemExit(f"attention was not fused: {found}")
        fused.save_model_to_file(file)

    def quantize(file):
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic

        # The types behind fused operators are unknown to ONNX itself.
        known = {"DefaultTensorType": onnx.TensorProto.FLOAT}
        fused = str(made_once(scratch / "minilm-fused.onnx", fuse))
        quantize_dynamic(fused, file, weight_type=QuantType.QInt8, per_channel=True, extra_options=known)

    file = made_once(scratch / "minilm-int8.onnx", quantize) if int8 else made_once(scratch / "minilm-fused.onnx", fuse)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda ids, mask: session.run(None, {"ids": ids, "mask": mask})[0]


def openvino_peer(model_dir, scratch, threads, *, precision, int8=False):
    import openvino

    settings = {
        "INFERENCE_PRECISION_HINT": getattr(openvino.Type, precision),
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
    }
    core = openvino.Core()
    file = onnx_file(model_dir, scratch)
    if int8:
        plain = file
        save = lambda file: openvino.save_model(quantized(core.read_model(plain)), file, compress_to_fp16=False)
        file = made_once(scratch / "openvino-int8.xml", save)
    request = core.compile_model(core.read_model(file), "CPU", settings).create_infer_request()
    # The request's output is its own buffer: a copy, or the next call would overwrite it.
    return lambda ids, mask: request.infer({"ids": ids, "mask": mask})[0].copy()


def quantized(model):
    """The OpenVINO model in int8 by NNCF, calibrated with texts like those that are measured."""
    import nncf

    rng = random.Random(CALIBRATION_SEED)
    batches = [padded(texts_of(rng, ragged_lengths(rng, 32))) for _ in range(CALIBRATION_BATCHES)]
    data = nncf.Dataset(batches, lambda batch: {"ids": batch[0], "mask": batch[1]})
    return nncf.quantize(model, data, model_type=nncf.ModelType.TRANSFORMER, fast_bias_correction=True)


PEERS = {
    "torch f32": lambda model, _, n: torch_peer(model, n),
    "torch bf16": lambda model, _, n: torch_peer(model, n, bf16=True),
    "torch.compile f32": lambda model, _, n: torch_peer(model, n, compiled=True),
    "torch.compile bf16": lambda model, _, n: torch_peer(model, n, bf16=True, compiled=True),
    "ORT f32": lambda model, scratch, n: ort_peer(model, scratch, n, int8=False),
    "ORT int8": lambda model, scratch, n: ort_peer(model, scratch, n, int8=True),
    "OpenVINO f32": lambda model, scratch, n: openvino_peer(model, scratch, n, precision="f32"),
    "OpenVINO bf16": lambda model, scratch, n: openvino_peer(model, scratch, n, precision="bf16"),
    "OpenVINO int8": lambda model, scratch, n: openvino_peer(model, scratch, n, precision="bf16", int8=True),
}

if __name__ == "__main__":
    main()
