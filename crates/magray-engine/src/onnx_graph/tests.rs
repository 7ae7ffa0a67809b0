//! Graphs written by hand, field by field: what is read of them, and what is refused.

use super::*;

/// A field whose value is bytes.
pub(crate) fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).unwrap();
    // Lengths of two bytes begin at 128.
    let mut length = vec![length];
    if content.len() >= 128 {
        length = vec![(content.len() & 0x7f) as u8 | 0x80, (content.len() >> 7) as u8];
    }
    [&[number << 3 | 2][..], &length, content].concat()
}

pub(crate) fn number(field: u8, value: u8) -> Vec<u8> {
    vec![field << 3, value]
}

pub(crate) fn port(name: &str, element: u8, dims: &[Option<u8>]) -> Vec<u8> {
    let dim = |dim: &Option<u8>| bytes(1, &dim.map_or_else(|| bytes(2, b"n"), |size| number(1, size)));
    let shape: Vec<u8> = dims.iter().flat_map(dim).collect();
    let tensor = [number(1, element), bytes(2, &shape)].concat();
    [bytes(1, name.as_bytes()), bytes(2, &bytes(1, &tensor))].concat()
}

pub(crate) fn node(kind: &str, inputs: &[&str], output: &str) -> Vec<u8> {
    let inputs: Vec<u8> = inputs.iter().flat_map(|name| bytes(1, name.as_bytes())).collect();
    [inputs, bytes(2, output.as_bytes()), bytes(4, kind.as_bytes())].concat()
}

pub(crate) fn external(name: &str, location: &str) -> Vec<u8> {
    let entry = [bytes(1, b"location"), bytes(2, location.as_bytes())].concat();
    [number(1, 99), number(1, 4), bytes(8, name.as_bytes()), bytes(13, &entry)].concat()
}

#[test]
fn ports_vocabulary_files_and_quantisation_are_found() {
    let graph = [
        bytes(1, &node("Cast", &["input_ids"], "cast")),
        bytes(1, &node("Gather", &["words", "cast"], "embedded")),
        bytes(1, &node("DynamicQuantizeLinear", &["embedded"], "small")),
        bytes(5, &external("words", "weights.bin")),
        bytes(11, &port("input_ids", 7, &[None, Some(16)])),
        bytes(11, &port("words", 1, &[])),
        bytes(12, &port("logits", 1, &[None, Some(3)])),
    ];
    let read = Graph::read(&bytes(7, &graph.concat())).unwrap();
    let ids = Port { name: "input_ids".to_owned(), element: Element::I64, dims: vec![None, Some(16)] };
    let logits = Port { name: "logits".to_owned(), element: Element::F32, dims: vec![None, Some(3)] };
    let external = vec!["weights.bin".to_owned()];
    let expected = Graph {
        inputs: vec![ids],
        outputs: vec![logits],
        vocab: Some(99),
        external,
        quantises_by_batch: true,
        is_quantised: true,
    };
    assert_eq!(read, expected);
    assert_eq!(read.inputs[0].to_string(), "input_ids (i64 [?, 16])");
}

#[test]
fn a_file_named_inside_of_a_branch_is_found_too() {
    let inner = bytes(5, &external("hidden", "../secret"));
    let branch = [bytes(4, b"If"), bytes(5, &bytes(6, &inner))].concat();
    let read = Graph::read(&bytes(7, &bytes(1, &branch))).unwrap();
    assert_eq!(read.external, ["../secret"]);
}

#[test]
fn a_graph_cut_at_any_byte_is_refused_or_read_and_never_panics() {
    let graph = [
        bytes(1, &node("Gather", &["words", "input_ids"], "out")),
        bytes(11, &port("input_ids", 7, &[None, None])),
        bytes(5, &external("words", "weights.bin")),
    ];
    let whole = bytes(7, &graph.concat());
    assert!(Graph::read(&whole).is_ok());
    for length in 0..whole.len() {
        assert!(matches!(Graph::read(&whole[..length]), Err(GraphError::Corrupt(_))), "{length}");
    }
    for nonsense in [&b"<html>not found</html>"[..], &[0xff; 64], b"{}"] {
        assert!(Graph::read(nonsense).is_err());
    }
    // Each graph holds one node whose attribute is the next.
    let mut nested = bytes(11, b"");
    for _ in 0..12 {
        nested = bytes(1, &bytes(5, &bytes(6, &nested)));
    }
    assert!(matches!(Graph::read(&bytes(7, &nested)), Err(GraphError::Corrupt(_))));
}
