"""Writes a language model of random weights that reads and writes bytes: for what needs a tokenizer and no sense.

Uses nothing but the standard library, so that it runs on a machine that has only magray.
"""

import json
import os
import struct

END = 256
VOCAB = 257
# Layers, width, heads, heads of keys and values, inner width, context.
SHAPES = {"tiny": (2, 64, 4, 2, 128, 4096), "1b": (16, 2048, 32, 8, 8192, 32768)}
# The upper bytes of bf16 numbers from 0.008 to 0.03, of either sign.
SIGNS = bytes(0x3C if byte % 2 else 0xBC for byte in range(256))
ONE = b"\x80\x3f"
PIECE = 1 << 24
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def write(folder, shape):
    """Writes the files into a new folder. The numbers are others each time; what is compared is compared within a run."""
    layers, width, heads, kv_heads, inner, context = SHAPES[shape]
    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5, "vocab_size": VOCAB,
        "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "max_position_embeddings": context, "rope_theta": 500000.0, "tie_word_embeddings": True,
        "eos_token_id": END, "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    write_tensors(folder / "model.safetensors", tensors(layers, width, width // heads * kv_heads, inner))


def tensors(layers, width, keys, inner):
    yield "model.embed_tokens.weight", [VOCAB, width]
    yield "model.norm.weight", [width]
    for layer in range(layers):
        parts = {
            "input_layernorm": [width], "post_attention_layernorm": [width], "self_attn.q_proj": [width, width],
            "self_attn.k_proj": [keys, width], "self_attn.v_proj": [keys, width], "self_attn.o_proj": [width, width],
            "mlp.gate_proj": [inner, width], "mlp.up_proj": [inner, width], "mlp.down_proj": [width, inner],
        }
        for part, shape in parts.items():
            yield f"model.layers.{layer}.{part}.weight", shape


def write_tensors(path, named):
    head, end, counts = {}, 0, []
    for name, shape in named:
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + 2 * count]}
        end += 2 * count
        counts.append((count, "norm" in name))
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for count, is_norm in counts:
            for first in range(0, count, PIECE):
                file.write(numbers(min(PIECE, count - first), is_norm))


def numbers(count, is_norm):
    if is_norm:
        return ONE * count
    both = bytearray(2 * count)
    both[0::2] = os.urandom(count)
    both[1::2] = os.urandom(count).translate(SIGNS)
    return both


def byte_characters():
    """The characters that stand for bytes in such tokenizers, in the order of the bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(others)) for byte in range(256)]


def tokenizer():
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    end = {"id": END, "content": "<end>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "vocab": {character: at for at, character in enumerate(byte_characters())}, "merges": [],
    }
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None, "pre_tokenizer": byte_level,
        "decoder": byte_level, "added_tokens": [end], "model": model,
    }
