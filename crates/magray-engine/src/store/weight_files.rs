//! A model's weights as files: when they came, how large they are, how their numbers are stored, their hash.
//! Reads headers, and all bytes only where a hash is asked for that no record has.

use super::disk::{DiskError, hash_file};
use super::manifest::Manifest;
use crate::spec::ModelSpec;
use crate::weights::{Weights, WeightsError};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// The files of a model's weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightFiles {
    folder: PathBuf,
    files: Vec<PathBuf>,
    /// Bytes of all of them.
    pub bytes: u64,
    /// When the store pulled them; of other files when they were last changed. Seconds since 1970.
    pub created_unix_s: u64,
    /// How numbers are stored, such as `F32`.
    pub dtype: String,
    /// What the store recorded when it pulled them.
    record: Option<Manifest>,
}

impl WeightFiles {
    /// The weights of the model in this folder; of one in ONNX form its graph.
    pub fn of(folder: &Path, spec: &ModelSpec) -> Result<Self, WeightsError> {
        let (files, dtype) = match &spec.onnx {
            Some(onnx) => (vec![onnx.file.clone()], onnx.dtype().to_owned()),
            None => {
                let weights = Weights::open(&spec.encoder_folder)?;
                (weights.files().map(Path::to_owned).collect::<Vec<_>>(), weights.dtype())
            }
        };
        let record = Manifest::read(folder).ok().and_then(Result::ok);
        let metadata = || files.iter().filter_map(|file| fs::metadata(file).ok());
        let changed = |data: fs::Metadata| Some(data.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_secs());
        let last = metadata().filter_map(changed).max().unwrap_or(0);
        Ok(Self {
            folder: folder.to_owned(),
            bytes: spec.onnx.as_ref().map_or_else(|| metadata().map(|data| data.len()).sum(), |onnx| onnx.bytes),
            created_unix_s: record.as_ref().map_or(last, |record| record.pulled_at_unix_s),
            dtype,
            files,
            record,
        })
    }

    /// The hash of the weights, in small letters: of one file its own, of several that of a list of theirs as `sha256sum`
    /// writes it. Reads every byte, unless the store has recorded the hashes.
    pub fn sha256(&self) -> Result<String, DiskError> {
        let name = |file: &Path| file.strip_prefix(&self.folder).unwrap_or(file).to_string_lossy().into_owned();
        let hash = |file: &PathBuf| {
            let recorded = self.record.iter().flat_map(|record| &record.files).find(|known| known.name == name(file));
            recorded.map_or_else(|| hash_file(file), |known| Ok(known.sha256.clone()))
        };
        if let [only] = &self.files[..] {
            return hash(only);
        }
        let mut list = String::new();
        for file in &self.files {
            // A text takes all that is written to it.
            let _ = writeln!(list, "{}  {}", hash(file)?, name(file));
        }
        Ok(Sha256::digest(list).iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weights_of_a_fixture_are_told_by_their_files() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/bert");
        let spec = ModelSpec::read(&folder).unwrap();
        let files = WeightFiles::of(&folder, &spec).unwrap();
        let own = fs::metadata(folder.join("model.safetensors")).unwrap();
        assert_eq!((files.bytes, files.dtype.as_str()), (own.len(), "F32"));
        assert!(files.created_unix_s > 0);
        assert_eq!(files.sha256().unwrap(), hash_file(&folder.join("model.safetensors")).unwrap());
        let twice = WeightFiles { files: vec![files.files[0].clone(); 2], ..files.clone() };
        assert_ne!(twice.sha256().unwrap(), files.sha256().unwrap());
    }
}
