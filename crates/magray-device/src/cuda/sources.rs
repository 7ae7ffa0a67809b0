//! The kernels' sources, built into the program.
//! Reads no file when it runs.

macro_rules! built_in {
    ($($file:literal),* $(,)?) => {
        &[$(($file, include_str!(concat!("../../kernels/", $file)))),*]
    };
}

/// What kernels include, by name.
pub(super) const HEADERS: &[(&str, &str)] = built_in![
    "activation.cuh",
    "hopper.cuh",
    "hopper_tile.cuh",
    "instructions.cuh",
    "mma.cuh",
    "numbers.cuh",
    "order.cuh",
    "rows.cuh"
];

/// The kernels, by file name.
const KERNELS: &[(&str, &str)] = built_in![
    "add_norm.cu",
    "attention.cu",
    "attention_plain.cu",
    "embed.cu",
    "finish.cu",
    "gemm_mma.cu",
    "gemm_norm_wgmma.cu",
    "gemm_wgmma.cu",
    "pool.cu",
    "quantise.cu"
];

/// The source of a kernel file.
pub(super) fn kernel(file: &str) -> Option<&'static str> {
    KERNELS.iter().find(|(name, _)| *name == file).map(|(_, source)| *source)
}

#[cfg(test)]
mod tests {
    use super::super::variants::all_specs;
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_file_of_the_folder_is_built_in_and_has_a_form() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let there: BTreeSet<String> = names.filter(|name| name.ends_with(".cu") || name.ends_with(".cuh")).collect();
        let built_in: BTreeSet<String> = HEADERS.iter().chain(KERNELS).map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(there, built_in);
        let formed: BTreeSet<&str> = all_specs().iter().map(|spec| spec.file).collect();
        assert_eq!(formed, KERNELS.iter().map(|(name, _)| *name).collect());
    }

    #[test]
    fn entries_are_in_their_files() {
        for spec in all_specs() {
            let source = kernel(spec.file).unwrap();
            assert!(source.contains(&format!("{}(", spec.entry)), "{spec}: no {}", spec.entry);
        }
    }
}
