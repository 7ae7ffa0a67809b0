#!/usr/bin/env python3
"""Writes the ONNX form of a BERT model beside nothing else: the graph by hand, the weights from model.safetensors.

Needs the packages onnx and numpy, and neither torch nor the library that the model came from. Refuses other architectures.

    tests/onnx/export.py FOLDER OUT            a graph with one row for each token, in OUT/onnx/model.onnx
    tests/onnx/export.py FOLDER OUT --external the same with its weights in a file beside it
    tests/onnx/export.py FOLDER OUT --fused    attention as one operation of ONNX Runtime's own, for comparisons with it at its best
"""

import argparse
import json
import shutil
import struct
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
# The operations of ONNX Runtime that are none of ONNX.
RUNTIME = "com.microsoft"
KINDS = ["query", "key", "value"]
# What a folder has beside its weights.
SETTINGS = ["config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "modules.json"]
SETTINGS += ["config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling/config.json"]
DTYPES = {"F32": np.float32, "F16": np.float16, "I64": np.int64}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a model's folder")
    parser.add_argument("out", type=Path, help="where the ONNX form goes")
    parser.add_argument("--external", action="store_true", help="put the weights into a file of their own")
    parser.add_argument("--fused", action="store_true", help="write attention as ONNX Runtime's own operation")
    arguments = parser.parse_args()
    model = export(arguments.folder, arguments.fused)
    target = arguments.out / "onnx" / "model.onnx"
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = dict(save_as_external_data=True, location="model.onnx_data", size_threshold=0) if arguments.external else {}
    onnx.save(model, str(target), **beside)
    for name in SETTINGS:
        if (arguments.folder / name).exists():
            (arguments.out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(arguments.folder / name, arguments.out / name)


def export(folder, is_fused=False):
    """The graph of the model in a folder."""
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] != "bert" or config.get("hidden_act", "gelu") != "gelu":
        raise SystemExit(f"{folder}: only BERT with the activation gelu is written")
    graph = Graph(read_weights(folder / "model.safetensors"))
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    epsilon = config.get("layer_norm_eps", 1e-12)
    x = embeddings(graph, epsilon)
    attend = fused_attention(graph, heads) if is_fused else attention(graph, heads, hidden)
    for layer in range(config["num_hidden_layers"]):
        name = f"encoder.layer.{layer}."
        attended = graph.linear(attend(x, f"{name}attention.self"), f"{name}attention.output.dense")
        x = graph.norm(graph.node("Add", [attended, x]), f"{name}attention.output.LayerNorm", epsilon)
        up = gelu(graph, graph.linear(x, f"{name}intermediate.dense"))
        x = graph.norm(graph.node("Add", [graph.linear(up, f"{name}output.dense"), x]), f"{name}output.LayerNorm", epsilon)
    graph.node("Identity", [x], output="last_hidden_state")
    return graph.model(hidden)


def attention(graph, heads, hidden):
    """Writes the attention of a layer in operations of ONNX."""
    width = hidden // heads
    # 0 where a token is, and nearly minus infinity where padding is.
    mask = graph.node("Cast", ["attention_mask"], to=TensorProto.FLOAT)
    mask = graph.node("Sub", [graph.constant(np.float32(1)), mask])
    mask = graph.node("Mul", [mask, graph.constant(np.float32(-1e9))])
    mask = graph.node("Unsqueeze", [mask, graph.constant(np.array([1, 2], np.int64))])
    split = graph.constant(np.array([0, 0, heads, width], np.int64))
    joined = graph.constant(np.array([0, 0, hidden], np.int64))

    def attend(x, name):
        part = {}
        for kind in KINDS:
            projected = graph.linear(x, f"{name}.{kind}")
            shaped = graph.node("Reshape", [projected, split])
            order = [0, 2, 3, 1] if kind == "key" else [0, 2, 1, 3]
            part[kind] = graph.node("Transpose", [shaped], perm=order)
        scores = graph.node("MatMul", [part["query"], part["key"]])
        scores = graph.node("Mul", [scores, graph.constant(np.float32(width**-0.5))])
        weights = graph.node("Softmax", [graph.node("Add", [scores, mask])], axis=-1)
        context = graph.node("Transpose", [graph.node("MatMul", [weights, part["value"]])], perm=[0, 2, 1, 3])
        return graph.node("Reshape", [context, joined])

    return attend


def fused_attention(graph, heads):
    """Writes the attention of a layer as one operation, which ONNX Runtime alone has."""
    mask = graph.node("Cast", ["attention_mask"], to=TensorProto.INT32)

    def attend(x, name):
        of_all = lambda part: [graph.weights[f"{name}.{kind}.{part}"].astype(np.float32) for kind in KINDS]
        weight = graph.initializer(f"{name}.weight", np.concatenate([rows.T for rows in of_all("weight")], axis=1))
        bias = graph.initializer(f"{name}.bias", np.concatenate(of_all("bias")))
        return graph.node("Attention", [x, weight, bias, mask], domain=RUNTIME, num_heads=heads)

    return attend


def embeddings(graph, epsilon):
    tables = {kind: graph.weight(f"embeddings.{kind}_embeddings.weight") for kind in ["word", "position", "token_type"]}
    words = graph.node("Gather", [tables["word"], "input_ids"])
    types = graph.node("Gather", [tables["token_type"], "token_type_ids"])
    length = graph.node("Gather", [graph.node("Shape", ["input_ids"]), graph.constant(np.int64(1))], axis=0)
    zero, one = graph.constant(np.int64(0)), graph.constant(np.int64(1))
    positions = graph.node("Gather", [tables["position"], graph.node("Range", [zero, length, one])])
    total = graph.node("Add", [graph.node("Add", [words, types]), positions])
    return graph.norm(total, "embeddings.LayerNorm", epsilon)


def gelu(graph, x):
    inner = graph.node("Erf", [graph.node("Div", [x, graph.constant(np.float32(np.sqrt(2)))])])
    inner = graph.node("Add", [inner, graph.constant(np.float32(1))])
    return graph.node("Mul", [graph.node("Mul", [x, inner]), graph.constant(np.float32(0.5))])


class Graph:
    """Nodes and weights, each with a name of its own."""

    def __init__(self, weights):
        self.weights = weights
        self.nodes, self.initializers, self.named = [], [], {}

    def node(self, kind, inputs, output=None, **attributes):
        output = output or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(self, value):
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self.named:
            self.named[key] = self.initializer(f"constant_{len(self.named)}", np.asarray(value))
        return self.named[key]

    def weight(self, name, transposed=False):
        values = self.weights[name].astype(np.float32)
        return self.initializer(name, np.ascontiguousarray(values.T) if transposed else values)

    def initializer(self, name, values):
        self.initializers.append(numpy_helper.from_array(values, name))
        return name

    def linear(self, x, name):
        product = self.node("MatMul", [x, self.weight(f"{name}.weight", transposed=True)])
        return self.node("Add", [product, self.weight(f"{name}.bias")])

    def norm(self, x, name, epsilon):
        inputs = [x, self.weight(f"{name}.weight"), self.weight(f"{name}.bias")]
        return self.node("LayerNormalization", inputs, axis=-1, epsilon=epsilon)

    def model(self, hidden):
        names = ["input_ids", "attention_mask", "token_type_ids"]
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in names]
        shape = ["batch", "tokens", hidden]
        outputs = [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, shape)]
        graph = helper.make_graph(self.nodes, "bert", inputs, outputs, self.initializers)
        domains = {node.domain for node in self.nodes}
        opsets = [helper.make_opsetid(domain, OPSET if domain == "" else 1) for domain in sorted(domains)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="magray")
        # The version that the opset came with: older libraries read it too.
        model.ir_version = 8
        onnx.checker.check_model(model)
        return model


def read_weights(file):
    """The tensors of a file, under the names that a bare encoder has."""
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, told in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = told["data_offsets"]
        values = np.frombuffer(data[8 + length + begin : 8 + length + end], DTYPES[told["dtype"]])
        tensors[name.removeprefix("bert.")] = values.reshape(told["shape"])
    return tensors


if __name__ == "__main__":
    main()
