//! A language model of random weights that reads and writes bytes, as a folder: for tests of what stands around a model.
//! Says nothing that makes sense, and always the same.

use super::tiny_weights;
use crate::tokenize::byte_characters;
use serde_json::{Map, Value, json};
use std::io;
use std::path::Path;

/// The token that ends an answer; those below it are bytes.
pub const END: u32 = 256;
/// The longest sequence.
pub const CONTEXT: usize = 512;

/// Bytes of the keys and values of a token.
pub const KV_TOKEN_BYTES: u64 = kv_token_bytes(LAYERS);

/// The same of a model with so many layers.
pub const fn kv_token_bytes(layers: usize) -> u64 {
    (layers * 2 * HIDDEN / HEADS * KV_HEADS * 2) as u64
}

const VOCAB: usize = 257;
const HIDDEN: usize = 32;
const FFN: usize = 64;
const LAYERS: usize = 2;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;

/// Writes the files of the model of this seed into a folder.
pub fn write(folder: &Path, seed: u64) -> io::Result<()> {
    write_layers(folder, seed, LAYERS)
}

/// The same with so many layers.
pub fn write_layers(folder: &Path, seed: u64, layers: usize) -> io::Result<()> {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": layers,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "max_position_embeddings": CONTEXT,
        "rope_theta": 10000.0, "tie_word_embeddings": true, "eos_token_id": END,
    });
    std::fs::write(folder.join("config.json"), config.to_string())?;
    std::fs::write(folder.join("tokenizer.json"), tokenizer().to_string())?;
    tiny_weights::write(folder, &shapes(layers), seed)
}

fn shapes(layers: usize) -> Vec<(String, Vec<usize>)> {
    let kv = HIDDEN / HEADS * KV_HEADS;
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..layers {
        let parts = [
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("self_attn.q_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.k_proj", vec![kv, HIDDEN]),
            ("self_attn.v_proj", vec![kv, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HIDDEN]),
            ("mlp.gate_proj", vec![FFN, HIDDEN]),
            ("mlp.up_proj", vec![FFN, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, FFN]),
        ];
        shapes.extend(parts.map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape)));
    }
    shapes
}

fn tokenizer() -> Value {
    let mut characters: Vec<char> = byte_characters().collect();
    characters.sort_unstable();
    let vocab: Map<String, Value> = (0_u32..).zip(characters).map(|(id, byte)| (byte.to_string(), id.into())).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "added_tokens": [{
            "id": END, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }],
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": [],
        },
    })
}
