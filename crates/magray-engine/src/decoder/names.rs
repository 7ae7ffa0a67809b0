//! The names that files have for a decoder's tensors.
//! Knows no shapes.

/// A tensor of a decoder, or of one of its layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Table,
    FinalNorm,
    Head,
    AttentionNorm,
    Query,
    Key,
    Value,
    /// Queries, keys and values in one matrix.
    Qkv,
    QueryNorm,
    KeyNorm,
    Output,
    AttentionAfter,
    FfnNorm,
    Gate,
    Up,
    /// Gate and up in one matrix.
    GateUp,
    Down,
    FfnAfter,
}

/// The name in a safetensors file of transformers. Where norms stand behind layers too, the name of one of them means another.
pub(super) fn in_safetensors(layer: usize, part: Part, norms_after: bool) -> String {
    let name = match part {
        Part::Table => return "model.embed_tokens".to_owned(),
        Part::FinalNorm => return "model.norm".to_owned(),
        Part::Head => return "lm_head".to_owned(),
        Part::AttentionNorm => "input_layernorm",
        Part::Query => "self_attn.q_proj",
        Part::Key => "self_attn.k_proj",
        Part::Value => "self_attn.v_proj",
        Part::Qkv => "self_attn.qkv_proj",
        Part::QueryNorm => "self_attn.q_norm",
        Part::KeyNorm => "self_attn.k_norm",
        Part::Output => "self_attn.o_proj",
        Part::AttentionAfter => "post_attention_layernorm",
        Part::FfnNorm if norms_after => "pre_feedforward_layernorm",
        Part::FfnNorm => "post_attention_layernorm",
        Part::Gate => "mlp.gate_proj",
        Part::Up => "mlp.up_proj",
        Part::GateUp => "mlp.gate_up_proj",
        Part::Down => "mlp.down_proj",
        Part::FfnAfter => "post_feedforward_layernorm",
    };
    format!("model.layers.{layer}.{name}")
}

/// The name in a GGUF file.
pub(super) fn in_gguf(layer: usize, part: Part) -> String {
    let name = match part {
        Part::Table => return "token_embd".to_owned(),
        Part::FinalNorm => return "output_norm".to_owned(),
        Part::Head => return "output".to_owned(),
        Part::AttentionNorm => "attn_norm",
        Part::Query => "attn_q",
        Part::Key => "attn_k",
        Part::Value => "attn_v",
        Part::Qkv => "attn_qkv",
        Part::QueryNorm => "attn_q_norm",
        Part::KeyNorm => "attn_k_norm",
        Part::Output => "attn_output",
        Part::AttentionAfter => "post_attention_norm",
        Part::FfnNorm => "ffn_norm",
        Part::Gate => "ffn_gate",
        Part::Up | Part::GateUp => "ffn_up",
        Part::Down => "ffn_down",
        Part::FfnAfter => "post_ffw_norm",
    };
    format!("blk.{layer}.{name}")
}
