//! Reads what a model in ONNX form is: its graph file, what the graph takes and gives, and the settings beside it.
//! Opens no session. Refuses inputs and outputs that it cannot tell the meaning of, and names what it found.

use super::settings::Settings;
use super::{Architecture, ClassifyHead, ClassifySpec, EmbedSpec, ModelSpec, SpecError, Task, config, sentence};
use crate::bounded_file::{self, TOKENIZER_BYTES_MAX};
use crate::graph_file;
use crate::onnx_graph::{Element, Graph, Port};
use magray_core::{Activation, EncoderShape, Pooling, Precision, PrecisionChoice};
use serde::Deserialize;
use serde_json::Value;
use std::path::{Component, Path, PathBuf};

/// The graph of a model, as far as a session must know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnnxSpec {
    /// The file of the graph.
    pub file: PathBuf,
    /// What it must be given, in its order.
    pub(crate) inputs: Vec<OnnxInput>,
    /// The output that is used.
    pub(crate) output: OnnxOutput,
    /// Texts of a run, where the graph has a fixed number of them.
    pub(crate) fixed_texts: Option<usize>,
    /// Tokens of each text of a run, where the graph has a fixed number of them.
    pub(crate) fixed_tokens: Option<usize>,
    /// Whether a text's answer depends on the others of its run: then each is run by itself.
    pub(crate) runs_singly: bool,
    /// Whether its weights have 8 bits.
    pub(crate) is_quantised: bool,
    /// Bytes of all files of the graph.
    pub bytes: u64,
}

impl OnnxSpec {
    /// How its numbers are stored.
    pub(crate) fn dtype(&self) -> &'static str {
        match (self.is_quantised, self.output.is_half) {
            (true, _) => "I8",
            (false, true) => "F16",
            (false, false) => "F32",
        }
    }
}

/// An input of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OnnxInput {
    pub(crate) name: String,
    pub(crate) meaning: InputMeaning,
    /// Whether its numbers have 64 bits, and not 32.
    pub(crate) is_wide: bool,
}

/// What an input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputMeaning {
    Ids,
    Mask,
    Types,
    Positions,
}

/// The output of a graph that answers are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OnnxOutput {
    pub(crate) name: String,
    /// Whether it has a row for each token, which are pooled here.
    pub(crate) has_tokens: bool,
    /// Whether its numbers have 16 bits, and not 32.
    pub(crate) is_half: bool,
}

/// Where graphs lie in a model's folder.
const FOLDERS: [&str; 2] = ["", "onnx"];
/// Names of graphs by the arithmetic that they were made for, as exporters give them; the first that is there is taken.
const F32_FILES: [&str; 3] = ["model.onnx", "model_optimized.onnx", "model_O2.onnx"];
const F16_FILES: [&str; 2] = ["model_fp16.onnx", "model_O4.onnx"];
const INT8_FILES: [&str; 4] = ["model_int8.onnx", "model_quantized.onnx", "model_uint8.onnx", "model_qint8.onnx"];
/// Quantised for these instructions: with others they are slower, or round more.
const AVX512_VNNI_FILES: [&str; 1] = ["model_qint8_avx512_vnni.onnx"];
const AVX512_FILES: [&str; 2] = ["model_qint8_avx512.onnx", "model_quint8_avx512.onnx"];
const AVX2_FILES: [&str; 2] = ["model_quint8_avx2.onnx", "model_qint8_avx2.onnx"];
/// What a model reads whose files do not say it: what nearly all encoders do.
const TOKENS_USUAL: usize = 512;
/// Larger than any dimension of an answer.
const OUTPUTS_MAX: usize = 1 << 17;

/// The graph file of a model for this arithmetic.
///
/// A name that says nothing of its arithmetic stands for f32, and a folder with a single graph has just that.
pub fn find_graph(folder: &Path, precision: PrecisionChoice) -> Option<PathBuf> {
    let is_there = |file: &PathBuf| file.is_file();
    let named = |names: &[&str]| {
        let files = FOLDERS.iter().flat_map(|below| names.iter().map(move |name| folder.join(below).join(name)));
        files.collect::<Vec<_>>().into_iter().find(is_there)
    };
    let int8 = || {
        let mut names: Vec<&str> = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let has_avx512 = std::arch::is_x86_feature_detected!("avx512bw");
            let has_vnni = has_avx512 && std::arch::is_x86_feature_detected!("avx512vnni");
            names.extend(AVX512_VNNI_FILES.iter().filter(|_| has_vnni));
            names.extend(AVX512_FILES.iter().filter(|_| has_avx512));
            names.extend(AVX2_FILES);
        }
        names.extend(INT8_FILES);
        named(&names)
    };
    let asked = match precision {
        PrecisionChoice::Exactly(Precision::Int8) => int8(),
        PrecisionChoice::Exactly(Precision::F16 | Precision::Bf16) => named(&F16_FILES),
        PrecisionChoice::Auto | PrecisionChoice::Exactly(_) => None,
    };
    asked.or_else(|| named(&F32_FILES)).or_else(|| only_graph(folder)).or_else(|| named(&F16_FILES)).or_else(int8)
}

/// The graph of a folder that has one alone, whatever it is called.
fn only_graph(folder: &Path) -> Option<PathBuf> {
    let graphs = |below: &str| {
        let entries = std::fs::read_dir(folder.join(below)).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|ending| ending == "onnx"))
    };
    let mut all = FOLDERS.iter().flat_map(|below| graphs(below)).filter(|path| path.is_file());
    let only = all.next()?;
    all.next().is_none().then_some(only)
}

impl ModelSpec {
    /// Reads the model in this folder whose graph is this file.
    pub fn read_onnx(dir: &Path, file: &Path) -> Result<Self, SpecError> {
        let about = About { file };
        let graph =
            graph_file::open(file).map_err(|error| about.unsupported(error.to_string(), "export or pull it again"))?;
        let bytes = about.bytes_with(&graph.external)?;
        let settings = Settings::read(&dir.join("config.json"))?;
        let modules = sentence::read_modules(dir)?;
        let (inputs, sizes) = about.inputs(&graph)?;
        let chosen = about.output(&graph, settings.as_ref())?;
        let width = about.width(&chosen, settings.as_ref())?;
        let task = match chosen.task {
            OutputTask::Labels => {
                let named = settings.as_ref().filter(|settings| settings.value("id2label").is_some());
                let named = named.map(config::labels).transpose()?.filter(|labels| labels.len() == width);
                let labels = named.unwrap_or_else(|| (0..width).map(|label| format!("LABEL_{label}")).collect());
                // The graph has the head in it.
                Task::Classify(ClassifySpec { labels, head: ClassifyHead::Pooler })
            }
            OutputTask::Pooled => Task::Embed(EmbedSpec {
                pooling: vec![Pooling::Cls],
                dense: Vec::new(),
                normalize: modules.as_ref().is_some_and(sentence::Modules::normalizes),
                include_prompt: true,
                assumed: false,
            }),
            OutputTask::Tokens => Task::Embed(match &modules {
                Some(modules) => {
                    let embed = sentence::read_embedding(dir, modules, width)?;
                    if !embed.dense.is_empty() {
                        let instead = "export the graph with them in it, so that it has the output sentence_embedding";
                        return Err(about.unsupported("Dense layers behind the graph".to_owned(), instead));
                    }
                    embed
                }
                None => EmbedSpec::assumed(),
            }),
        };
        let size = |field: &str| settings.as_ref().map_or(Ok(None), |settings| settings.size(field, usize::MAX));
        let vocab = graph.vocab.or(size("vocab_size")?).ok_or_else(|| {
            let what = "no table of tokens that the ids index".to_owned();
            about.unsupported(what, "put config.json with vocab_size beside it")
        })?;
        let (first, pad_id) = first_position(settings.as_ref())?;
        let positions = match size("max_position_embeddings")? {
            Some(positions) => positions.saturating_sub(first).max(1),
            None => tokenizer_limit(dir)?.unwrap_or(TOKENS_USUAL),
        };
        let positions = sizes.tokens.map_or(positions, |fixed| fixed.min(positions));
        let limits = sentence::read_limits(dir, positions)?;
        let (prompts, default_prompt) = sentence::read_prompts(dir)?;
        let has_types = inputs.iter().any(|input| input.meaning == InputMeaning::Types);
        let port = chosen.port;
        let output = OnnxOutput {
            name: port.name.clone(),
            has_tokens: chosen.task == OutputTask::Tokens,
            is_half: port.element == Element::F16,
        };
        Ok(Self {
            encoder_folder: dir.to_owned(),
            architecture: Architecture::Onnx,
            shape: EncoderShape {
                vocab,
                hidden: width,
                layers: size("num_hidden_layers")?.unwrap_or(1),
                heads: size("num_attention_heads")?.unwrap_or(1),
                ffn: size("intermediate_size")?.unwrap_or(width),
                positions,
            },
            activation: Activation::Gelu,
            norm_eps: 1e-12,
            pad_id,
            // A graph that has no use for them is not given any.
            type_vocab: size("type_vocab_size")?.filter(|_| has_types).unwrap_or(2),
            relative_attention_buckets: 0,
            max_tokens: limits.max_tokens,
            lowercase: limits.lowercase,
            task,
            prompts,
            default_prompt,
            onnx: Some(OnnxSpec {
                file: file.to_owned(),
                inputs,
                output,
                fixed_texts: sizes.texts,
                fixed_tokens: sizes.tokens,
                runs_singly: graph.quantises_by_batch,
                is_quantised: graph.is_quantised,
                bytes,
            }),
        })
    }
}

/// The dimensions of inputs that the graph fixes.
#[derive(Default)]
struct FixedSizes {
    texts: Option<usize>,
    tokens: Option<usize>,
}

/// What an output is taken for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OutputTask {
    /// A row for each token.
    Tokens,
    /// A vector for each text.
    Pooled,
    /// A number for each label.
    Labels,
}

struct Chosen<'a> {
    port: &'a Port,
    task: OutputTask,
}

/// What outputs are called, the best first.
const KNOWN_OUTPUTS: [(&str, OutputTask); 8] = [
    ("sentence_embedding", OutputTask::Pooled),
    ("sentence_embeddings", OutputTask::Pooled),
    ("logits", OutputTask::Labels),
    ("scores", OutputTask::Labels),
    ("last_hidden_state", OutputTask::Tokens),
    ("token_embeddings", OutputTask::Tokens),
    ("hidden_states", OutputTask::Tokens),
    ("embeddings", OutputTask::Pooled),
];

/// A graph that is being read, for messages.
struct About<'a> {
    file: &'a Path,
}

impl About<'_> {
    fn unsupported(&self, option: String, instead: impl Into<String>) -> SpecError {
        SpecError::Unsupported { file: self.file.to_owned(), option, instead: instead.into() }
    }

    /// Bytes of the graph and of the files that it names, which must lie in its folder.
    fn bytes_with(&self, external: &[String]) -> Result<u64, SpecError> {
        let unreadable = |file: &Path, source| SpecError::Unreadable { file: file.to_owned(), source };
        let bytes =
            |file: &Path| std::fs::metadata(file).map(|data| data.len()).map_err(|error| unreadable(file, error));
        let folder = self.file.parent().unwrap_or(Path::new(""));
        let mut all = bytes(self.file)?;
        for name in external {
            let is_plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
            let escapes = || {
                let option = format!("weights in '{name}', which is outside of its folder");
                self.unsupported(option, "put the file beside the graph, and export it with that name")
            };
            if name.is_empty() || !is_plain {
                return Err(escapes());
            }
            let beside = folder.join(name);
            let whole = beside.canonicalize().map_err(|error| unreadable(&beside, error))?;
            let root = folder.canonicalize().map_err(|error| unreadable(folder, error))?;
            if !whole.starts_with(&root) && !is_blob(&root, &whole) {
                return Err(escapes());
            }
            all = all.saturating_add(bytes(&beside)?);
        }
        Ok(all)
    }

    /// The inputs, each with its meaning.
    fn inputs(&self, graph: &Graph) -> Result<(Vec<OnnxInput>, FixedSizes), SpecError> {
        let found = || listed(&graph.inputs);
        let mut fixed = FixedSizes::default();
        let mut inputs = Vec::new();
        for port in &graph.inputs {
            let meaning = match port.name.as_str() {
                "input_ids" => InputMeaning::Ids,
                "attention_mask" => InputMeaning::Mask,
                "token_type_ids" => InputMeaning::Types,
                "position_ids" => InputMeaning::Positions,
                _ => {
                    let instead = "the known are input_ids, attention_mask, token_type_ids and position_ids";
                    return Err(self.unsupported(format!("inputs that are not known ({})", found()), instead));
                }
            };
            let is_wide = match port.element {
                Element::I64 => true,
                Element::I32 => false,
                _ => return Err(self.unsupported(format!("the input {port}"), "inputs are 32 or 64-bit whole numbers")),
            };
            let [texts, tokens] = port.dims[..] else {
                return Err(
                    self.unsupported(format!("the input {port}"), "inputs have two dimensions, texts and tokens")
                );
            };
            fixed = FixedSizes { texts: fixed.texts.or(texts), tokens: fixed.tokens.or(tokens) };
            inputs.push(OnnxInput { name: port.name.clone(), meaning, is_wide });
        }
        if !inputs.iter().any(|input| input.meaning == InputMeaning::Ids) {
            return Err(self.unsupported(format!("no input input_ids, but {}", found()), "a graph must read token ids"));
        }
        let is_single = |size: Option<usize>| size.is_none_or(|size| size > 0);
        if !is_single(fixed.texts) || !is_single(fixed.tokens) {
            return Err(self.unsupported(format!("inputs without room ({})", found()), "export it again"));
        }
        Ok((inputs, fixed))
    }

    /// The output that answers are made of.
    fn output<'a>(&self, graph: &'a Graph, settings: Option<&Settings>) -> Result<Chosen<'a>, SpecError> {
        let outputs = &graph.outputs;
        let named = KNOWN_OUTPUTS.iter().find_map(|(name, task)| {
            outputs.iter().find(|port| port.name == *name).map(|port| Chosen { port, task: *task })
        });
        let classifies = settings.map_or(Ok(None), config::first_class)?;
        let classifies = classifies.is_some_and(|class| class.ends_with("ForSequenceClassification"));
        // One that stands alone is told by its rank.
        let alone = || match &outputs[..] {
            [port] if port.dims.len() == 3 => Some(Chosen { port, task: OutputTask::Tokens }),
            [port] if port.dims.len() == 2 && classifies => Some(Chosen { port, task: OutputTask::Labels }),
            [port] if port.dims.len() == 2 => Some(Chosen { port, task: OutputTask::Pooled }),
            _ => None,
        };
        let Some(chosen) = named.or_else(alone) else {
            let known = KNOWN_OUTPUTS.map(|(name, _)| name).join(", ");
            let option = format!("outputs whose meaning is not known ({})", listed(outputs));
            return Err(self.unsupported(option, format!("one must be called {known}")));
        };
        if chosen.task == OutputTask::Labels && chosen.port.dims.len() == 3 {
            let option =
                format!("the output {}: a sparse head, with a number for each token of the vocabulary", chosen.port);
            return Err(self.unsupported(option, "export it for feature extraction, with the output last_hidden_state"));
        }
        let rank = if chosen.task == OutputTask::Tokens { 3 } else { 2 };
        if chosen.port.dims.len() != rank {
            let option = format!("the output {}", chosen.port);
            return Err(self.unsupported(option, format!("an output of this name has {rank} dimensions")));
        }
        match chosen.port.element {
            Element::F32 | Element::F16 => Ok(chosen),
            _ => Err(self.unsupported(format!("the output {}", chosen.port), "outputs are 32 or 16-bit floats")),
        }
    }

    /// Numbers of a row of the output.
    fn width(&self, chosen: &Chosen<'_>, settings: Option<&Settings>) -> Result<usize, SpecError> {
        let told = match (chosen.port.dims.last().copied().flatten(), settings, chosen.task) {
            (Some(width), _, _) => Some(width),
            (None, Some(settings), OutputTask::Labels) => Some(config::labels(settings)?.len()),
            (None, Some(settings), _) => settings.size("hidden_size", OUTPUTS_MAX)?,
            (None, None, _) => None,
        };
        told.filter(|width| (1..=OUTPUTS_MAX).contains(width)).ok_or_else(|| {
            let option = format!("the output {}, whose width is not told", chosen.port);
            self.unsupported(option, "export it with a fixed last dimension, or put config.json beside it")
        })
    }
}

/// The hub's cache links to files that lie beside all snapshots: `models--ORG--NAME/snapshots/COMMIT` to `blobs`.
fn is_blob(folder: &Path, file: &Path) -> bool {
    let caches = folder.ancestors().take(4).filter(|above| above.ends_with("snapshots"));
    caches.filter_map(Path::parent).any(|root| file.parent() == Some(&root.join("blobs")))
}

fn listed(ports: &[Port]) -> String {
    /// More would bury what matters.
    const SHOWN_MAX: usize = 8;
    if ports.is_empty() {
        return "none".to_owned();
    }
    let mut shown: Vec<String> = ports.iter().take(SHOWN_MAX).map(Port::to_string).collect();
    if ports.len() > SHOWN_MAX {
        shown.push(format!("{} more", ports.len() - SHOWN_MAX));
    }
    shown.join(", ")
}

/// Where positions begin, and the id that stands for nothing.
fn first_position(settings: Option<&Settings>) -> Result<(usize, u32), SpecError> {
    let Some(settings) = settings else { return Ok((0, 0)) };
    let pad_id = settings.value("pad_token_id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
    let counts_from_pad =
        matches!(settings.text("model_type")?, Some("roberta" | "xlm-roberta" | "camembert" | "mpnet"));
    let pad_id = pad_id.unwrap_or(u32::from(counts_from_pad));
    Ok((if counts_from_pad { pad_id as usize + 1 } else { 0 }, pad_id))
}

/// The longest text by the truncation that the tokenizer's file asks for.
fn tokenizer_limit(dir: &Path) -> Result<Option<usize>, SpecError> {
    #[derive(Deserialize)]
    struct Tokenizer {
        truncation: Option<Truncation>,
    }
    #[derive(Deserialize)]
    struct Truncation {
        max_length: usize,
    }
    let file = dir.join("tokenizer.json");
    // That there is none is told when it is opened.
    let Ok(bytes) = bounded_file::read(&file, TOKENIZER_BYTES_MAX) else { return Ok(None) };
    let read = serde_json::from_slice(&bytes).map_err(|source| SpecError::Malformed { file, source });
    let Tokenizer { truncation } = read?;
    Ok(truncation.map(|truncation| truncation.max_length).filter(|&length| length > 0))
}

#[cfg(test)]
mod tests;
