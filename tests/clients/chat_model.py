"""A language model of random weights that reads and writes bytes, with a chat template, as a folder.

It says nothing that makes sense: what is constrained by a schema is all that can be compared.
"""

import json
import random
import struct

VOCAB, HIDDEN, FFN, LAYERS, HEADS, KV_HEADS = 257, 32, 64, 2, 4, 2
END = 256
CONTEXT = 16384
# Shows tools, and thinks where it is told to.
TEMPLATE = """\
{%- if tools %}<|tools|>{{ tools | tojson }}
{% endif %}{%- for message in messages %}<|{{ message.role }}|>{{ message.content }}\
{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}<|assistant|>\
{% if enable_thinking is defined and enable_thinking %}<think>
{% else %}{# </think> #}{% endif %}{% endif %}"""


def write(folder, context=CONTEXT):
    """Writes the files of the model."""
    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "max_position_embeddings": context,
        "rope_theta": 10000.0, "tie_word_embeddings": True, "eos_token_id": END,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<end>"}))
    (folder / "model.safetensors").write_bytes(weights())


def tokenizer():
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    end = {"id": END, "content": "<end>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "pre_tokenizer": byte_level, "decoder": byte_level, "added_tokens": [end],
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "vocab": {character: id for id, character in enumerate(characters())}, "merges": [],
        },
    }  # fmt: skip


def characters():
    """The characters that stand for bytes, in order."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(number) for number in visible + list(range(0x100, 0x100 + 256 - len(visible)))]


def weights():
    """A file of safetensors."""
    draw = random.Random(1)
    header, data = {}, b""
    for name, shape in shapes():
        centre, spread = (1.0, 0.1) if "norm" in name else (0.0, 0.3)
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        numbers = struct.pack(f"<{count}f", *(draw.gauss(centre, spread) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(numbers)]}
        data += numbers
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + data


def shapes():
    kv = HIDDEN // HEADS * KV_HEADS
    yield "model.embed_tokens.weight", [VOCAB, HIDDEN]
    yield "model.norm.weight", [HIDDEN]
    for layer in range(LAYERS):
        parts = {
            "input_layernorm": [HIDDEN], "post_attention_layernorm": [HIDDEN], "self_attn.q_proj": [HIDDEN, HIDDEN],
            "self_attn.k_proj": [kv, HIDDEN], "self_attn.v_proj": [kv, HIDDEN], "self_attn.o_proj": [HIDDEN, HIDDEN],
            "mlp.gate_proj": [FFN, HIDDEN], "mlp.up_proj": [FFN, HIDDEN], "mlp.down_proj": [HIDDEN, FFN],
        }  # fmt: skip
        for name, shape in parts.items():
            yield f"model.layers.{layer}.{name}.weight", shape
