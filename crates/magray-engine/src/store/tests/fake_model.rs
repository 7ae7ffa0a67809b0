//! A model of a few bytes that passes every check.
//! Never meant to be loaded.

use std::fs;
use std::path::Path;

/// The files of the model by name.
pub(in super::super) fn files() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("config.json", br#"{"model_type":"bert"}"#.to_vec()),
        ("tokenizer.json", br#"{"version":"1.0"}"#.to_vec()),
        ("modules.json", b"[]".to_vec()),
        ("1_Pooling/config.json", b"{}".to_vec()),
        ("model.safetensors", weights()),
    ]
}

/// A safetensors file with two tensors.
pub(in super::super) fn weights() -> Vec<u8> {
    let header = concat!(
        r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"#,
        r#""b":{"dtype":"F16","shape":[2,2],"data_offsets":[8,16]}}"#
    );
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[7; 16]].concat()
}

/// The size of all files.
pub(in super::super) fn bytes() -> u64 {
    files().iter().map(|(_, content)| content.len() as u64).sum()
}

/// Writes the model into a folder.
pub(in super::super) fn write(dir: &Path) {
    for (name, content) in files() {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}
