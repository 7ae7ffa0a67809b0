//! Folders with graphs written by hand: what is made of them, and what is refused with what was found.

use super::*;
use crate::onnx_graph::tests::{bytes, external, node, number, port};
use crate::spec::Does;
use std::fs;
use tempfile::TempDir;

/// A graph with these inputs and outputs, over a table of 99 tokens.
fn graph(inputs: &[Vec<u8>], outputs: &[Vec<u8>]) -> Vec<u8> {
    let table = [number(1, 99), number(1, 4), bytes(8, b"words")].concat();
    let mut parts = vec![bytes(1, &node("Gather", &["words", "input_ids"], "embedded")), bytes(5, &table)];
    parts.extend(inputs.iter().map(|input| bytes(11, input)));
    parts.extend(outputs.iter().map(|output| bytes(12, output)));
    bytes(7, &parts.concat())
}

fn ids() -> Vec<u8> {
    port("input_ids", 7, &[None, None])
}

fn folder(graph: &[u8]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("model.onnx"), graph).unwrap();
    dir
}

fn read(dir: &TempDir) -> Result<ModelSpec, SpecError> {
    ModelSpec::read_onnx(dir.path(), &find_graph(dir.path(), PrecisionChoice::Auto).unwrap())
}

fn refusal(inputs: &[Vec<u8>], outputs: &[Vec<u8>]) -> String {
    read(&folder(&graph(inputs, outputs))).unwrap_err().to_string()
}

#[test]
fn the_task_is_told_by_the_outputs_name_and_rank() {
    let does = |outputs: &[Vec<u8>]| {
        let spec = read(&folder(&graph(&[ids()], outputs))).unwrap();
        let onnx = spec.onnx.clone().unwrap();
        (spec.does(), spec.outputs(), onnx.output.name, onnx.output.has_tokens)
    };
    let tokens = port("last_hidden_state", 1, &[None, None, Some(8)]);
    let pooled = port("sentence_embedding", 1, &[None, Some(8)]);
    let head = port("pooler_output", 1, &[None, Some(8)]);
    let (one, two) = (port("logits", 1, &[None, Some(1)]), port("logits", 10, &[None, Some(2)]));
    assert_eq!(does(&[head, tokens.clone()]), (Does::Embed, 8, "last_hidden_state".to_owned(), true));
    assert_eq!(does(&[tokens, pooled]), (Does::Embed, 8, "sentence_embedding".to_owned(), false));
    assert_eq!(does(&[one]), (Does::Rank, 1, "logits".to_owned(), false));
    assert_eq!(does(&[two]), (Does::Classify, 2, "logits".to_owned(), false));
    // One that stands alone is told by its rank.
    assert_eq!(does(&[port("x", 1, &[None, None, Some(3)])]), (Does::Embed, 3, "x".to_owned(), true));
    assert_eq!(does(&[port("x", 1, &[None, Some(3)])]), (Does::Embed, 3, "x".to_owned(), false));
}

#[test]
fn what_a_folder_does_not_say_is_taken_from_the_graph_and_the_tokenizer() {
    let dir = folder(&graph(&[ids()], &[port("logits", 1, &[None, Some(3)])]));
    fs::write(dir.path().join("tokenizer.json"), r#"{"truncation":{"max_length":77}}"#).unwrap();
    let spec = read(&dir).unwrap();
    assert_eq!((spec.shape.vocab, spec.max_tokens, spec.type_vocab), (99, 77, 2));
    let Task::Classify(classify) = &spec.task else { panic!("{:?}", spec.task) };
    assert_eq!(classify.labels, ["LABEL_0", "LABEL_1", "LABEL_2"]);
    let config = r#"{"max_position_embeddings": 50, "id2label": {"0": "a", "1": "b", "2": "c"}}"#;
    fs::write(dir.path().join("config.json"), config).unwrap();
    let spec = read(&dir).unwrap();
    let Task::Classify(classify) = &spec.task else { panic!("{:?}", spec.task) };
    assert_eq!((spec.max_tokens, &classify.labels[..]), (50, &["a", "b", "c"].map(str::to_owned)[..]));
    let fixed = graph(&[port("input_ids", 6, &[Some(2), Some(16)])], &[port("logits", 1, &[Some(2), Some(1)])]);
    let spec = read(&folder(&fixed)).unwrap();
    let onnx = spec.onnx.unwrap();
    assert_eq!((spec.max_tokens, onnx.fixed_texts, onnx.inputs[0].is_wide), (16, Some(2), false));
}

#[test]
fn inputs_and_outputs_of_no_known_meaning_are_named() {
    let tokens = || port("last_hidden_state", 1, &[None, None, Some(8)]);
    let unknown = refusal(&[ids(), port("pixel_values", 1, &[None, Some(3)])], &[tokens()]);
    assert!(unknown.contains("pixel_values (f32 [?, 3])") && unknown.contains("attention_mask"), "{unknown}");
    assert!(refusal(&[port("attention_mask", 7, &[None, None])], &[tokens()]).contains("no input input_ids, but"));
    assert!(refusal(&[port("input_ids", 1, &[None, None])], &[tokens()]).contains("whole numbers"));
    assert!(refusal(&[port("input_ids", 7, &[None])], &[tokens()]).contains("two dimensions"));
    assert!(refusal(&[ids()], &[]).contains("(none)"));
    let rank = refusal(&[ids()], &[port("sentence_embedding", 1, &[None, None, Some(9)])]);
    assert!(rank.contains("sentence_embedding (f32 [?, ?, 9])") && rank.contains("2 dimensions"), "{rank}");
    let sparse = refusal(&[ids()], &[port("logits", 1, &[None, None, Some(99)])]);
    assert!(sparse.contains("logits (f32 [?, ?, 99])") && sparse.contains("sparse head"), "{sparse}");
    assert!(refusal(&[ids()], &[port("logits", 7, &[None, Some(1)])]).contains("floats"));
    assert!(refusal(&[ids()], &[port("logits", 1, &[None, None])]).contains("width is not told"));
    let two = refusal(&[ids()], &[port("a", 1, &[None, Some(1)]), port("b", 1, &[None, Some(1)])]);
    assert!(two.contains("a (f32 [?, 1]), b (f32 [?, 1])"), "{two}");
}

#[test]
fn a_corrupt_graph_is_refused() {
    for broken in [&b""[..], b"<html>", &graph(&[ids()], &[])[..20]] {
        let error = read(&folder(broken)).unwrap_err().to_string();
        assert!(error.contains("model.onnx") && error.contains("export or pull it again"), "{error}");
    }
}

#[test]
fn weights_outside_of_the_folder_are_refused() {
    let with = |location: &str| {
        let parts = [bytes(5, &external("w", location)), bytes(11, &ids())].concat();
        bytes(7, &[parts, bytes(12, &port("logits", 1, &[None, Some(1)]))].concat())
    };
    for location in ["../secret", "/etc/passwd", "a/../../secret", ""] {
        let error = read(&folder(&with(location))).unwrap_err().to_string();
        assert!(error.contains("outside of its folder"), "{location}: {error}");
    }
    let dir = folder(&with("weights.bin"));
    assert!(matches!(read(&dir), Err(SpecError::Unreadable { file, .. }) if file.ends_with("weights.bin")));
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("weights.bin")).unwrap();
        assert!(read(&dir).unwrap_err().to_string().contains("outside of its folder"));
        fs::remove_file(dir.path().join("weights.bin")).unwrap();
    }
    fs::write(dir.path().join("weights.bin"), [0; 100]).unwrap();
    fs::write(dir.path().join("config.json"), r#"{"vocab_size": 7}"#).unwrap();
    let spec = read(&dir).unwrap();
    assert_eq!((spec.shape.vocab, spec.onnx.unwrap().bytes), (7, with("weights.bin").len() as u64 + 100));
}

#[test]
fn the_graph_is_chosen_by_its_arithmetic() {
    let dir = tempfile::tempdir().unwrap();
    let found = |precision: &str| {
        let found = find_graph(dir.path(), precision.parse().unwrap())?;
        found.file_name().map(|name| name.to_string_lossy().into_owned())
    };
    assert_eq!(found("auto"), None);
    fs::create_dir(dir.path().join("onnx")).unwrap();
    let touch = |name: &str| fs::write(dir.path().join("onnx").join(name), b"").unwrap();
    touch("mini_semantic.onnx");
    assert_eq!(found("auto").as_deref(), Some("mini_semantic.onnx"));
    touch("model_quantized.onnx");
    assert_eq!(found("f32").as_deref(), Some("model_quantized.onnx"), "nothing else has a known name");
    touch("model.onnx");
    touch("model_fp16.onnx");
    let names = ["auto", "f32", "f16", "int8"].map(|precision| found(precision).unwrap());
    assert_eq!(names, ["model.onnx", "model.onnx", "model_fp16.onnx", "model_quantized.onnx"]);
}
