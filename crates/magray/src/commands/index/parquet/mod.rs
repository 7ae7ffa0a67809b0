//! Points of a collection as a Parquet file: ids, texts, payloads as JSON, vectors as lists of floats.
//! Holds one group of rows at a time. Files of others are read too: their columns are told by name.

mod columns;
mod fields;
mod limits;
mod read;
mod write;

pub(super) use columns::ColumnArgs;
pub(super) use read::Rows;
pub(super) use write::PointsWriter;

use serde_json::Value;

const ID: &str = "id";
const TEXT: &str = "text";
const PAYLOAD: &str = "payload";
const VECTOR: &str = "vector";
/// The key under which a file has the settings of its collection: such a file is magray's own.
const SETTINGS: &str = "magray.collection";

/// The column of a vector; the unnamed one has the name "".
fn vector_column(name: &str) -> String {
    if name.is_empty() { VECTOR.to_owned() } else { format!("{VECTOR}.{name}") }
}

/// The vector that a column has.
fn vector_name(column: &str) -> Option<&str> {
    match column.strip_prefix(VECTOR)? {
        "" => Some(""),
        rest => rest.strip_prefix('.'),
    }
}

/// What a vector of a collection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VectorKind {
    Dense,
    Multi,
    Sparse,
}

/// The vectors of a collection by name, from its settings.
fn vector_kinds(settings: &Value) -> Vec<(String, VectorKind)> {
    let kind = |params: &Value| match params["multivector_config"] {
        Value::Null => VectorKind::Dense,
        _ => VectorKind::Multi,
    };
    let dense = &settings["vectors"];
    let mut kinds = match dense.as_object() {
        Some(one) if one.get("size").is_some_and(Value::is_number) => vec![(String::new(), kind(dense))],
        Some(named) => named.iter().map(|(name, params)| (name.clone(), kind(params))).collect(),
        None => Vec::new(),
    };
    let sparse = settings["sparse_vectors"].as_object();
    kinds.extend(sparse.into_iter().flatten().map(|(name, _)| (name.clone(), VectorKind::Sparse)));
    kinds
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::output::Destination;

    fn settings() -> Value {
        json!({
            "vectors": {
                "": {"size": 2, "distance": "Dot"},
                "a b": {"size": 3, "distance": "Cosine"},
                "many": {"size": 2, "distance": "Dot", "multivector_config": {"comparator": "max_sim"}},
            },
            "sparse_vectors": {"words": {}},
            "text_field": "body",
        })
    }

    fn points() -> Vec<Value> {
        vec![
            json!({
                "id": 18446744073709551615u64,
                "payload": {"body": "a text", "n": 1.5, "deep": {"list": [1, null, "x"]}},
                "vector": {
                    "": [0.5, -1.25], "a b": [1.0, 2.0, 3.0], "many": [[1.0, 2.0], [3.0, 4.0]],
                    "words": {"indices": [7, 4294967295u32], "values": [0.5, 0.25]},
                },
            }),
            json!({"id": "c56a4180-65aa-42ec-a945-5fd21dec0538", "payload": {}, "vector": {}}),
            json!({
                "id": 3, "payload": {"other": true},
                "vector": {"many": [[9.0, 8.0]], "words": {"indices": [], "values": []}},
            }),
        ]
    }

    fn write(path: &std::path::Path, settings: &Value, points: &[Value]) {
        let mut writer = PointsWriter::start(Destination::open(Some(path)).unwrap(), settings).unwrap();
        points.iter().for_each(|point| writer.write(point.clone()).unwrap());
        writer.finish().unwrap();
    }

    fn read(path: &std::path::Path) -> Result<(Option<Value>, Vec<Value>), String> {
        let rows = Rows::open(path, &ColumnArgs::default()).map_err(|failure| failure.to_string())?;
        let settings = rows.settings().cloned();
        let points = rows.collect::<Result<Vec<_>, _>>().map_err(|failure| failure.to_string())?;
        Ok((settings, points))
    }

    #[test]
    fn points_with_all_kinds_of_vectors_come_back_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("points.parquet");
        write(&path, &settings(), &points());
        assert_eq!(read(&path).unwrap(), (Some(settings()), points()));
        // In several groups of rows.
        let many: Vec<Value> = (0..30_000)
            .map(|id| json!({"id": id, "payload": {"body": "x".repeat(500)}, "vector": {"": [1.0, id as f32]}}))
            .collect();
        write(&path, &settings(), &many);
        assert!(read(&path).unwrap().1 == many);
        write(&path, &settings(), &[]);
        assert_eq!(read(&path).unwrap().1, [] as [Value; 0]);
    }

    #[test]
    fn every_part_of_a_file_and_every_flipped_byte_gives_points_or_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("points.parquet");
        write(&path, &settings(), &points());
        let whole = fs::read(&path).unwrap();
        let numbers: Vec<u8> = [0.5f32, -1.25].iter().flat_map(|number| number.to_le_bytes()).collect();
        let vector = whole.windows(numbers.len()).position(|bytes| bytes == numbers).unwrap();
        let vector = vector..vector + numbers.len();
        for length in (0..whole.len()).step_by(7) {
            fs::write(&path, &whole[..length]).unwrap();
            let reason = read(&path).unwrap_err();
            assert!(reason.contains("points.parquet"), "{length}: {reason}");
        }
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&path, &flipped).unwrap();
            // Metadata has no checksum: a flip there may give other points. Values have one. A crash is never right.
            let found = read(&path);
            assert!(!vector.contains(&at) || found.is_err(), "{at}: {found:?}");
        }
    }

    #[test]
    fn the_kinds_of_vectors_follow_the_settings() {
        let kinds = |settings: Value| vector_kinds(&settings);
        assert_eq!(kinds(json!({"vectors": {"size": 2, "distance": "Dot"}})), [(String::new(), VectorKind::Dense)]);
        assert_eq!(kinds(settings()).len(), 4);
        assert_eq!(kinds(json!({"vectors": {}, "sparse_vectors": null})), []);
        assert_eq!(
            (vector_name("vector"), vector_name("vector.a.b"), vector_name("vectors")),
            (Some(""), Some("a.b"), None)
        );
    }
}
