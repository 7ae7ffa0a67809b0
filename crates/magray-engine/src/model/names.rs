//! What each architecture calls its tensors. Knows nothing of their contents.

use crate::spec::Architecture;

/// The names of one encoder layer's tensors, without `.weight` and `.bias`.
pub(super) struct LayerNames {
    pub(super) query: String,
    pub(super) key: String,
    pub(super) value: String,
    pub(super) attention_out: String,
    pub(super) attention_norm: String,
    pub(super) up: String,
    pub(super) down: String,
    pub(super) out_norm: String,
}

impl LayerNames {
    pub(super) fn of(architecture: Architecture, layer: usize) -> Self {
        let [base, q, k, v, out, norm, up, down, out_norm] = match architecture {
            // A model in ONNX form has no weights that are asked for by name, and decoders have names of their own.
            Architecture::Bert | Architecture::Roberta | Architecture::Onnx | Architecture::Decoder => [
                "encoder.layer",
                "attention.self.query",
                "attention.self.key",
                "attention.self.value",
                "attention.output.dense",
                "attention.output.LayerNorm",
                "intermediate.dense",
                "output.dense",
                "output.LayerNorm",
            ],
            Architecture::DistilBert => [
                "transformer.layer",
                "attention.q_lin",
                "attention.k_lin",
                "attention.v_lin",
                "attention.out_lin",
                "sa_layer_norm",
                "ffn.lin1",
                "ffn.lin2",
                "output_layer_norm",
            ],
            Architecture::MpNet => [
                "encoder.layer",
                "attention.attn.q",
                "attention.attn.k",
                "attention.attn.v",
                "attention.attn.o",
                "attention.LayerNorm",
                "intermediate.dense",
                "output.dense",
                "output.LayerNorm",
            ],
        };
        let name = |part: &str| format!("{base}.{layer}.{part}");
        Self {
            query: name(q),
            key: name(k),
            value: name(v),
            attention_out: name(out),
            attention_norm: name(norm),
            up: name(up),
            down: name(down),
            out_norm: name(out_norm),
        }
    }
}
