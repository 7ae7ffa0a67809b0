//! Loads what ONNX Runtime's CUDA provider needs, before the provider is: NVIDIA's Python packages lie where no loader looks.
//! Reports nothing: what is missing is told by the provider when it does not load.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// How the libraries are called, each after those that it needs.
const NAMES: [&str; 8] = [
    "libcudart.so.",
    "libnvJitLink.so.",
    "libnvrtc.so.",
    "libcublasLt.so.",
    "libcublas.so.",
    "libcurand.so.",
    "libcufft.so.",
    "libcudnn.so.",
];

/// Loads the libraries of these folders into this process. The provider then finds them by their names.
pub(super) fn load(folders: &[PathBuf]) {
    for library in libraries(folders) {
        let _ = ort::util::preload_dylib(library);
    }
}

/// The libraries in the order to load them; of one name the first folder has it.
fn libraries(folders: &[PathBuf]) -> Vec<PathBuf> {
    let files: Vec<(String, PathBuf)> = folders.iter().flat_map(|folder| files_of(folder)).collect();
    let mut taken = BTreeSet::new();
    let mut named = |name: &str| {
        let of_name = files.iter().filter(|(file, _)| file.starts_with(name) && taken.insert(file.clone()));
        of_name.map(|(_, path)| path.clone()).collect::<Vec<_>>()
    };
    NAMES.iter().flat_map(|name| named(name)).collect()
}

/// The libraries by their short names (`libcudart.so.13`), which is what others need them by.
fn files_of(folder: &Path) -> Vec<(String, PathBuf)> {
    let has_short_name = |name: &str| {
        let version = name.split_once(".so.").map(|(_, version)| version);
        version.is_some_and(|version| version.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())));
    named.filter(|(name, _)| has_short_name(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn libraries_come_after_those_they_need_and_once() {
        let dir = tempfile::tempdir().unwrap();
        let folders = ["cudnn", "cu13", "toolkit"].map(|name| dir.path().join(name));
        let [cudnn, wheel, toolkit] = &folders;
        let files = [
            (cudnn, vec!["libcudnn.so.9", "libcudnn_ops.so.9", "README"]),
            (wheel, vec!["libcublas.so.13", "libcublasLt.so.13", "libcudart.so.13"]),
            (toolkit, vec!["libcudart.so.13", "libcudart.so.13.1.2", "libcudart.so", "libcufft.so.12"]),
        ];
        for (folder, names) in files {
            fs::create_dir(folder).unwrap();
            names.iter().for_each(|name| fs::write(folder.join(name), b"").unwrap());
        }
        let expected = [
            wheel.join("libcudart.so.13"),
            wheel.join("libcublasLt.so.13"),
            wheel.join("libcublas.so.13"),
            toolkit.join("libcufft.so.12"),
            cudnn.join("libcudnn.so.9"),
        ];
        assert_eq!(libraries(&folders), expected);
        assert!(libraries(&[dir.path().join("missing")]).is_empty());
        // Files that are no libraries are passed over.
        load(&folders);
    }
}
