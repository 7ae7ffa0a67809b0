//! Reads `config.json`: which encoder, of which sizes.
//! Refuses sizes that cannot be true and options that the encoder code does not compute.

use std::path::Path;

use magray_core::EncoderShape;
use serde_json::Value;

use super::{Activation, Architecture, SpecError, settings::Settings};

// Far above every published encoder, and low enough that no product of two overflows or asks for absurd memory:
// a config that lies within these limits fails at the shapes of its weights.
const MAX_VOCAB: usize = 1 << 24;
const MAX_WIDTH: usize = 1 << 16;
const MAX_LAYERS: usize = 1 << 10;
const MAX_POSITIONS: usize = 1 << 20;
const MAX_BUCKETS: usize = 1 << 12;
const MAX_LABELS: usize = 1 << 16;

/// What `config.json` says.
#[derive(Debug)]
pub(super) struct EncoderConfig {
    pub(super) architecture: Architecture,
    pub(super) shape: EncoderShape,
    pub(super) activation: Activation,
    pub(super) norm_eps: f32,
    pub(super) pad_id: u32,
    pub(super) type_vocab: usize,
    pub(super) relative_attention_buckets: usize,
    pub(super) classifies: bool,
    pub(super) labels: Vec<String>,
}

/// The values of `model_type` that are known.
const MODEL_TYPES: [(&str, Architecture); 6] = [
    ("bert", Architecture::Bert),
    ("roberta", Architecture::Roberta),
    ("xlm-roberta", Architecture::Roberta),
    ("camembert", Architecture::Roberta),
    ("distilbert", Architecture::DistilBert),
    ("mpnet", Architecture::MpNet),
];

/// The settings' names, of which DistilBERT has its own spelling.
struct Names {
    hidden: &'static str,
    layers: &'static str,
    heads: &'static str,
    ffn: &'static str,
    activation: &'static str,
}

const USUAL_NAMES: Names = Names {
    hidden: "hidden_size",
    layers: "num_hidden_layers",
    heads: "num_attention_heads",
    ffn: "intermediate_size",
    activation: "hidden_act",
};
const DISTILBERT_NAMES: Names =
    Names { hidden: "dim", layers: "n_layers", heads: "n_heads", ffn: "hidden_dim", activation: "activation" };

/// Reads the `config.json` in `folder`.
pub(super) fn read(folder: &Path) -> Result<EncoderConfig, SpecError> {
    let settings = Settings::read_existing(&folder.join("config.json"))?;
    let architecture = architecture(&settings)?;
    refuse_unsupported(&settings)?;

    let names = if architecture == Architecture::DistilBert { DISTILBERT_NAMES } else { USUAL_NAMES };
    let shape = EncoderShape {
        vocab: settings.needed_size("vocab_size", MAX_VOCAB)?,
        hidden: settings.needed_size(names.hidden, MAX_WIDTH)?,
        layers: settings.needed_size(names.layers, MAX_LAYERS)?,
        heads: settings.needed_size(names.heads, MAX_WIDTH)?,
        ffn: settings.needed_size(names.ffn, MAX_WIDTH)?,
        positions: settings.needed_size("max_position_embeddings", MAX_POSITIONS)?,
    };
    if !shape.hidden.is_multiple_of(shape.heads) {
        return Err(
            settings.invalid(names.hidden, format!("it must be a multiple of {} = {}", names.heads, shape.heads))
        );
    }
    let activation = match settings.text(names.activation)? {
        None => Activation::Gelu,
        Some(word) => word.parse().map_err(|unknown: magray_core::UnknownActivation| {
            settings.invalid(names.activation, unknown.to_string())
        })?,
    };
    let pad_id = pad_id(&settings, architecture, &shape)?;
    let first = architecture.first_position(pad_id);
    if shape.positions <= first {
        let rule = format!("positions start at pad_token_id + 1 = {first}, so that none is left");
        return Err(settings.invalid("max_position_embeddings", rule));
    }
    Ok(EncoderConfig {
        architecture,
        shape,
        activation,
        norm_eps: norm_eps(&settings, architecture)?,
        pad_id,
        type_vocab: match architecture {
            Architecture::Bert | Architecture::Roberta => settings.size("type_vocab_size", MAX_WIDTH)?.unwrap_or(2),
            Architecture::DistilBert | Architecture::MpNet | Architecture::Onnx | Architecture::Decoder => 0,
        },
        relative_attention_buckets: match architecture {
            Architecture::MpNet => settings.size("relative_attention_num_buckets", MAX_BUCKETS)?.unwrap_or(32),
            _ => 0,
        },
        classifies: first_class(&settings)?.is_some_and(|class| class.ends_with("ForSequenceClassification")),
        labels: labels(&settings)?,
    })
}

/// The first of `architectures`: the class that the weights were saved from.
pub(super) fn first_class(settings: &Settings) -> Result<Option<&str>, SpecError> {
    match settings.value("architectures") {
        None => Ok(None),
        Some(Value::Array(classes)) if classes.iter().all(Value::is_string) => {
            Ok(classes.first().and_then(Value::as_str))
        }
        Some(_) => Err(settings.invalid("architectures", "it must be a list of class names")),
    }
}

fn architecture(settings: &Settings) -> Result<Architecture, SpecError> {
    let known = || MODEL_TYPES.map(|(name, _)| name).join(", ");
    match settings.text("model_type")? {
        Some(word) => {
            MODEL_TYPES.iter().find(|(name, _)| *name == word).map(|(_, architecture)| *architecture).ok_or_else(|| {
                settings.unsupported(format!("model_type '{word}'"), format!("the known are {}", known()))
            })
        }
        None => Err(settings.invalid("model_type", format!("it must be one of {}", known()))),
    }
}

/// Options that change what the encoder computes and that no code here computes.
fn refuse_unsupported(settings: &Settings) -> Result<(), SpecError> {
    for option in ["is_decoder", "add_cross_attention"] {
        if settings.flag(option)? == Some(true) {
            return Err(settings.unsupported(option, "only encoders that look both ways are"));
        }
    }
    if let Some(kind) = settings.text("position_embedding_type")?
        && kind != "absolute"
    {
        return Err(settings.unsupported(format!("position_embedding_type '{kind}'"), "only 'absolute' is"));
    }
    if settings.value("auto_map").is_some() {
        return Err(settings.unsupported("code of its own (auto_map)", "only the architectures built in are"));
    }
    if settings.value("quantization_config").is_some() {
        return Err(settings.unsupported("quantized weights (quantization_config)", "use the f32, f16 or bf16 weights"));
    }
    if settings.value("pruned_heads").is_some_and(|heads| heads.as_object().is_none_or(|heads| !heads.is_empty())) {
        return Err(settings.unsupported("pruned_heads", "all layers must have the same heads"));
    }
    Ok(())
}

fn pad_id(settings: &Settings, architecture: Architecture, shape: &EncoderShape) -> Result<u32, SpecError> {
    let Some(value) = settings.value("pad_token_id") else {
        return Ok(match architecture {
            Architecture::Bert | Architecture::DistilBert | Architecture::Onnx | Architecture::Decoder => 0,
            Architecture::Roberta | Architecture::MpNet => 1,
        });
    };
    let pad_id = value.as_u64().filter(|&id| id < shape.vocab as u64).and_then(|id| u32::try_from(id).ok());
    pad_id.ok_or_else(|| settings.invalid("pad_token_id", format!("it must be below vocab_size = {}", shape.vocab)))
}

fn norm_eps(settings: &Settings, architecture: Architecture) -> Result<f32, SpecError> {
    // DistilBERT's code has this number in it and reads none.
    const FIXED: f32 = 1e-12;
    match settings.value("layer_norm_eps") {
        Some(value) if architecture != Architecture::DistilBert => match value.as_f64() {
            Some(eps) if eps > 0.0 && eps < 1.0 => Ok(eps as f32),
            _ => Err(settings.invalid("layer_norm_eps", "it must be a number between 0 and 1")),
        },
        _ => Ok(FIXED),
    }
}

/// The labels in the order of their numbers.
pub(super) fn labels(settings: &Settings) -> Result<Vec<String>, SpecError> {
    let rule = "it must name the labels 0, 1, 2, ... each once";
    let names = match settings.value("id2label") {
        None => {
            let count = settings.size("num_labels", MAX_LABELS)?.unwrap_or(2);
            return Ok((0..count).map(|i| format!("LABEL_{i}")).collect());
        }
        Some(Value::Object(names)) if (1..=MAX_LABELS).contains(&names.len()) => names,
        Some(_) => return Err(settings.invalid("id2label", rule)),
    };
    let label = |i: usize| names.get(&i.to_string())?.as_str().map(str::to_owned);
    (0..names.len()).map(label).collect::<Option<Vec<_>>>().ok_or_else(|| settings.invalid("id2label", rule))
}
