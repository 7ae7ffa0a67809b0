//! Opens the fixture models, and broken copies of them that must each end in the right error.

use std::{fs, path::Path};

use half::{bf16, f16};
use proptest::prelude::*;
use safetensors::tensor::{Dtype as FileDtype, TensorView, serialize};
use tempfile::TempDir;

use super::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A folder with the files of a fixture, to be broken.
fn copy_of(name: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
        }
    }
    dir
}

/// A folder with one file of these tensors.
fn folder_of(tensors: &[(&str, FileDtype, &[usize], &[u8])]) -> TempDir {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (name.to_string(), TensorView::new(*dtype, shape.to_vec(), bytes).unwrap()));
    write_folder(&serialize(views, None).unwrap())
}

/// A folder with a file of this header and this many bytes of data.
fn folder_with_header(header: &str, data: usize) -> TempDir {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 7);
    write_folder(&bytes)
}

fn write_folder(bytes: &[u8]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(SINGLE_FILE), bytes).unwrap();
    dir
}

fn refused(dir: &TempDir) -> WeightsError {
    Weights::open(dir.path()).unwrap_err()
}

/// Opening fails, and the message holds all these words.
fn check_refused(dir: &TempDir, words: &[&str]) {
    let message = refused(dir).to_string();
    for word in words {
        assert!(message.contains(word), "no '{word}' in: {message}");
    }
}

#[test]
fn every_fixture_opens_and_its_word_table_has_the_configs_shape() {
    for (name, dtype, hidden, prefix) in [
        ("bert", NumberFormat::F32, 48, ""),
        ("roberta", NumberFormat::F16, 32, ""),
        ("xlm-roberta", NumberFormat::Bf16, 40, ""),
        ("distilbert", NumberFormat::F32, 36, ""),
        ("mpnet", NumberFormat::F32, 52, ""),
        ("bert-classify", NumberFormat::F32, 32, "bert."),
        ("roberta-classify", NumberFormat::F32, 24, "roberta."),
        ("xlm-roberta-classify", NumberFormat::F32, 32, "roberta."),
        ("distilbert-classify", NumberFormat::F32, 32, "distilbert."),
        ("mpnet-classify", NumberFormat::F32, 28, "mpnet."),
    ] {
        let spec = crate::spec::ModelSpec::read(&fixture(name)).unwrap();
        let vocab = spec.shape.vocab;
        let weights = Weights::open(&fixture(name)).unwrap();
        assert_eq!(weights.prefix(), prefix, "{name}");
        let words = weights.tensor(ANCHOR, &[vocab, hidden]).unwrap();
        assert_eq!((words.format, words.len()), (dtype, vocab * hidden), "{name}");
        assert!(words.to_f32().iter().any(|value| value.abs() > 0.1), "{name}");
    }
}

#[test]
fn heads_outside_of_the_encoder_are_found() {
    let weights = Weights::open(&fixture("bert-classify")).unwrap();
    assert!(weights.tensor("classifier.weight", &[3, 32]).is_ok());
    assert!(weights.tensor("pooler.dense.weight", &[32, 32]).is_ok());
    assert!(weights.has("classifier.bias") && !weights.has("classifier.dense.weight"));
}

#[test]
fn a_deep_prefix_is_taken_off_step_by_step() {
    let dir = folder_of(&[
        ("0.auto_model.embeddings.word_embeddings.weight", FileDtype::F32, &[1, 2], &[0; 8]),
        ("0.auto_model.embeddings.LayerNorm.gamma", FileDtype::F32, &[2], &[0; 8]),
        ("0.auto_model.embeddings.LayerNorm.beta", FileDtype::F16, &[2], &[0; 4]),
        ("0.other", FileDtype::F32, &[1], &[0; 4]),
        ("classifier.weight", FileDtype::F32, &[1], &[0; 4]),
    ]);
    let weights = Weights::open(dir.path()).unwrap();
    assert_eq!(weights.prefix(), "0.auto_model.");
    assert_eq!(weights.tensor("embeddings.LayerNorm.weight", &[2]).unwrap().format, NumberFormat::F32);
    assert_eq!(weights.tensor("embeddings.LayerNorm.bias", &[2]).unwrap().format, NumberFormat::F16);
    assert!(weights.has("other") && weights.has("classifier.weight") && !weights.has("auto_model.other"));
}

#[test]
fn a_missing_tensor_is_named_with_the_nearest() {
    let weights = Weights::open(&fixture("bert")).unwrap();
    let error = weights.tensor("encoder.layer.7.output.dense.weight", &[1]).unwrap_err();
    let WeightsError::Missing { nearest, .. } = &error else { panic!("{error}") };
    assert!(nearest.contains(&"encoder.layer.0.output.dense.weight".to_owned()), "{nearest:?}");
    assert!(error.to_string().contains("encoder.layer.7.output.dense.weight"), "{error}");
}

#[test]
fn a_wrong_shape_names_tensor_file_and_both_shapes() {
    let weights = Weights::open(&fixture("bert-classify")).unwrap();
    let message = weights.tensor("pooler.dense.weight", &[32, 48]).unwrap_err().to_string();
    for word in ["bert.pooler.dense.weight", SINGLE_FILE, "[32, 32]", "[32, 48]"] {
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn whole_numbers_are_not_read_as_weights() {
    let dir = folder_of(&[("ids", FileDtype::I64, &[1], &[0; 8])]);
    let weights = Weights::open(dir.path()).unwrap();
    assert!(matches!(weights.tensor("ids", &[1]), Err(WeightsError::WrongType { found, .. }) if found == "I64"));
}

#[test]
fn a_folder_without_weights_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    check_refused(&dir, &["no model.safetensors"]);
    fs::write(dir.path().join("pytorch_model.bin"), "x").unwrap();
    check_refused(&dir, &["pytorch_model.bin is not read", "safetensors"]);
}

#[test]
fn a_file_cut_anywhere_is_an_error_and_never_a_panic() {
    let whole = fs::read(fixture("roberta-classify").join(SINGLE_FILE)).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    for length in [0, 1, 7, 8, 9, 100, header - 1, header, header + 1, whole.len() / 2, whole.len() - 1] {
        let error = refused(&write_folder(&whole[..length]));
        match error {
            WeightsError::Truncated { tensor, expected, found, .. } if length >= header => {
                assert!(!tensor.is_empty() && expected > found && found == length as u64);
            }
            WeightsError::Corrupt { .. } if length < header => {}
            other => panic!("cut at {length}: {other}"),
        }
    }
    let mut longer = whole;
    longer.push(0);
    check_refused(&write_folder(&longer), &["1 bytes at its end", "belong to no tensor"]);
}

#[test]
fn broken_headers_are_told_apart() {
    check_refused(&folder_with_header("{\"a\": ", 0), &["not valid", "EOF"]);
    check_refused(&folder_with_header("[]", 0), &["not valid"]);
    check_refused(&folder_with_header("\u{fffd}{}", 0), &["not valid"]);
    check_refused(&folder_with_header(r#"{"a":{"dtype":"F32"}}"#, 0), &["not valid", "shape"]);
    check_refused(&folder_with_header(r#"{"a":{"dtype":"F32","shape":[0],"data_offsets":[0]}}"#, 0), &["not valid"]);
    let two = |a: &str, b: &str| {
        format!(
            r#"{{"__metadata__":{{"format":"pt"}},"a":{{"dtype":"F32","shape":[2],"data_offsets":{a}}},
               "b":{{"dtype":"F32","shape":[2],"data_offsets":{b}}}}}"#
        )
    };
    assert!(Weights::open(folder_with_header(&two("[0,8]", "[8,16]"), 16).path()).is_ok());
    check_refused(&folder_with_header(&two("[0,8]", "[4,12]"), 12), &["invalid offset", "`b`"]);
    check_refused(&folder_with_header(&two("[0,8]", "[12,20]"), 20), &["invalid offset", "`b`"]);
    check_refused(&folder_with_header(&two("[0,8]", "[8,20]"), 20), &["invalid shape, data type, or offset"]);
    check_refused(&folder_with_header(&two("[0,8]", "[16,8]"), 20), &["invalid offset", "`b`"]);
    check_refused(&folder_with_header(&two("[0,8]", "[8,16]"), 12), &["cut off", "'b'"]);
    check_refused(&folder_with_header(&two("[0,8]", "[8,18446744073709551616]"), 12), &["not valid"]);
    let huge = r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#;
    check_refused(&folder_with_header(huge, 0), &["overflow"]);
    let huge = r#"{"a":{"dtype":"U8","shape":[2305843009213693951],"data_offsets":[0,2305843009213693951]}}"#;
    check_refused(&folder_with_header(huge, 0), &["cut off", "'a'"]);
}

#[test]
fn an_absurd_header_length_is_refused_before_it_is_believed() {
    for length in [u64::MAX, 1 << 40, 90_000_000] {
        check_refused(&write_folder(&length.to_le_bytes()), &["header claims"]);
    }
    check_refused(&write_folder(&100u64.to_le_bytes()), &["header claims to have 100 bytes", "8 in all"]);
}

#[test]
fn a_name_that_stands_in_a_header_twice_is_refused() {
    let tensor = |offsets: &str| format!(r#""a":{{"dtype":"F32","shape":[1],"data_offsets":[{offsets}]}}"#);
    let header = format!("{{{},{}}}", tensor("0,4"), tensor("4,8"));
    check_refused(&folder_with_header(&header, 8), &["invalid offset", "`a`"]);
}

#[test]
fn an_index_has_bounds_too() {
    let dir = tempfile::tempdir().unwrap();
    let index = dir.path().join(INDEX_FILE);
    let names: Vec<String> = (0..2000).map(|i| format!(r#""{i}":"model-{i}.safetensors""#)).collect();
    fs::write(&index, format!(r#"{{"weight_map":{{{}}}}}"#, names.join(","))).unwrap();
    check_refused(&dir, &["it names 2000 files"]);
    fs::write(&index, format!(r#"{{"weight_map":{{}}}}{}"#, " ".repeat(17 << 20))).unwrap();
    check_refused(&dir, &["more than 16777216 bytes"]);
}

#[test]
fn shards_are_read_as_one_and_their_faults_named() {
    let dir = copy_of("distilbert");
    assert!(Weights::open(dir.path()).unwrap().has("transformer.layer.1.output_layer_norm.weight"));

    let index = dir.path().join(INDEX_FILE);
    let text = fs::read_to_string(&index).unwrap();
    fs::write(&index, text.replace("embeddings.LayerNorm.bias", "embeddings.LayerNorm.spare")).unwrap();
    check_refused(&dir, &["embeddings.LayerNorm.spare", "model-00001-of-00003.safetensors", "it is not"]);
    fs::write(&index, text.replacen("model-00002", "../model-00002", 1)).unwrap();
    check_refused(&dir, &["'../model-00002-of-00003.safetensors'", "not a file beside it"]);
    fs::write(&index, "{}").unwrap();
    check_refused(&dir, &["index.json", "weight_map"]);
    fs::write(&index, text).unwrap();

    let shard = dir.path().join("model-00002-of-00003.safetensors");
    fs::copy(dir.path().join("model-00001-of-00003.safetensors"), &shard).unwrap();
    check_refused(&dir, &["model-00002", "model-00001", "too"]);
    fs::remove_file(&shard).unwrap();
    check_refused(&dir, &["needs 'model-00002-of-00003.safetensors'", "does not exist"]);
}

#[test]
fn all_types_read_as_the_numbers_they_were() {
    let values: Vec<f32> = (0..1500).map(|i| (i as f32 - 700.0) * 0.37).collect();
    let halves: Vec<u8> = values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
    let brains: Vec<u8> = values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
    let floats: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let dir = folder_of(&[
        ("half", FileDtype::F16, &[1500], &halves),
        ("brain", FileDtype::BF16, &[1500], &brains),
        ("float", FileDtype::F32, &[1500], &floats),
    ]);
    let weights = Weights::open(dir.path()).unwrap();
    let read = |name| weights.tensor(name, &[1500]).unwrap().to_f32();
    assert_eq!(read("half"), values.iter().map(|v| f16::from_f32(*v).to_f32()).collect::<Vec<_>>());
    assert_eq!(read("brain"), values.iter().map(|v| bf16::from_f32(*v).to_f32()).collect::<Vec<_>>());
    assert_eq!(read("float"), values);

    let tensor = weights.tensor("half", &[1500]).unwrap();
    let mut part = [0.0; 601];
    tensor.read_f32_into(511..1112, &mut part);
    assert_eq!(part[..], tensor.to_f32()[511..1112]);
    tensor.release_pages();
    weights.release_pages();
    assert_eq!(part[..], tensor.to_f32()[511..1112]);
}

#[test]
fn bytes_that_are_not_aligned_read_the_same() {
    let floats: Vec<u8> = [1.5f32, -2.25, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    for shift in 0..4 {
        let header = format!(
            r#"{{"a":{{"dtype":"U8","shape":[{shift}],"data_offsets":[0,{shift}]}},"b":{{"dtype":"F32","shape":[3],"data_offsets":[{shift},{}]}}}}"#,
            shift + 12
        );
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + shift, 0);
        bytes.extend_from_slice(&floats);
        let weights = Weights::open(write_folder(&bytes).path()).unwrap();
        assert_eq!(weights.tensor("b", &[3]).unwrap().to_f32(), [1.5, -2.25, 3.0]);
    }
}

proptest! {
    #[test]
    fn no_file_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), length in 0u64..200) {
        let mut file = length.to_le_bytes().to_vec();
        file.extend_from_slice(&bytes);
        drop(Weights::open(write_folder(&file).path()));
    }

    #[test]
    fn no_flipped_byte_of_a_header_makes_it_panic(at in 0usize..3000, to in any::<u8>()) {
        let mut file = fs::read(fixture("roberta-classify").join(SINGLE_FILE)).unwrap();
        file[at] = to;
        if let Ok(weights) = Weights::open(write_folder(&file).path()) {
            drop(weights.tensor(ANCHOR, &[320, 24]).map(|tensor| tensor.to_f32()));
        }
    }
}
