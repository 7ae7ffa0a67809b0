//! Decoders of every architecture on the CPU against the logits of transformers, from both kinds of files.

mod gguf_files;
mod layouts;
mod model;
mod split;
mod tensor;

use model::{Case, Running};

/// Logits are equal within this.
const TOLERANCE: f32 = 1e-4;

fn check(case: &Case, files: &super::DecoderFiles) {
    let mut running = Running::new(files, case.ids.len());
    let found = running.logits_at(&case.ids, &case.rows);
    for ((row, wanted), found) in case.rows.iter().zip(&case.logits).zip(found) {
        assert_eq!(wanted.len(), found.len());
        for (token, (wanted, found)) in wanted.iter().zip(found).enumerate() {
            let off = (wanted - found).abs();
            assert!(off < TOLERANCE, "{}, row {row}, token {token}: {found} for {wanted}", case.name);
        }
    }
}

#[test]
fn every_architecture_has_the_logits_of_transformers() {
    for case in model::cases() {
        let folder = case.folder();
        check(&case, &super::DecoderFiles::open(folder.path()).unwrap());
    }
}

#[test]
fn every_architecture_is_near_transformers_on_every_path() {
    for case in model::cases() {
        let folder = case.folder();
        let files = super::DecoderFiles::open(folder.path()).unwrap();
        for path in magray_device::cpu::available_paths() {
            let found = Running::on(path, &files, case.ids.len()).logits_at(&case.ids, &case.rows);
            for ((row, wanted), found) in case.rows.iter().zip(&case.logits).zip(&found) {
                let cosine = model::cosine(wanted, found);
                assert!(cosine >= 0.999, "{} on {path}, row {row}: {cosine}", case.name);
            }
        }
    }
}

#[test]
fn every_architecture_has_the_same_logits_from_a_gguf_file() {
    let mut seen = Vec::new();
    for case in model::cases() {
        let Some(file) = gguf_files::convert(&case) else { continue };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        std::fs::write(&path, file.bytes()).unwrap();
        check(&case, &super::DecoderFiles::open(&path).unwrap());
        seen.push(case.name);
    }
    assert_eq!(seen.len(), 13, "{seen:?}");
}

#[test]
fn a_context_beyond_the_models_is_refused() {
    let case = &model::cases()[0];
    let folder = case.folder();
    let files = super::DecoderFiles::open(folder.path()).unwrap();
    let cpu = magray_device::cpu::Cpu::new(None, Some(1)).unwrap();
    for context in [0, 129] {
        let Err(error) = super::Decoder::load(&cpu, &files, context) else { panic!("{context} was accepted") };
        assert!(error.to_string().contains("made for 128"), "{error}");
    }
}
