//! The kernels' sources, built into the program.
//! Reads no file when it runs.

macro_rules! built_in {
    ($($file:literal),* $(,)?) => {
        &[$(($file, include_str!(concat!("../../kernels/", $file)))),*]
    };
}

const HEADERS: &[(&str, &str)] = built_in![
    "activation.cuh",
    "decoder.cuh",
    "decoder_attend.cuh",
    "decoder_few.cuh",
    "decoder_nibbles.cuh",
    "decoder_pages.cuh",
    "decoder_rows.cuh",
    "decoder_tile.cuh",
    "gemm_tile.cuh",
    "hopper.cuh",
    "hopper_tile.cuh",
    "instructions.cuh",
    "mma.cuh",
    "numbers.cuh",
    "order.cuh",
    "rows.cuh",
    "scan.cuh",
    "scan_rows.cuh",
    "shared_memory.cuh",
    "signs.cuh"
];

const KERNELS: &[(&str, &str)] = built_in![
    "add_norm.cu",
    "attention.cu",
    "attention_plain.cu",
    "decoder_add.cu",
    "decoder_append.cu",
    "decoder_attend_one.cu",
    "decoder_attend_plain.cu",
    "decoder_attend_prompt.cu",
    "decoder_choose.cu",
    "decoder_draw.cu",
    "decoder_embed.cu",
    "decoder_keep.cu",
    "decoder_mask.cu",
    "decoder_nibbles.cu",
    "decoder_plain.cu",
    "decoder_stream.cu",
    "decoder_sum.cu",
    "decoder_tile.cu",
    "decoder_tile_nibbles.cu",
    "decoder_unpack.cu",
    "decoder_wide.cu",
    "embed.cu",
    "fault.cu",
    "finish.cu",
    "gemm_mma.cu",
    "gemm_norm_wgmma.cu",
    "gemm_wgmma.cu",
    "pool.cu",
    "quantise.cu",
    "scan_few.cu",
    "scan_many.cu",
    "scan_select.cu",
    "scan_signs.cu",
    "scan_sketch.cu"
];

pub(super) fn kernel(file: &str) -> Option<&'static str> {
    KERNELS.iter().find(|(name, _)| *name == file).map(|(_, source)| *source)
}

/// The headers that a source includes, by themselves and by others, each once. A name that is not built in is left to the
/// compiler, which says so.
pub(super) fn headers_of(source: &str) -> Vec<(&'static str, &'static str)> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    let mut unread = vec![source];
    while let Some(text) = unread.pop() {
        let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix("#include"));
        for name in lines.filter_map(|rest| rest.split('"').nth(1)) {
            let header = HEADERS.iter().find(|(known, _)| *known == name).copied();
            if let Some(header) = header.filter(|header| !found.contains(header)) {
                found.push(header);
                unread.push(header.1);
            }
        }
    }
    // The order in which they were met says nothing.
    found.sort_unstable();
    found
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
    fn headers_are_found_through_headers_and_once() {
        let names = |source| headers_of(source).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names("#include \"rows.cuh\"\n"), ["numbers.cuh", "rows.cuh"]);
        let twice = "#include \"rows.cuh\"\n  #include \"numbers.cuh\" // again\n#include \"none.cuh\"\n";
        assert_eq!(names(twice), ["numbers.cuh", "rows.cuh"]);
        assert!(names("int x;\n").is_empty());
    }

    #[test]
    fn entries_are_in_their_files() {
        for spec in all_specs() {
            let source = kernel(spec.file).unwrap();
            assert!(source.contains(&format!("{}(", spec.entry)), "{spec}: no {}", spec.entry);
        }
    }
}
