//! The fixture's models as GGUF files, with their names, their order of rows and what is added to their gains.

use magray_core::BlockFormat;
use serde_json::Value;

use super::model::{Case, Tensor, bytes_of};
use crate::{
    decoder::DecoderFiles,
    spec::decoder::{Rope, Scaling},
    weights::gguf::writer::Writer,
};

/// The file, if the format can say what the model does.
pub(super) fn convert(case: &Case) -> Option<Writer> {
    let config = &case.config;
    let architecture = match config["model_type"].as_str().unwrap() {
        "llama" | "mistral" => "llama",
        "gemma3_text" => "gemma3",
        other => other,
    };
    // Files cannot say how Gemma scales scores, nor that a rope depends on the length.
    if ["gemma2-scalar", "llama-dynamic"].contains(&case.name.as_str()) {
        return None;
    }
    let folder = case.folder();
    let spec = DecoderFiles::open(folder.path()).unwrap().spec().clone();
    let mut file = Writer::default();
    let key = |name: &str| format!("{architecture}.{name}");
    file.text("general.architecture", architecture)
        .number(&key("block_count"), spec.layers.len() as u32)
        .number(&key("context_length"), spec.context as u32)
        .number(&key("embedding_length"), spec.hidden as u32)
        .number(&key("feed_forward_length"), spec.ffn as u32)
        .number(&key("attention.head_count"), spec.heads as u32)
        .number(&key("attention.head_count_kv"), spec.kv_heads as u32)
        .number(&key("attention.key_length"), spec.head_size as u32)
        .float(&key("attention.layer_norm_rms_epsilon"), spec.norms.epsilon)
        .number(&key("rope.dimension_count"), spec.ropes[0].rotated as u32)
        .float(&key("rope.freq_base"), spec.ropes[0].theta as f32);
    if let Some(window) = spec.layers.iter().find_map(|layer| layer.window) {
        let slides: Vec<bool> = spec.layers.iter().map(|layer| layer.window.is_some()).collect();
        file.number(&key("attention.sliding_window"), window as u32);
        file.flags(&key("attention.sliding_window_pattern"), &slides);
    }
    if let Some(cap) = spec.attention_cap {
        file.float(&key("attn_logit_softcapping"), cap);
    }
    if let Some(cap) = spec.logit_cap {
        file.float(&key("final_logit_softcapping"), cap);
    }
    write_scaling(&mut file, architecture, &spec.ropes[0]);
    for tensor in &case.tensors {
        let name = name_in_gguf(&tensor.name, &config["model_type"]);
        let permuted = architecture == "llama" && (name.contains("attn_q.") || name.contains("attn_k."));
        let values = if permuted { neighbours(tensor, spec.head_size) } else { tensor.values() };
        let plus = if spec.norms.plus_one && tensor.shape.len() == 1 { 1.0 } else { 0.0 };
        let values: Vec<f32> = values.iter().map(|value| value + plus).collect();
        file.tensor(&name, BlockFormat::F32, &tensor.shape, &bytes_of(&values));
    }
    Some(file)
}

fn write_scaling(file: &mut Writer, architecture: &str, rope: &Rope) {
    let key = |name: &str| format!("{architecture}.rope.scaling.{name}");
    let floats = |file: &mut Writer, name: &str, values: &[f32]| {
        file.tensor(name, BlockFormat::F32, &[values.len()], &bytes_of(values));
    };
    file.number(&key("original_context_length"), rope.original_context as u32);
    match &rope.scaling {
        Scaling::None => {}
        Scaling::Linear { .. } => _ = file.text(&key("type"), "linear"),
        Scaling::Yarn { .. } => _ = file.text(&key("type"), "yarn"),
        Scaling::LongRope { short, long, attention_factor } => {
            floats(file, "rope_factors_short.weight", short);
            floats(file, "rope_factors_long.weight", long);
            file.float(&key("attn_factor"), *attention_factor as f32);
        }
        Scaling::Llama3 { .. } => {
            let plain = Rope { scaling: Scaling::None, ..rope.clone() }.frequencies(1).radians;
            let divisors: Vec<f32> = plain.iter().zip(rope.frequencies(1).radians).map(|(a, b)| a / b).collect();
            floats(file, "rope_freqs.weight", &divisors);
        }
        other => panic!("{other:?} is not in the fixture"),
    }
    if let Scaling::Linear { factor } | Scaling::Yarn { factor, .. } = rope.scaling {
        file.float(&key("factor"), factor as f32);
    }
}

/// Rows of each head in the order in which neighbours make a pair.
fn neighbours(tensor: &Tensor, head_size: usize) -> Vec<f32> {
    let values = tensor.values();
    let columns = tensor.shape.get(1).copied().unwrap_or(1);
    let row = |row: usize| {
        let (head, at) = (row / head_size, row % head_size);
        let from = head * head_size + at % 2 * (head_size / 2) + at / 2;
        &values[from * columns..(from + 1) * columns]
    };
    (0..tensor.shape[0]).flat_map(row).copied().collect()
}

fn name_in_gguf(name: &str, model: &Value) -> String {
    let gemma = model.as_str().unwrap().starts_with("gemma");
    let layers = name.strip_prefix("model.layers.");
    let Some((layer, rest)) = layers.and_then(|rest| rest.split_once('.')) else {
        return match name {
            "model.embed_tokens.weight" => "token_embd.weight",
            "model.norm.weight" => "output_norm.weight",
            "lm_head.weight" => "output.weight",
            other => panic!("{other} has no name"),
        }
        .to_owned();
    };
    let (part, kind) = rest.rsplit_once('.').unwrap();
    let part = match part {
        "input_layernorm" => "attn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.qkv_proj" => "attn_qkv",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "self_attn.o_proj" => "attn_output",
        "post_attention_layernorm" if gemma => "post_attention_norm",
        "post_attention_layernorm" | "pre_feedforward_layernorm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" | "mlp.gate_up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        other => panic!("{other} has no name"),
    };
    format!("blk.{layer}.{part}.{kind}")
}
