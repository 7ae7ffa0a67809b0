//! Reads a decoder's `config.json`, as transformers of any age writes it.
//! Refuses architectures, kinds of rope and options that no code here computes.

use std::path::Path;

use magray_core::Activation;
use serde_json::Value;

use super::{
    BiasSpec, CONTEXT_MAX, DecoderSpec, HEADS_MAX, LAYERS_MAX, LayerSpec, NormSpec, Rope, RopeLayout, Scaling,
    SpecError, VOCAB_MAX, WIDTH_MAX,
};
use crate::spec::settings::Settings;

/// The values of `model_type` that are known.
const FAMILIES: [(&str, Family); 7] = [
    ("llama", Family::Llama),
    ("mistral", Family::Mistral),
    ("qwen2", Family::Qwen2),
    ("qwen3", Family::Qwen3),
    ("gemma2", Family::Gemma2),
    ("gemma3_text", Family::Gemma3),
    ("phi3", Family::Phi3),
];

/// Whose defaults a config has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Gemma2,
    Gemma3,
    Phi3,
}

impl Family {
    fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma2 | Self::Gemma3)
    }
}

/// The kinds of layers as `layer_types` names them.
const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";

/// The tokens that end an answer: as `generation_config.json` says, else as `config.json` does.
pub fn read_ends(folder: &Path) -> Result<Vec<u32>, SpecError> {
    for name in ["generation_config.json", "config.json"] {
        let Some(settings) = Settings::read(&folder.join(name))? else { continue };
        let ids = match settings.value("eos_token_id") {
            None => continue,
            Some(Value::Array(ids)) => ids.iter().map(as_id).collect(),
            Some(id) => as_id(id).map(|id| vec![id]),
        };
        return ids
            .ok_or_else(|| settings.invalid("eos_token_id", "it must be a token id or a list of them".to_owned()));
    }
    Ok(Vec::new())
}

fn as_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// Reads the `config.json` in `folder`.
pub fn read_config(folder: &Path) -> Result<DecoderSpec, SpecError> {
    let settings = Settings::read_existing(&folder.join("config.json"))?;
    let family = family(&settings)?;
    if settings.value("quantization_config").is_some() {
        return Err(settings.unsupported("quantized weights (quantization_config)", "use plain weights or a GGUF file"));
    }
    if settings.flag("use_bidirectional_attention")? == Some(true) {
        return Err(settings.unsupported("use_bidirectional_attention", "decoders that look back alone are"));
    }
    let hidden = settings.needed_size("hidden_size", WIDTH_MAX)?;
    let heads = settings.needed_size("num_attention_heads", HEADS_MAX)?;
    let head_size = match (settings.size("head_dim", WIDTH_MAX)?, family) {
        (Some(size), _) => size,
        (None, Family::Qwen3) => 128,
        (None, Family::Gemma2 | Family::Gemma3) => 256,
        (None, _) if hidden.is_multiple_of(heads) => hidden / heads,
        (None, _) => return Err(settings.invalid("hidden_size", format!("it must be a multiple of {heads} heads"))),
    };
    let context = settings.needed_size("max_position_embeddings", CONTEXT_MAX)?;
    let ropes = ropes(&settings, family, head_size, context)?;
    let stretched = ropes.iter().find_map(|rope| match rope.scaling {
        Scaling::Dynamic { factor } => Some((context as f64 * factor) as usize),
        _ => None,
    });
    let context = stretched.unwrap_or(context).min(CONTEXT_MAX);
    let bias = settings.flag("attention_bias")?.unwrap_or(false);
    let spec = DecoderSpec {
        vocab: settings.needed_size("vocab_size", VOCAB_MAX)?,
        hidden,
        ffn: settings.needed_size("intermediate_size", WIDTH_MAX)?,
        heads,
        kv_heads: settings.size("num_key_value_heads", HEADS_MAX)?.unwrap_or(heads),
        head_size,
        layers: layers(&settings, family, ropes.len())?,
        context,
        norms: NormSpec {
            epsilon: positive(&settings, "rms_norm_eps")?.unwrap_or(1e-6) as f32,
            plus_one: family.is_gemma(),
            after: family.is_gemma(),
            heads: matches!(family, Family::Qwen3 | Family::Gemma3),
        },
        ropes,
        activation: activation(&settings, family)?,
        attention_scale: match positive(&settings, "query_pre_attn_scalar")?.filter(|_| family.is_gemma()) {
            Some(scalar) => scalar.powf(-0.5) as f32,
            None if family.is_gemma() => 256f32.powf(-0.5),
            None => (head_size as f32).powf(-0.5),
        },
        attention_cap: cap(&settings, family, "attn_logit_softcapping", 50.0)?,
        logit_cap: cap(&settings, family, "final_logit_softcapping", 30.0)?,
        embedding_scale: if family.is_gemma() { (hidden as f32).sqrt() } else { 1.0 },
        biases: BiasSpec {
            qkv: bias || family == Family::Qwen2,
            output: bias && family != Family::Qwen2,
            ffn: settings.flag("mlp_bias")?.unwrap_or(false),
        },
        tied_head: settings.flag("tie_word_embeddings")?.unwrap_or(family.is_gemma()),
    };
    match spec.contradiction() {
        None => Ok(spec),
        Some(rule) => Err(settings.invalid("num_attention_heads", rule)),
    }
}

fn family(settings: &Settings) -> Result<Family, SpecError> {
    let known = || FAMILIES.map(|(name, _)| name).join(", ");
    match settings.text("model_type")? {
        Some(word) => FAMILIES.iter().find(|(name, _)| *name == word).map(|(_, family)| *family).ok_or_else(|| {
            settings.unsupported(format!("model_type '{word}'"), format!("the known decoders are {}", known()))
        }),
        None => Err(settings.invalid("model_type", format!("it must be one of {}", known()))),
    }
}

fn activation(settings: &Settings, family: Family) -> Result<Activation, SpecError> {
    let name = if family.is_gemma() { "hidden_activation" } else { "hidden_act" };
    let word = settings.text(name)?.unwrap_or(if family.is_gemma() { "gelu_pytorch_tanh" } else { "silu" });
    match word.parse() {
        Ok(activation @ (Activation::Silu | Activation::GeluTanh)) => Ok(activation),
        _ => Err(settings.invalid(name, "it must be silu or gelu_pytorch_tanh")),
    }
}

/// A number above zero.
fn positive(settings: &Settings, field: &str) -> Result<Option<f64>, SpecError> {
    match settings.value(field) {
        None => Ok(None),
        Some(value) => match value.as_f64().filter(|number| *number > 0.0 && number.is_finite()) {
            Some(number) => Ok(Some(number)),
            None => Err(settings.invalid(field, "it must be a number above 0")),
        },
    }
}

/// As [`positive`], for a setting that must be there.
fn needed(settings: &Settings, field: &str) -> Result<f64, SpecError> {
    positive(settings, field)?.ok_or_else(|| settings.invalid(field, "it must be a number above 0"))
}

/// A cap: Gemma 2 has one where its config does not say, and none where it says null.
fn cap(settings: &Settings, family: Family, field: &str, default: f32) -> Result<Option<f32>, SpecError> {
    let said = positive(settings, field)?.map(|cap| cap as f32);
    Ok(match family {
        Family::Gemma2 if !settings.mentions(field) => Some(default),
        Family::Gemma2 | Family::Gemma3 => said,
        _ => None,
    })
}

/// The layers, with the rope of full layers first where there are two.
fn layers(settings: &Settings, family: Family, ropes: usize) -> Result<Vec<LayerSpec>, SpecError> {
    let count = settings.needed_size("num_hidden_layers", LAYERS_MAX)?;
    let window = match settings.size("sliding_window", CONTEXT_MAX)? {
        None if settings.mentions("sliding_window") => None,
        None if matches!(family, Family::Mistral | Family::Gemma2 | Family::Gemma3) => Some(4096),
        said => said,
    };
    let slides: Vec<bool> = match settings.value("layer_types") {
        Some(Value::Array(kinds)) if kinds.len() == count => {
            let slides = |kind: &Value| match kind.as_str() {
                Some(SLIDING) => Ok(true),
                Some(FULL) => Ok(false),
                _ => Err(settings.unsupported(format!("a layer of type {kind}"), format!("{FULL} and {SLIDING} are"))),
            };
            kinds.iter().map(slides).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(settings.invalid("layer_types", format!("it must name the types of {count} layers"))),
        None => {
            let from = settings.size("max_window_layers", CONTEXT_MAX)?.unwrap_or(28);
            let pattern = settings.size("sliding_window_pattern", LAYERS_MAX)?.unwrap_or(6);
            let qwen = settings.flag("use_sliding_window")?.unwrap_or(false);
            let slides = |layer: usize| match family {
                Family::Llama => false,
                Family::Mistral | Family::Phi3 => true,
                Family::Qwen2 | Family::Qwen3 => qwen && layer >= from,
                Family::Gemma2 => layer.is_multiple_of(2),
                Family::Gemma3 => !(layer + 1).is_multiple_of(pattern),
            };
            (0..count).map(slides).collect()
        }
    };
    let layer = |slides: bool| LayerSpec { window: window.filter(|_| slides), rope: usize::from(slides && ropes > 1) };
    Ok(slides.into_iter().map(layer).collect())
}

/// The ropes: one, or for Gemma 3 that of full layers and that of sliding ones.
fn ropes(settings: &Settings, family: Family, head_size: usize, context: usize) -> Result<Vec<Rope>, SpecError> {
    let nested = |field: &str| match settings.value(field) {
        None => Ok(None),
        Some(value) => Settings::of(&settings.file, value.clone()).map(Some),
    };
    let parameters = nested("rope_parameters")?;
    let scaling = nested("rope_scaling")?;
    let reader = RopeReader { settings, family, head_size, context };
    if family != Family::Gemma3 {
        return Ok(vec![reader.rope(parameters.or(scaling).as_ref(), None)?]);
    }
    let by_kind = |kind: &str| match parameters.as_ref().and_then(|all| all.value(kind)) {
        None => Ok(None),
        Some(value) => Settings::of(&settings.file, value.clone()).map(Some),
    };
    let full = by_kind(FULL)?.or(scaling);
    let sliding = by_kind(SLIDING)?;
    let local = positive(settings, "rope_local_base_freq")?.unwrap_or(10_000.0);
    let full = reader.rope(full.as_ref(), positive(settings, "rope_theta")?.or(Some(1_000_000.0)))?;
    Ok(vec![full, reader.rope(sliding.as_ref(), Some(local))?])
}

struct RopeReader<'a> {
    settings: &'a Settings,
    family: Family,
    head_size: usize,
    context: usize,
}

impl RopeReader<'_> {
    /// The rope that some parameters describe, with this base where they name none.
    fn rope(&self, parameters: Option<&Settings>, theta: Option<f64>) -> Result<Rope, SpecError> {
        let said = |field: &str| parameters.map_or(Ok(None), |parameters| positive(parameters, field));
        let part = match said("partial_rotary_factor")? {
            Some(part) => part,
            None => positive(self.settings, "partial_rotary_factor")?.unwrap_or(1.0),
        };
        let theta = match said("rope_theta")?.or(theta) {
            Some(theta) => theta,
            None => positive(self.settings, "rope_theta")?.unwrap_or(10_000.0),
        };
        let original = |settings: &Settings| settings.size("original_max_position_embeddings", CONTEXT_MAX);
        let original_context = match original(self.settings)? {
            Some(context) => context,
            None => parameters.map_or(Ok(None), original)?.unwrap_or(self.context),
        };
        let scaling = parameters.map_or(Ok(Scaling::None), |parameters| self.scaling(parameters, original_context))?;
        Ok(Rope {
            theta,
            rotated: (self.head_size as f64 * part) as usize,
            layout: RopeLayout::Halves,
            original_context,
            scaling,
        })
    }

    fn scaling(&self, parameters: &Settings, original: usize) -> Result<Scaling, SpecError> {
        let kind = match parameters.text("rope_type")? {
            Some(kind) => Some(kind),
            None => parameters.text("type")?,
        };
        let ratio = self.context as f64 / original as f64;
        Ok(match kind {
            None | Some("default") => Scaling::None,
            Some("linear") => Scaling::Linear { factor: needed(parameters, "factor")? },
            Some("dynamic") => Scaling::Dynamic { factor: needed(parameters, "factor")? },
            Some("llama3") => Scaling::Llama3 {
                factor: needed(parameters, "factor")?,
                low_freq_factor: needed(parameters, "low_freq_factor")?,
                high_freq_factor: needed(parameters, "high_freq_factor")?,
            },
            Some("yarn") if self.family != Family::Phi3 => self.yarn(parameters, ratio)?,
            Some("longrope" | "su" | "yarn") => {
                let factor = positive(parameters, "factor")?.unwrap_or(ratio);
                let usual = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original as f64).ln()).sqrt() };
                Scaling::LongRope {
                    short: factors(parameters, "short_factor")?,
                    long: factors(parameters, "long_factor")?,
                    attention_factor: positive(parameters, "attention_factor")?.unwrap_or(usual),
                }
            }
            Some(other) => {
                let known = "default, linear, dynamic, yarn, llama3 and longrope are";
                return Err(self.settings.unsupported(format!("rope of type '{other}'"), known));
            }
        })
    }

    fn yarn(&self, parameters: &Settings, ratio: f64) -> Result<Scaling, SpecError> {
        let factor = positive(parameters, "factor")?.unwrap_or(ratio);
        let scale = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
        let attention_factor = match positive(parameters, "attention_factor")? {
            Some(said) => Some(said),
            None => match (positive(parameters, "mscale")?, positive(parameters, "mscale_all_dim")?) {
                (Some(one), Some(all)) => Some(scale(one) / scale(all)),
                _ => None,
            },
        };
        Ok(Scaling::Yarn {
            factor,
            attention_factor,
            beta_fast: positive(parameters, "beta_fast")?.unwrap_or(32.0),
            beta_slow: positive(parameters, "beta_slow")?.unwrap_or(1.0),
            truncate: parameters.flag("truncate")?.unwrap_or(true),
        })
    }
}

fn factors(parameters: &Settings, field: &str) -> Result<Vec<f32>, SpecError> {
    let list = parameters.value(field).and_then(Value::as_array);
    let list = list.and_then(|list| list.iter().map(|x| x.as_f64().map(|x| x as f32)).collect());
    list.ok_or_else(|| parameters.invalid(field, "it must be a list of numbers"))
}
