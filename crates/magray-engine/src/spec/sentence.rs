//! Reads the sentence-transformers files: modules, pooling, dense layers, maximum length, prompts.
//! Refuses modules and orders of modules that would change the answer and are not computed here.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use serde_json::Value;

use super::{
    Activation, DenseSpec, EmbedSpec, Pooling, SpecError,
    settings::{Settings, read_json},
};

/// Wider vectors than any model makes.
const MAX_WIDTH: usize = 1 << 20;

/// What `modules.json` lists.
#[derive(Debug, Default)]
pub(super) struct Modules {
    pub(super) encoder_folder: PathBuf,
    pub(super) pooling: Option<PathBuf>,
    dense: Vec<PathBuf>,
    normalize: bool,
}

impl Modules {
    /// Whether vectors are scaled to length 1 at the end.
    pub(super) fn normalizes(&self) -> bool {
        self.normalize
    }
}

/// Reads `modules.json`; `None` when there is none.
///
/// The order must be Transformer, Pooling, any number of Dense, Normalize.
pub(super) fn read_modules(dir: &Path) -> Result<Option<Modules>, SpecError> {
    let file = dir.join("modules.json");
    let Some(value) = read_json(&file)? else { return Ok(None) };
    let Value::Array(listed) = value else {
        return Err(SpecError::Invalid {
            file,
            field: "its whole content".to_owned(),
            found: "no list".to_owned(),
            rule: "it must be a list of modules".to_owned(),
        });
    };
    let mut modules = Modules::default();
    let mut listed = listed.into_iter().map(|value| Settings::of(&file, value));
    match listed.next() {
        Some(first) => {
            let first = first?;
            match module_kind(&first)? {
                "Transformer" => modules.encoder_folder = module_folder(dir, &first)?,
                other => {
                    return Err(first.unsupported(format!("'{other}' as first module"), "it must be a Transformer"));
                }
            }
        }
        None => {
            return Err(SpecError::Unsupported {
                file,
                option: "no module at all".to_owned(),
                instead: "the first must be a Transformer".to_owned(),
            });
        }
    }
    for module in listed {
        let module = module?;
        let kind = module_kind(&module)?;
        match kind {
            "Pooling" if modules.pooling.is_none() => modules.pooling = Some(module_folder(dir, &module)?),
            "Dense" if modules.pooling.is_some() && !modules.normalize => {
                modules.dense.push(module_folder(dir, &module)?);
            }
            "Normalize" if modules.pooling.is_some() => modules.normalize = true,
            // It does nothing outside training.
            "Dropout" => {}
            "Pooling" | "Dense" | "Normalize" => {
                let order = "the order must be Transformer, Pooling, Dense layers, Normalize";
                return Err(module.unsupported(format!("the module '{kind}' at this place"), order));
            }
            _ => {
                let known = "the known are Transformer, Pooling, Dense, Dropout and Normalize";
                return Err(module.unsupported(format!("the module '{kind}'"), known));
            }
        }
    }
    Ok(Some(modules))
}

/// The last word of a module's class, for the classes of sentence-transformers itself.
fn module_kind(module: &Settings) -> Result<&str, SpecError> {
    let class = module.text("type")?.ok_or_else(|| module.invalid("type", "every module must name its class"))?;
    match class.rsplit_once('.') {
        Some((package, kind)) if package.split('.').next() == Some("sentence_transformers") => Ok(kind),
        _ => Err(module.unsupported(format!("the module '{class}'"), "only those of sentence_transformers are")),
    }
}

/// The folder of a module, which must be inside the model's.
fn module_folder(dir: &Path, module: &Settings) -> Result<PathBuf, SpecError> {
    let path = Path::new(module.text("path")?.unwrap_or_default());
    if path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        Ok(dir.join(path))
    } else {
        Err(module.invalid("path", "it must be a folder inside the model's"))
    }
}

/// Reads how vectors are made, for an encoder of this width.
pub(super) fn read_embedding(dir: &Path, modules: &Modules, hidden: usize) -> Result<EmbedSpec, SpecError> {
    let Some(folder) = &modules.pooling else {
        return Err(SpecError::Unsupported {
            file: dir.join("modules.json"),
            option: "no Pooling module".to_owned(),
            instead: "one vector a text is made, so there must be one".to_owned(),
        });
    };
    let settings = Settings::read_existing(&folder.join("config.json"))?;
    for field in ["word_embedding_dimension", "embedding_dimension"] {
        if settings.size(field, MAX_WIDTH)?.is_some_and(|width| width != hidden) {
            return Err(settings.invalid(field, format!("the encoder makes vectors of {hidden}")));
        }
    }
    let pooling = read_pooling(&settings)?;
    let mut width = hidden * pooling.len();
    let mut dense = Vec::with_capacity(modules.dense.len());
    for folder in &modules.dense {
        let layer = read_dense(folder, width)?;
        width = layer.out_features;
        dense.push(layer);
    }
    let include_prompt = settings.flag("include_prompt")?.unwrap_or(true);
    Ok(EmbedSpec { pooling, dense, normalize: modules.normalize, include_prompt, assumed: false })
}

/// The pooling modes, in either spelling: `pooling_mode` names them, or one flag turns each on.
fn read_pooling(settings: &Settings) -> Result<Vec<Pooling>, SpecError> {
    let named = |word: &str| {
        word.parse()
            .map_err(|unknown: magray_core::UnknownPooling| settings.invalid("pooling_mode", unknown.to_string()))
    };
    match settings.value("pooling_mode") {
        Some(Value::String(word)) => return Ok(vec![named(word)?]),
        Some(Value::Array(words)) if !words.is_empty() && words.iter().all(Value::is_string) => {
            return words.iter().filter_map(Value::as_str).map(named).collect();
        }
        Some(_) => return Err(settings.invalid("pooling_mode", "it must be a name or a list of names")),
        None => {}
    }
    let mut pooling = Vec::new();
    for mode in Pooling::ALL {
        let flag = match mode {
            Pooling::Cls => "pooling_mode_cls_token",
            Pooling::Max => "pooling_mode_max_tokens",
            Pooling::Mean => "pooling_mode_mean_tokens",
            Pooling::MeanSqrtLen => "pooling_mode_mean_sqrt_len_tokens",
            Pooling::WeightedMean => "pooling_mode_weightedmean_tokens",
            Pooling::Last => "pooling_mode_lasttoken",
        };
        if settings.flag(flag)? == Some(true) {
            pooling.push(mode);
        }
    }
    // As in sentence-transformers: a file that turns nothing on means the mean.
    Ok(if pooling.is_empty() { vec![Pooling::Mean] } else { pooling })
}

fn read_dense(folder: &Path, width: usize) -> Result<DenseSpec, SpecError> {
    let settings = Settings::read_existing(&folder.join("config.json"))?;
    let in_features = settings.needed_size("in_features", MAX_WIDTH)?;
    if in_features != width {
        return Err(settings.invalid("in_features", format!("the step before makes vectors of {width}")));
    }
    for field in ["module_input_name", "module_output_name"] {
        if let Some(name) = settings.text(field)?
            && name != "sentence_embedding"
        {
            return Err(settings.unsupported(format!("{field} '{name}'"), "only 'sentence_embedding' is"));
        }
    }
    if settings.flag("use_residual")? == Some(true) {
        return Err(settings.unsupported("use_residual", "a Dense layer may only multiply, add and activate"));
    }
    // Without the setting sentence-transformers takes Tanh.
    let activation = match settings.text("activation_function")?.map(|class| (class, class.rsplit('.').next())) {
        None | Some((_, Some("Tanh"))) => Activation::Tanh,
        Some((_, Some("Identity"))) => Activation::Identity,
        Some((_, Some("GELU"))) => Activation::Gelu,
        Some((_, Some("ReLU"))) => Activation::Relu,
        Some((class, _)) => {
            let known = "the known are Identity, Tanh, GELU and ReLU";
            return Err(settings.unsupported(format!("the activation_function '{class}'"), known));
        }
    };
    Ok(DenseSpec {
        folder: folder.to_owned(),
        in_features,
        out_features: settings.needed_size("out_features", MAX_WIDTH)?,
        bias: settings.flag("bias")?.unwrap_or(true),
        activation,
    })
}

/// The names under which versions of sentence-transformers have written the maximum length.
const LENGTH_FILES: [&str; 6] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_mpnet_config.json",
];

/// What is done to a text before the encoder sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// The longest text in tokens.
    pub(super) max_tokens: usize,
    /// Whether the text is put into lower case first, whatever the tokenizer does.
    pub(super) lowercase: bool,
}

/// Reads the longest text in tokens, for an encoder with this many usable positions.
///
/// What sentence-transformers' own file says must fit. The tokenizer's file often holds a number that means
/// "no limit", so that one is only a bound.
pub(super) fn read_limits(folder: &Path, positions: usize) -> Result<Limits, SpecError> {
    let mut lowercase = false;
    for name in LENGTH_FILES {
        let Some(settings) = Settings::read(&folder.join(name))? else { continue };
        lowercase |= settings.flag("do_lower_case")?.unwrap_or(false);
        if let Some(max_tokens) = settings.size("max_seq_length", usize::MAX)? {
            if max_tokens > positions {
                let rule = format!("the model has positions for {positions} tokens only; write {positions} or less");
                return Err(settings.invalid("max_seq_length", rule));
            }
            return Ok(Limits { max_tokens, lowercase });
        }
    }
    let max_tokens = match Settings::read(&folder.join("tokenizer_config.json"))? {
        None => positions,
        Some(settings) => match settings.value("model_max_length").map(Value::as_f64) {
            None => positions,
            // Larger numbers than a machine word saturate here.
            Some(Some(length)) if length >= 1.0 => (length as usize).min(positions),
            Some(_) => return Err(settings.invalid("model_max_length", "it must be a number of 1 or more")),
        },
    };
    Ok(Limits { max_tokens, lowercase })
}

/// Reads the prompts and the name of the default one.
pub(super) fn read_prompts(dir: &Path) -> Result<(BTreeMap<String, String>, Option<String>), SpecError> {
    let Some(settings) = Settings::read(&dir.join("config_sentence_transformers.json"))? else {
        return Ok((BTreeMap::new(), None));
    };
    let prompts: BTreeMap<String, String> = match settings.value("prompts") {
        None => BTreeMap::new(),
        Some(Value::Object(prompts)) if prompts.values().all(Value::is_string) => {
            prompts.iter().filter_map(|(name, prompt)| Some((name.clone(), prompt.as_str()?.to_owned()))).collect()
        }
        Some(_) => return Err(settings.invalid("prompts", "it must give a text to each name")),
    };
    let default_prompt = settings.text("default_prompt_name")?.map(str::to_owned);
    if default_prompt.as_ref().is_some_and(|name| !prompts.contains_key(name)) {
        let names = prompts.into_keys().collect::<Vec<_>>().join(", ");
        return Err(settings.invalid("default_prompt_name", format!("it must be one of the prompts: {names}")));
    }
    Ok((prompts, default_prompt))
}
