//! Files of a store: for each a record, and chunks with vectors, all of them points of the store's collection.
//! A record has no vector, so that no search finds it; its id is the file's number.

use std::collections::BTreeMap;

use magray_index::{
    Change, Collection, Condition, FieldTest, Filter, JsonPath, Payload, PayloadSelector, Point, PointId, Result,
    ScrollRequest, Selector, Vector, VectorSelector, files::ChunkSize,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{ids::Of, requests::ChunkTokens};

/// Files of a store.
pub(crate) const FILES_MAX: usize = 10_000;
/// The fields of chunks that filters and answers need.
pub(crate) const TEXT: &str = "text";
pub(crate) const FILE_ID: &str = "file_id";
pub(crate) const FILENAME: &str = "filename";
pub(crate) const ATTRIBUTES: &str = "attributes";
/// The field that records have and chunks lack.
const OBJECT: &str = "object";
const RECORD: &str = "vector_store.file";

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    InProgress,
    Completed,
    Cancelled,
    Failed,
}

/// Why a file has no chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct LastError {
    pub(crate) code: ErrorCode,
    pub(crate) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ErrorCode {
    ServerError,
    UnsupportedFile,
    InvalidFile,
}

/// The record of a file in a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AttachedFile {
    pub(crate) file_id: String,
    pub(crate) filename: String,
    pub(crate) status: Status,
    pub(crate) created_at: u64,
    pub(crate) usage_bytes: u64,
    pub(crate) attributes: Payload,
    pub(crate) chunks: ChunkTokens,
    pub(crate) last_error: Option<LastError>,
    pub(crate) batch_id: Option<String>,
    /// A file that is put into the store again gets another: what still works for the last one ends.
    pub(crate) attempt: u64,
}

impl AttachedFile {
    pub(crate) fn chunk_size(&self) -> ChunkSize {
        ChunkSize { tokens: self.chunks.max_chunk_size_tokens, overlap: self.chunks.chunk_overlap_tokens }
    }

    fn point(&self) -> Point {
        let mut payload = json!(self);
        payload[OBJECT] = RECORD.into();
        let payload = match payload {
            Value::Object(payload) => payload,
            _ => unreachable!("a struct is an object"),
        };
        let number = Of::File.number(&self.file_id).unwrap_or_default();
        Point { id: PointId::Number(number), vectors: BTreeMap::new(), payload }
    }
}

/// A part of a file, with its vector.
pub(crate) struct Chunk {
    pub(crate) part: usize,
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) vector: Vector,
}

/// The files of a store, the oldest first.
pub(crate) fn list(collection: &Collection) -> Result<Vec<AttachedFile>> {
    let request = ScrollRequest {
        filter: Some(Filter::must(is_record())),
        limit: FILES_MAX,
        with_payload: PayloadSelector::All,
        ..ScrollRequest::default()
    };
    let records = collection.scroll(&request)?.points.into_iter();
    Ok(records.filter_map(|record| read(record.payload?)).collect())
}

/// The record of a file.
pub(crate) fn find(collection: &Collection, number: u64) -> Result<Option<AttachedFile>> {
    let found = collection.retrieve(&[PointId::Number(number)], &PayloadSelector::All, &VectorSelector::None)?;
    Ok(found.into_iter().next().and_then(|record| read(record.payload?)))
}

fn read(payload: Payload) -> Option<AttachedFile> {
    let is_record = payload.get(OBJECT).is_some_and(|object| object == RECORD);
    is_record.then(|| serde_json::from_value(Value::Object(payload)).ok())?
}

/// Writes records in one step.
pub(crate) fn put(collection: &Collection, files: &[AttachedFile]) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    collection.upsert(files.iter().map(AttachedFile::point).collect())
}

/// Writes chunks of a file in one step.
pub(crate) fn put_chunks(collection: &Collection, file: &AttachedFile, chunks: Vec<Chunk>) -> Result<()> {
    let number = Of::File.number(&file.file_id).unwrap_or_default();
    let point = |chunk: Chunk| {
        let payload = json!({
            TEXT: chunk.text, FILE_ID: file.file_id, FILENAME: file.filename, ATTRIBUTES: file.attributes,
            "part": chunk.part, "line": chunk.line,
        });
        let payload = match payload {
            Value::Object(payload) => payload,
            _ => unreachable!("it was written as an object"),
        };
        let id = PointId::Uuid(u128::from(number) << 64 | chunk.part as u128);
        Point { id, vectors: BTreeMap::from([(String::new(), chunk.vector)]), payload }
    };
    collection.upsert(chunks.into_iter().map(point).collect())
}

/// Deletes the chunks of a file and keeps its record.
pub(crate) fn delete_chunks(collection: &Collection, file_id: &str) -> Result<()> {
    let chunks = Filter { must: vec![is_of_file(file_id)], must_not: vec![is_record()], ..Filter::default() };
    collection.delete(&Selector::Filter(chunks))
}

/// Deletes a file with its chunks. Returns whether it was there.
pub(crate) fn delete(collection: &Collection, file_id: &str) -> Result<bool> {
    let all = Filter::must(is_of_file(file_id));
    let is_there = collection.count(Some(&all))? > 0;
    if is_there {
        collection.delete(&Selector::Filter(all))?;
    }
    Ok(is_there)
}

/// Gives a file and its chunks other attributes.
pub(crate) fn set_attributes(collection: &Collection, file_id: &str, attributes: Payload) -> Result<()> {
    let payload = Payload::from_iter([(ATTRIBUTES.to_owned(), Value::Object(attributes))]);
    let points = Selector::Filter(Filter::must(is_of_file(file_id)));
    collection.change(vec![Change::SetPayload { points, payload, key: None }])
}

/// Points of other files than these.
pub(crate) fn is_of_none(file_ids: impl Iterator<Item = String>) -> Option<Filter> {
    let ids: Vec<Value> = file_ids.map(Value::from).collect();
    let condition = Condition::Field { key: JsonPath::key(FILE_ID), test: FieldTest::Any(ids.clone()) };
    (!ids.is_empty()).then(|| Filter { must_not: vec![condition], ..Filter::default() })
}

fn is_of_file(file_id: &str) -> Condition {
    Condition::Field { key: JsonPath::key(FILE_ID), test: FieldTest::Value(file_id.into()) }
}

fn is_record() -> Condition {
    Condition::Field { key: JsonPath::key(OBJECT), test: FieldTest::Value(RECORD.into()) }
}

#[cfg(test)]
mod tests {
    use magray_index::{CollectionConfig, Collections, Distance, Example, Options, Query, QueryKind};

    use super::*;

    fn file(number: u64) -> AttachedFile {
        AttachedFile {
            file_id: Of::File.id(number),
            filename: "a.txt".to_owned(),
            status: Status::InProgress,
            created_at: 1,
            usage_bytes: 0,
            attributes: Payload::new(),
            chunks: ChunkTokens { max_chunk_size_tokens: 100, chunk_overlap_tokens: 10 },
            last_error: None,
            batch_id: None,
            attempt: 1,
        }
    }

    #[test]
    fn records_and_chunks_are_points_of_one_collection() {
        let folder = tempfile::tempdir().unwrap();
        let all = Collections::open(folder.path(), Options::default()).unwrap();
        all.create("a", CollectionConfig::dense(2, Distance::Dot)).unwrap();
        let collection = all.get("a").unwrap();
        let files = [file(1), file(2)];
        put(&collection, &files).unwrap();
        let chunk = |part| Chunk { part, line: 1, text: "x".to_owned(), vector: Vector::Dense(vec![1.0, 0.0]) };
        for file in &files {
            put_chunks(&collection, file, vec![chunk(0), chunk(1)]).unwrap();
        }
        assert_eq!(
            (list(&collection).unwrap(), find(&collection, 2).unwrap()),
            (files.to_vec(), Some(files[1].clone()))
        );
        let found = || {
            let nearest = QueryKind::Nearest(Example::Vector(Vector::Dense(vec![1.0, 0.0])));
            collection.query(&Query::new(nearest, 9)).unwrap().len()
        };
        assert_eq!(found(), 4, "no search finds a record");
        set_attributes(&collection, &files[0].file_id, Payload::from_iter([("n".to_owned(), 1.into())])).unwrap();
        assert_eq!(find(&collection, 1).unwrap().unwrap().attributes["n"], 1);
        delete_chunks(&collection, &files[0].file_id).unwrap();
        assert_eq!((found(), list(&collection).unwrap().len()), (2, 2));
        assert!(delete(&collection, &files[1].file_id).unwrap() && !delete(&collection, &files[1].file_id).unwrap());
        assert_eq!((found(), list(&collection).unwrap().len()), (0, 1));
    }
}
