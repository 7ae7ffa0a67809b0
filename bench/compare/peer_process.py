"""Runs one peer as a process that answers timings and vectors, one JSON line each. Measures nothing but the call itself.

Use: python -m compare.peer_process NAME MODEL_DIR SCRATCH THREADS BATCHES.json
Asked `{"case": C, "seconds": S}` it answers `{"median_ms": .., "runs": ..}`; asked `{"case": C, "vectors": true}`
it answers `{"vectors": [[..], ..]}`. Its first line is `{"ready": true}`.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

import numpy as np

HEADS, HIDDEN = 12, 384
ONE_BY_ONE = " one by one"


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
        case = asked["case"]
        # How a careful user of a padding peer would run short texts: each alone.
        if case.endswith(ONE_BY_ONE):
            inputs = [padded([text]) for text in batches[case.removesuffix(ONE_BY_ONE)]]
        else:
            inputs = [padded(batches[case])]
        if asked.get("vectors"):
            answer({"vectors": np.concatenate([embed(*one) for one in inputs]).astype(float).tolist()})
        else:
            answer(timed(lambda: [embed(*one) for one in inputs], asked["seconds"]))


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


def torch_module(model_dir):
    """The model with mean pooling and normalisation, as sentence-transformers computes it."""
    import torch
    from transformers import BertModel

    class Embedder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = BertModel.from_pretrained(model_dir, attn_implementation="sdpa", add_pooling_layer=False)

        def forward(self, ids, mask):
            tokens = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            weight = mask.unsqueeze(-1).float()
            mean = (tokens * weight).sum(dim=1) / weight.sum(dim=1)
            return torch.nn.functional.normalize(mean, dim=-1)

    return Embedder().eval()


def torch_peer(model_dir, threads, *, autocast=False, cast=False):
    import torch

    torch.set_num_threads(threads)
    module = torch_module(model_dir)
    if cast:
        module.bert.to(torch.bfloat16)

    def embed(ids, mask):
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return module(torch.from_numpy(ids), torch.from_numpy(mask)).float().numpy()

    return embed


def onnx_file(model_dir, scratch):
    """The model as ONNX, exported once."""
    file = scratch / "minilm.onnx"
    if not file.exists():
        import torch

        sample = (torch.ones((2, 8), dtype=torch.int64), torch.ones((2, 8), dtype=torch.int64))
        axes = {"ids": {0: "texts", 1: "tokens"}, "mask": {0: "texts", 1: "tokens"}, "embedding": {0: "texts"}}
        unfinished = file.with_suffix(".part")
        torch.onnx.export(
            torch_module(model_dir),
            sample,
            str(unfinished),
            input_names=["ids", "mask"],
            output_names=["embedding"],
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )
        unfinished.rename(file)
    return file


def ort_peer(model_dir, scratch, threads, *, int8):
    import onnxruntime

    plain = onnx_file(model_dir, scratch)
    if int8:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        file = scratch / "minilm-int8.onnx"
        quantize_dynamic(str(plain), str(file), weight_type=QuantType.QInt8)
    else:
        from onnxruntime.transformers import optimizer

        file = scratch / "minilm-fused.onnx"
        fused = optimizer.optimize_model(str(plain), model_type="bert", num_heads=HEADS, hidden_size=HIDDEN)
        fused.save_model_to_file(str(file))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda ids, mask: session.run(None, {"ids": ids, "mask": mask})[0]


def openvino_peer(model_dir, scratch, threads, *, precision):
    import openvino

    settings = {
        "INFERENCE_PRECISION_HINT": getattr(openvino.Type, precision),
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
    }
    core = openvino.Core()
    request = core.compile_model(core.read_model(onnx_file(model_dir, scratch)), "CPU", settings).create_infer_request()
    # The request's output is its own buffer: a copy, or the next call would overwrite it.
    return lambda ids, mask: request.infer({"ids": ids, "mask": mask})[0].copy()


PEERS = {
    "torch f32": lambda model, _, n: torch_peer(model, n),
    "torch bf16 autocast": lambda model, _, n: torch_peer(model, n, autocast=True),
    "torch bf16 weights": lambda model, _, n: torch_peer(model, n, cast=True),
    "ORT f32": lambda model, scratch, n: ort_peer(model, scratch, n, int8=False),
    "ORT int8": lambda model, scratch, n: ort_peer(model, scratch, n, int8=True),
    "OpenVINO f32": lambda model, scratch, n: openvino_peer(model, scratch, n, precision="f32"),
    "OpenVINO bf16": lambda model, scratch, n: openvino_peer(model, scratch, n, precision="bf16"),
}

if __name__ == "__main__":
    main()
