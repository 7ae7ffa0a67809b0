//! What a GGUF file says of its decoder and of its tokenizer.
//! Refuses architectures that are not known, and settings that cannot be true or that no code here computes.

use magray_core::Activation;

use crate::{
    spec::{
        SpecError,
        decoder::{
            BiasSpec, CONTEXT_MAX, DecoderSpec, HEADS_MAX, LAYERS_MAX, LayerSpec, NormSpec, Rope, RopeLayout, Scaling,
            WIDTH_MAX,
        },
    },
    tokenize::GgufTokenizer,
    weights::{WeightsError, gguf::Gguf},
};

/// The values of `general.architecture` that are known.
const ARCHITECTURES: [&str; 6] = ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"];

/// Reads a decoder's settings.
pub(super) fn spec(file: &Gguf) -> Result<DecoderSpec, SpecError> {
    let named = file.text("general.architecture")?.unwrap_or_default();
    let reader = Reader { file, architecture: named };
    if !ARCHITECTURES.contains(&named) {
        let known = format!("the known are {}", ARCHITECTURES.join(", "));
        return Err(reader.unsupported(format!("the architecture '{named}'"), known));
    }
    let spec = reader.spec()?;
    match spec.contradiction() {
        None => Ok(spec),
        Some(rule) => Err(file.invalid(rule).into()),
    }
}

/// The tokens that end a text, a turn or a message.
pub(super) fn ends(file: &Gguf) -> Result<Vec<u32>, SpecError> {
    let mut ends = Vec::new();
    for name in ["eos", "eot", "eom"] {
        let id = file.number(&format!("tokenizer.ggml.{name}_token_id"))?;
        ends.extend(id.and_then(|id| u32::try_from(id).ok()));
    }
    ends.sort_unstable();
    ends.dedup();
    Ok(ends)
}

/// Reads a tokenizer's settings.
pub(super) fn tokenizer(file: &Gguf) -> Result<GgufTokenizer<'_>, WeightsError> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    Ok(GgufTokenizer {
        file: file.path(),
        model: file.text(&key("model"))?.unwrap_or_default(),
        pre: file.text(&key("pre"))?,
        tokens: file.texts(&key("tokens"))?.unwrap_or_default(),
        kinds: file.integers(&key("token_type"))?.unwrap_or_default(),
        scores: file.floats(&key("scores"))?.unwrap_or_default(),
        merges: file.texts(&key("merges"))?.unwrap_or_default(),
        begin: file.number(&key("bos_token_id"))?,
        end: file.number(&key("eos_token_id"))?,
        unknown: file.number(&key("unknown_token_id"))?,
        add_begin: file.flag(&key("add_bos_token"))?,
        add_end: file.flag(&key("add_eos_token"))?,
        add_space: file.flag(&key("add_space_prefix"))?,
    })
}

struct Reader<'a> {
    file: &'a Gguf,
    architecture: &'a str,
}

impl Reader<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn unsupported(&self, option: String, instead: impl Into<String>) -> SpecError {
        SpecError::Unsupported { file: self.file.path().to_owned(), option, instead: instead.into() }
    }

    /// A whole number from 1.
    fn size(&self, name: &str, most: usize) -> Result<Option<usize>, SpecError> {
        let key = self.key(name);
        if self.file.is_list(&key) {
            return Err(self.unsupported(format!("{key} of each layer"), "one for all layers is"));
        }
        match self.file.number(&key)? {
            None => Ok(None),
            Some(number) => match usize::try_from(number).ok().filter(|size| (1..=most).contains(size)) {
                Some(size) => Ok(Some(size)),
                None => Err(self.file.invalid(format!("{key} is {number}, and 1 to {most} is accepted")).into()),
            },
        }
    }

    fn needed(&self, name: &str, most: usize) -> Result<usize, SpecError> {
        let missing = || self.file.invalid(format!("it does not say {}", self.key(name))).into();
        self.size(name, most)?.ok_or_else(missing)
    }

    fn positive(&self, name: &str) -> Result<Option<f64>, SpecError> {
        let key = self.key(name);
        match self.file.float(&key)? {
            Some(number) if number <= 0.0 => Err(self.file.invalid(format!("{key} is {number}, not above 0")).into()),
            said => Ok(said),
        }
    }

    fn is_gemma(&self) -> bool {
        self.architecture.starts_with("gemma")
    }

    fn spec(&self) -> Result<DecoderSpec, SpecError> {
        let file = self.file;
        if file.number(&self.key("expert_count"))?.is_some_and(|count| count > 0) {
            return Err(self.unsupported("experts".to_owned(), "models without them are"));
        }
        let hidden = self.needed("embedding_length", WIDTH_MAX)?;
        let heads = self.needed("attention.head_count", HEADS_MAX)?;
        let count = self.needed("block_count", LAYERS_MAX)?;
        let head_size = self.size("attention.key_length", WIDTH_MAX)?.unwrap_or(hidden / heads);
        if self.size("attention.value_length", WIDTH_MAX)?.is_some_and(|size| size != head_size) {
            return Err(self.unsupported("values of another length than keys".to_owned(), "equal ones are"));
        }
        let vocab = match file.shape("token_embd.weight") {
            Some(&[vocab, _]) => vocab,
            _ => return Err(file.invalid("it has no matrix token_embd.weight".to_owned()).into()),
        };
        let ropes = self.ropes(head_size)?;
        let cap = |name: &str, default: f64| match self.architecture {
            "gemma2" => Ok::<_, SpecError>(Some(self.positive(name)?.unwrap_or(default) as f32)),
            "gemma3" => Ok(self.positive(name)?.map(|cap| cap as f32)),
            _ => Ok(None),
        };
        // The largest of Gemma 2 and 3 differ from the others, and their files do not say so.
        let is_27b = matches!((self.architecture, count), ("gemma2", 46) | ("gemma3", 62));
        let scaled_by = if is_27b { hidden / heads } else { head_size };
        Ok(DecoderSpec {
            vocab,
            hidden,
            ffn: self.needed("feed_forward_length", WIDTH_MAX)?,
            heads,
            kv_heads: self.size("attention.head_count_kv", HEADS_MAX)?.unwrap_or(heads),
            head_size,
            layers: self.layers(count, ropes.len())?,
            context: self.needed("context_length", CONTEXT_MAX)?,
            norms: NormSpec {
                epsilon: self.positive("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-6) as f32,
                // What Gemma leaves out is added when such a file is made.
                plus_one: false,
                after: self.is_gemma(),
                heads: matches!(self.architecture, "qwen3" | "gemma3"),
            },
            ropes,
            activation: if self.is_gemma() { Activation::GeluTanh } else { Activation::Silu },
            attention_scale: (scaled_by as f32).powf(-0.5),
            attention_cap: cap("attn_logit_softcapping", 50.0)?,
            logit_cap: cap("final_logit_softcapping", 30.0)?,
            embedding_scale: if self.is_gemma() { (hidden as f32).sqrt() } else { 1.0 },
            biases: BiasSpec {
                qkv: file.has("blk.0.attn_q.bias") || file.has("blk.0.attn_qkv.bias"),
                output: file.has("blk.0.attn_output.bias"),
                ffn: file.has("blk.0.ffn_down.bias"),
            },
            tied_head: !file.has("output.weight"),
        })
    }

    /// The layers; in Gemma's files which ones slide follows from the architecture unless they say it.
    fn layers(&self, count: usize, ropes: usize) -> Result<Vec<LayerSpec>, SpecError> {
        let said = self.file.number(&self.key("attention.sliding_window"))?.filter(|window| *window > 0);
        let window = match said.and_then(|window| usize::try_from(window).ok()) {
            None if self.architecture == "gemma2" => Some(4096),
            window => window,
        };
        let key = self.key("attention.sliding_window_pattern");
        let slides: Vec<bool> = if self.file.is_list(&key) {
            self.file.flags(&key)?.unwrap_or_default()
        } else {
            let pattern = match (self.size("attention.sliding_window_pattern", LAYERS_MAX)?, self.architecture) {
                (Some(pattern), _) => pattern,
                (None, "gemma2") => 2,
                (None, "gemma3") => 6,
                (None, _) => 0,
            };
            (0..count).map(|layer| pattern == 0 || !(layer + 1).is_multiple_of(pattern)).collect()
        };
        if slides.len() != count {
            return Err(self.file.invalid(format!("{key} speaks of {} layers of {count}", slides.len())).into());
        }
        let layer =
            |slides: bool| LayerSpec { window: window.filter(|_| slides), rope: usize::from(slides && ropes > 1) };
        Ok(slides.into_iter().map(layer).collect())
    }

    fn ropes(&self, head_size: usize) -> Result<Vec<Rope>, SpecError> {
        let rotated = self.size("rope.dimension_count", WIDTH_MAX)?.unwrap_or(head_size);
        let context = self.needed("context_length", CONTEXT_MAX)?;
        let original_context = self.size("rope.scaling.original_context_length", CONTEXT_MAX)?.unwrap_or(context);
        // Rows of queries and keys are ordered so that neighbours make a pair in files of this architecture.
        let layout = if self.architecture == "llama" { RopeLayout::Neighbours } else { RopeLayout::Halves };
        let theta = self.positive("rope.freq_base")?;
        let usual = if self.architecture == "gemma3" { 1_000_000.0 } else { 10_000.0 };
        let theta = theta.unwrap_or(usual);
        let full = Rope { theta, rotated, layout, original_context, scaling: self.scaling(rotated)? };
        if self.architecture != "gemma3" {
            return Ok(vec![full]);
        }
        let theta = self.positive("rope.freq_base_swa")?.unwrap_or(10_000.0);
        let local = Rope { theta, scaling: Scaling::None, ..full.clone() };
        Ok(vec![full, local])
    }

    fn scaling(&self, rotated: usize) -> Result<Scaling, SpecError> {
        let (file, pairs) = (self.file, rotated / 2);
        if file.has("rope_freqs.weight") {
            return Ok(Scaling::Divided(file.vector("rope_freqs.weight", pairs)?));
        }
        let attention_factor = self.positive("rope.scaling.attn_factor")?;
        if file.has("rope_factors_short.weight") {
            return Ok(Scaling::LongRope {
                short: file.vector("rope_factors_short.weight", pairs)?,
                long: file.vector("rope_factors_long.weight", pairs)?,
                attention_factor: attention_factor.unwrap_or(1.0),
            });
        }
        let factor = self.positive("rope.scaling.factor")?;
        match (file.text(&self.key("rope.scaling.type"))?, factor) {
            (None | Some("none"), None) => Ok(Scaling::None),
            (Some("none"), Some(_)) => Ok(Scaling::None),
            (Some("linear") | None, Some(factor)) => Ok(Scaling::Linear { factor }),
            (Some("yarn"), Some(factor)) => {
                let scale = if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 };
                Ok(Scaling::Yarn {
                    factor,
                    attention_factor: attention_factor.map(|said| said * scale),
                    beta_fast: self.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                    beta_slow: self.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                    truncate: true,
                })
            }
            (Some(kind), _) => {
                let known = "none, linear and yarn with a factor are, and factors as tensors";
                Err(self.unsupported(format!("rope of type '{kind}'"), known))
            }
        }
    }
}
