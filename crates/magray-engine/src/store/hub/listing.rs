//! Chooses the files of a model from the list of a repository.
//! Never takes a file that the engine would not read, never a name that is not plain.

use super::super::check::{CONFIG, TOKENIZER, WEIGHTS, WEIGHTS_INDEX};
use super::super::model_ref::is_plain_segment;
use super::HubError;
use crate::bounded_file::{SETTINGS_BYTES_MAX, TOKENIZER_BYTES_MAX};
use serde::Deserialize;

/// Files of a model: the largest have a few hundred shards.
const FILES_MAX: usize = 2048;
/// Weights whose size the hub does not list: more than a shard ever has.
const UNLISTED_WEIGHTS_BYTES_MAX: u64 = 8 << 30;

/// Where the graph of a repository is that has no other weights.
const GRAPHS: [&str; 2] = ["onnx/model.onnx", "model.onnx"];

/// What the hub says about a revision.
#[derive(Deserialize)]
pub(super) struct Listing {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

/// A file to fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemoteFile {
    pub(super) name: String,
    pub(super) size: Option<u64>,
    /// The hub knows the hash of large files only.
    pub(super) sha256: Option<String>,
}

impl Listing {
    pub(super) fn parse(repo: &str, text: &str) -> Result<Self, HubError> {
        let bad = |reason: String| HubError::BadListing { repo: repo.to_owned(), reason };
        let listing: Self = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
        // The commit becomes part of an address.
        if !is_plain_segment(&listing.sha) {
            return Err(bad("it names no commit".to_owned()));
        }
        Ok(listing)
    }

    /// The commit that the revision stands for.
    pub(super) fn commit(&self) -> &str {
        &self.sha
    }

    /// The files of the model, small ones first so that a hopeless pull ends early.
    pub(super) fn choose_files(&self, repo: &str) -> Result<Vec<RemoteFile>, HubError> {
        let has = |name: &str| self.siblings.iter().any(|sibling| sibling.rfilename == name);
        for file in [CONFIG, TOKENIZER] {
            if !has(file) {
                return Err(HubError::MissingFile { repo: repo.to_owned(), file: file.to_owned() });
            }
        }
        let sharded = !has(WEIGHTS);
        let graph = GRAPHS.into_iter().find(|graph| has(graph));
        let is_weights: Box<dyn Fn(&str) -> bool> = match graph {
            _ if !sharded || has(WEIGHTS_INDEX) => Box::new(|name| is_weights(name, sharded)),
            // ONNX Runtime computes it.
            Some(graph) => Box::new(move |name| is_graph(name, graph)),
            None => return Err(HubError::NoSafetensors { repo: repo.to_owned() }),
        };
        let wanted = |name: &str| is_setting(name) || is_module_file(name) || is_weights(name);
        let mut files: Vec<RemoteFile> =
            self.siblings.iter().filter(|sibling| wanted(&sibling.rfilename)).map(RemoteFile::from).collect();
        files.sort_by(|a, b| (is_weights(&a.name), &a.name).cmp(&(is_weights(&b.name), &b.name)));
        files.dedup_by(|a, b| a.name == b.name);
        if files.len() > FILES_MAX {
            let reason = format!("it has {} files of a model, and {FILES_MAX} is the most", files.len());
            return Err(HubError::BadListing { repo: repo.to_owned(), reason });
        }
        match files.iter().find(|file| file.size.is_some_and(|size| size > file.bytes_max())) {
            Some(file) => {
                let limit = file.bytes_max();
                Err(HubError::TooLarge { repo: repo.to_owned(), file: file.name.clone(), limit })
            }
            None => Ok(files),
        }
    }
}

impl RemoteFile {
    /// The most that is fetched: what is listed for weights, else what is read of such a file at all.
    pub(super) fn bytes_max(&self) -> u64 {
        match self.name.as_str() {
            TOKENIZER => TOKENIZER_BYTES_MAX,
            name if name.ends_with(".json") || name.ends_with(".jinja") => SETTINGS_BYTES_MAX,
            _ => self.size.unwrap_or(UNLISTED_WEIGHTS_BYTES_MAX),
        }
    }
}

impl From<&Sibling> for RemoteFile {
    fn from(sibling: &Sibling) -> Self {
        let lfs = sibling.lfs.as_ref();
        Self {
            name: sibling.rfilename.clone(),
            size: sibling.size.or_else(|| lfs.and_then(|lfs| lfs.size)),
            sha256: lfs.and_then(|lfs| lfs.sha256.as_ref()).map(|sha256| sha256.to_ascii_lowercase()),
        }
    }
}

/// The small files at the top that say how the model is used.
fn is_setting(name: &str) -> bool {
    const NAMES: [&str; 9] = [
        CONFIG,
        TOKENIZER,
        "tokenizer_config.json",
        "special_tokens_map.json",
        "modules.json",
        "config_sentence_transformers.json",
        "generation_config.json",
        "chat_template.json",
        "chat_template.jinja",
    ];
    // Older repositories have sentence_roberta_config.json and so on in place of sentence_bert_config.json.
    let sentence = name.strip_prefix("sentence_").and_then(|rest| rest.strip_suffix("_config.json"));
    NAMES.contains(&name) || sentence.is_some_and(is_plain_segment)
}

/// The files of the modules behind the encoder, such as `1_Pooling/config.json` and `2_Dense/model.safetensors`.
fn is_module_file(name: &str) -> bool {
    let Some((module, file)) = name.split_once('/') else { return false };
    let Some((number, kind)) = module.split_once('_') else { return false };
    !number.is_empty()
        && number.chars().all(|c| c.is_ascii_digit())
        && is_plain_segment(kind)
        && [CONFIG, WEIGHTS].contains(&file)
}

/// A graph, or the weights that exporters put beside it.
fn is_graph(name: &str, graph: &str) -> bool {
    name.strip_prefix(graph).is_some_and(|rest| ["", "_data", ".data"].contains(&rest))
}

fn is_weights(name: &str, sharded: bool) -> bool {
    if !sharded {
        return name == WEIGHTS;
    }
    let shard = name.strip_prefix("model-").and_then(|rest| rest.strip_suffix(".safetensors"));
    name == WEIGHTS_INDEX || shard.is_some_and(|shard| shard.contains("-of-") && is_plain_segment(shard))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(names: &[&str]) -> Result<Vec<String>, HubError> {
        let siblings: Vec<String> = names.iter().map(|name| format!(r#"{{"rfilename":"{name}","size":1}}"#)).collect();
        let text = format!(r#"{{"sha":"c0ffee","siblings":[{}]}}"#, siblings.join(","));
        let files = Listing::parse("a/b", &text)?.choose_files("a/b")?;
        Ok(files.into_iter().map(|file| file.name).collect())
    }

    #[test]
    fn only_files_that_the_engine_reads_are_taken_and_weights_come_last() {
        let names = [
            "model.safetensors",
            "pytorch_model.bin",
            "onnx/model.onnx",
            "README.md",
            "tokenizer.json",
            "config.json",
            "1_Pooling/config.json",
            "2_Dense/model.safetensors",
            "2_Dense/config.json",
            "2_Dense/pytorch_model.bin",
            "modules.json",
            "sentence_bert_config.json",
            "sentence_xlm-roberta_config.json",
            "vocab.txt",
            "chat_template.jinja",
            "generation_config.json",
            "model-00001-of-00002.safetensors",
            "other/config.json",
            "../config.json",
            "1_/../config.json",
        ];
        assert_eq!(
            choose(&names).unwrap(),
            [
                "1_Pooling/config.json",
                "2_Dense/config.json",
                "2_Dense/model.safetensors",
                "chat_template.jinja",
                "config.json",
                "generation_config.json",
                "modules.json",
                "sentence_bert_config.json",
                "sentence_xlm-roberta_config.json",
                "tokenizer.json",
                "model.safetensors",
            ]
        );
    }

    #[test]
    fn a_graph_is_taken_where_there_are_no_other_weights() {
        let names =
            ["config.json", "tokenizer.json", "onnx/model.onnx", "onnx/model.onnx_data", "onnx/model_fp16.onnx"];
        assert_eq!(
            choose(&names).unwrap(),
            ["config.json", "tokenizer.json", "onnx/model.onnx", "onnx/model.onnx_data"]
        );
        assert_eq!(choose(&["config.json", "tokenizer.json", "model.onnx"]).unwrap().last().unwrap(), "model.onnx");
    }

    #[test]
    fn shards_are_taken_with_their_index() {
        let (a, b) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
        let chosen = choose(&["config.json", "tokenizer.json", b, a, WEIGHTS_INDEX, "model-x.safetensors"]).unwrap();
        assert_eq!(chosen, ["config.json", "tokenizer.json", a, b, WEIGHTS_INDEX]);
    }

    #[test]
    fn repositories_that_cannot_be_loaded_are_refused_before_the_download() {
        let refused = |names: &[&str]| choose(names).unwrap_err();
        assert!(matches!(refused(&["tokenizer.json"]), HubError::MissingFile { file, .. } if file == "config.json"));
        assert!(matches!(refused(&["config.json"]), HubError::MissingFile { file, .. } if file == "tokenizer.json"));
        let bin_only = refused(&["config.json", "tokenizer.json", "pytorch_model.bin"]);
        assert!(matches!(bin_only, HubError::NoSafetensors { .. }));
    }

    #[test]
    fn nonsense_is_no_listing() {
        for text in ["", "<html>", "[]", r#"{"sha":"../x","siblings":[]}"#, r#"{"siblings":[]}"#] {
            assert!(matches!(Listing::parse("a/b", text), Err(HubError::BadListing { .. })), "{text}");
        }
    }
}
