//! A model's weights: safetensors files or one GGUF file, mapped, their headers checked.
//! Reads no number before it is asked for, and hands out no tensor of another shape than the caller expects.

mod error;
pub mod gguf;
mod header;
mod tensor;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use magray_core::BlockFormat;
use magray_device::{BlockMatrix, MappedFile, NumberFormat};
use safetensors::Dtype;
use serde::Deserialize;

pub use error::WeightsError;
pub use tensor::Tensor;

use crate::bounded_file::{self, SETTINGS_BYTES_MAX};
use header::Entry;

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";

/// Files of a model's weights; each is mapped.
const MAX_SHARDS: usize = 1024;

/// The end of a name that every encoder has exactly once; what stands before it is the names' prefix.
const ANCHOR: &str = "embeddings.word_embeddings.weight";

/// The tensors of one folder.
#[derive(Debug)]
pub struct Weights {
    dir: PathBuf,
    files: Vec<File>,
    /// By the name in the file: which file, and where.
    tensors: BTreeMap<String, (usize, Entry)>,
    prefix: String,
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    map: Arc<MappedFile>,
}

/// `model.safetensors.index.json`.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Weights {
    /// Opens `model.safetensors` in this folder, or the files that `model.safetensors.index.json` names.
    pub fn open(dir: &Path) -> Result<Self, WeightsError> {
        let mut weights =
            Self { dir: dir.to_owned(), files: Vec::new(), tensors: BTreeMap::new(), prefix: String::new() };
        let single = dir.join(SINGLE_FILE);
        match MappedFile::open(&single) {
            Ok(map) => weights.add(single, map)?,
            Err(source) if source.kind() == io::ErrorKind::NotFound => weights.add_shards()?,
            Err(source) => return Err(WeightsError::Unreadable { file: single, source }),
        }
        if let Some(name) = weights
            .tensors
            .keys()
            .find(|name| name.strip_suffix(ANCHOR).is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.')))
        {
            weights.prefix = name[..name.len() - ANCHOR.len()].to_owned();
        }
        Ok(weights)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.map.len() as u64).sum()
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.dir
    }

    /// The files.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// How most of the numbers are stored, such as `F32`.
    pub fn dtype(&self) -> String {
        let largest = self.tensors.values().max_by_key(|(_, entry)| entry.range.len());
        largest.map(|(_, entry)| format!("{:?}", entry.dtype)).unwrap_or_default()
    }

    /// What stands before the names of the encoder's tensors in the files: `bert.`, `0.auto_model.`, or nothing.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether there is a tensor of this name, given without the prefix.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// The tensor of this name, given without the prefix, which must have this shape.
    ///
    /// A name is looked for behind the whole prefix, then behind ever shorter parts of it, and last as it stands:
    /// the head of a classifier stands outside of its encoder. `LayerNorm.gamma` and `.beta`, as old files write
    /// them, are found as `.weight` and `.bias`.
    pub fn tensor(&self, name: &str, expected: &[usize]) -> Result<Tensor<'_>, WeightsError> {
        let Some((in_file, index, entry)) = self.find(name) else {
            return Err(WeightsError::Missing {
                dir: self.dir.clone(),
                name: name.to_owned(),
                nearest: nearest(self.tensors.keys(), &format!("{}{name}", self.prefix)),
            });
        };
        let file = &self.files[index];
        if entry.shape != expected {
            return Err(WeightsError::WrongShape {
                name: in_file.to_owned(),
                file: file.path.clone(),
                expected: expected.to_vec(),
                found: entry.shape.clone(),
            });
        }
        let Some(format) = format_of(entry.dtype) else {
            return Err(WeightsError::WrongType {
                name: in_file.to_owned(),
                file: file.path.clone(),
                found: entry.dtype.to_string(),
            });
        };
        Ok(Tensor {
            format,
            shape: &entry.shape,
            bytes: &file.map[entry.range.clone()],
            map: &file.map,
            start: entry.range.start,
        })
    }

    /// Where the tensor of this name lies, for a reader that outlives these weights.
    pub fn place(&self, name: &str, expected: &[usize]) -> Result<(Arc<MappedFile>, Range<usize>), WeightsError> {
        let tensor = self.tensor(name, expected)?;
        let range = tensor.start..tensor.start + tensor.bytes.len();
        Ok((Arc::clone(tensor.map), range))
    }

    /// The matrix of this name, which must have this shape; it stays in its file.
    pub fn matrix(&self, name: &str, rows: usize, columns: usize) -> Result<BlockMatrix, WeightsError> {
        let tensor = self.tensor(name, &[rows, columns])?;
        let range = tensor.start..tensor.start + tensor.bytes.len();
        let format = match tensor.format {
            NumberFormat::F32 => BlockFormat::F32,
            NumberFormat::F16 => BlockFormat::F16,
            NumberFormat::Bf16 => BlockFormat::Bf16,
        };
        Ok(BlockMatrix::mapped(Arc::clone(tensor.map), range, format, columns))
    }

    /// Gives the memory of all files back to the system; what is touched again is read from the disk again.
    pub fn release_pages(&self) {
        for file in &self.files {
            file.map.release_pages(0..file.map.len());
        }
    }

    fn add(&mut self, path: PathBuf, map: MappedFile) -> Result<(), WeightsError> {
        let file = self.files.len();
        for (name, entry) in header::read(&path, &map)? {
            if let Some((other, _)) = self.tensors.get(&name) {
                let reason = format!("tensor '{name}' is in '{}' too", self.files[*other].path.display());
                return Err(WeightsError::Corrupt { file: path, reason });
            }
            self.tensors.insert(name, (file, entry));
        }
        self.files.push(File { path, map: Arc::new(map) });
        Ok(())
    }

    fn add_shards(&mut self) -> Result<(), WeightsError> {
        let index_file = self.dir.join(INDEX_FILE);
        let bytes = match bounded_file::read(&index_file, SETTINGS_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                let hint = if self.dir.join("pytorch_model.bin").exists() {
                    "; its pytorch_model.bin is not read: save the model again as safetensors"
                } else {
                    ""
                };
                return Err(WeightsError::NoWeights { dir: self.dir.clone(), hint });
            }
            Err(source) => return Err(WeightsError::Unreadable { file: index_file, source }),
        };
        let corrupt = |reason: String| WeightsError::Corrupt { file: index_file.clone(), reason };
        let index: Index =
            serde_json::from_slice(&bytes).map_err(|e| corrupt(format!("it is no valid index ({e})")))?;
        let shards: BTreeSet<&String> = index.weight_map.values().collect();
        if shards.len() > MAX_SHARDS {
            return Err(corrupt(format!("it names {} files, and {MAX_SHARDS} is the most", shards.len())));
        }
        for shard in shards {
            if !Path::new(shard).components().all(|part| matches!(part, Component::Normal(_))) {
                return Err(corrupt(format!("it names '{shard}', which is not a file beside it")));
            }
            let path = self.dir.join(shard);
            let map = MappedFile::open(&path).map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => {
                    WeightsError::ShardMissing { index: index_file.clone(), shard: shard.clone() }
                }
                _ => WeightsError::Unreadable { file: path.clone(), source },
            })?;
            self.add(path, map)?;
        }
        for (tensor, shard) in index.weight_map {
            let holder = self.tensors.get(&tensor).map(|(file, _)| &self.files[*file].path);
            if holder != Some(&self.dir.join(&shard)) {
                return Err(WeightsError::NotInShard { index: index_file, shard, tensor });
            }
        }
        Ok(())
    }

    /// The name in the file, the file and the place of a tensor.
    fn find(&self, name: &str) -> Option<(&str, usize, &Entry)> {
        let old_name = match name.rsplit_once("LayerNorm.") {
            Some((before, "weight")) => Some(format!("{before}LayerNorm.gamma")),
            Some((before, "bias")) => Some(format!("{before}LayerNorm.beta")),
            _ => None,
        };
        let mut prefix = self.prefix.as_str();
        loop {
            for name in [Some(name), old_name.as_deref()].into_iter().flatten() {
                if let Some((in_file, (file, entry))) = self.tensors.get_key_value(&format!("{prefix}{name}")) {
                    return Some((in_file, *file, entry));
                }
            }
            if prefix.is_empty() {
                return None;
            }
            prefix = prefix[..prefix.len() - 1].rsplit_once('.').map_or("", |(outer, _)| &prefix[..=outer.len()]);
        }
    }
}

/// The three names most like the wanted one, for a message.
fn nearest<'a>(names: impl Iterator<Item = &'a String>, wanted: &str) -> Vec<String> {
    // A name far longer than the wanted one is not near it, and a hostile file may hold one of megabytes.
    let short = names.filter(|known| known.len() <= 2 * wanted.len());
    let mut names: Vec<_> = short.map(|known| (distance(known, wanted), known)).collect();
    names.sort();
    names.into_iter().take(3).map(|(_, known)| known.clone()).collect()
}

/// How many letters have to be added, removed or changed to turn one name into the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// How numbers of a file's type are read, if they are.
fn format_of(dtype: Dtype) -> Option<NumberFormat> {
    match dtype {
        Dtype::F32 => Some(NumberFormat::F32),
        Dtype::F16 => Some(NumberFormat::F16),
        Dtype::BF16 => Some(NumberFormat::Bf16),
        _ => None,
    }
}
