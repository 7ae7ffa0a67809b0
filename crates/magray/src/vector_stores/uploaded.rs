//! Uploaded files: points of a collection of their own, which is made with the first of them.
//! A file has a point with what is known of it, whose id is its number, and points with parts of its bytes; all are
//! written in one step. Bounded in bytes and files.

use std::{collections::BTreeMap, sync::Arc};

use magray_index::{
    Collection, CollectionConfig, Collections, Error, Payload, PayloadSelector, Point, PointId, Result, ScrollRequest,
    Selector, VectorSelector,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ids::{self, Of};

/// The name of the collection.
const COLLECTION: &str = "vector-store-files";
/// The field with bytes in base64.
const CONTENT: &str = "content";
/// Bytes of a point.
const PART_BYTES: usize = 1 << 20;
/// Ids that are listed at a time.
const PAGE: usize = 4_096;

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) files: usize,
    /// Of one file.
    pub(crate) file_bytes: usize,
    /// Of all files.
    pub(crate) bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        let file_bytes = magray_index::files::FileLimits::default().file_bytes;
        Self { files: 10_000, file_bytes, bytes: 16 << 30 }
    }
}

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct UploadedFile {
    #[serde(skip)]
    pub(crate) number: u64,
    pub(crate) filename: String,
    pub(crate) bytes: usize,
    pub(crate) purpose: String,
    pub(crate) expires_at: Option<u64>,
}

impl UploadedFile {
    pub(crate) fn id(&self) -> String {
        Of::File.id(self.number)
    }

    pub(crate) fn created_at(&self) -> u64 {
        ids::created_s(self.number)
    }

    fn is_expired(&self, now: u64) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }

    fn parts(&self) -> impl Iterator<Item = PointId> {
        let number = u128::from(self.number);
        (0..self.bytes.div_ceil(PART_BYTES) as u128).map(move |part| PointId::Uuid(number << 64 | part))
    }
}

/// Stores a file. Its number must be new.
pub(crate) fn put(all: &Collections, file: &UploadedFile, content: &[u8], limits: Limits, now: u64) -> Result<()> {
    if content.len() > limits.file_bytes {
        return Err(Error::bad(format!("the file has {} bytes; {} are allowed", content.len(), limits.file_bytes)));
    }
    let known = list(all, now)?;
    if known.len() >= limits.files {
        return Err(Error::bad(format!("there are {} files: delete some first", known.len())));
    }
    let bytes: u64 = known.iter().map(|file| file.bytes as u64).sum();
    if bytes + content.len() as u64 > limits.bytes {
        let most = limits.bytes;
        return Err(Error::bad(format!("all files have {bytes} bytes, and {most} are allowed: delete some first")));
    }
    let collection = match collection(all)? {
        Some(collection) => collection,
        None => {
            match all.create(COLLECTION, CollectionConfig::default()) {
                Err(Error::Exists { .. }) => {}
                made => made?,
            }
            all.get(COLLECTION)?
        }
    };
    let point = |id, payload: Value| {
        let payload = match payload {
            Value::Object(payload) => payload,
            _ => Payload::new(),
        };
        Point { id, vectors: BTreeMap::new(), payload }
    };
    let base64 = |part: &[u8]| base64_simd::STANDARD.encode_to_string(part);
    let parts = file.parts().zip(content.chunks(PART_BYTES));
    let mut points: Vec<Point> = parts.map(|(id, part)| point(id, json!({ CONTENT: base64(part) }))).collect();
    points.push(point(PointId::Number(file.number), json!(file)));
    collection.upsert(points)
}

/// All files, the oldest first. Those that have expired are deleted.
pub(crate) fn list(all: &Collections, now: u64) -> Result<Vec<UploadedFile>> {
    let Some(collection) = collection(all)? else { return Ok(Vec::new()) };
    // Numbers come before the ids of parts, whose payloads are long: these are not read.
    let (mut numbers, mut request) = (Vec::new(), ScrollRequest { limit: PAGE, ..ScrollRequest::default() });
    loop {
        let page = collection.scroll(&request)?;
        numbers.extend(page.points.iter().map(|point| point.id).filter(|id| matches!(id, PointId::Number(_))));
        match page.next {
            Some(next @ PointId::Number(_)) => request.offset = Some(next),
            _ => break,
        }
    }
    let found = collection.retrieve(&numbers, &PayloadSelector::All, &VectorSelector::None)?;
    let files = found.into_iter().filter_map(|point| read(point.id, point.payload?));
    let (gone, files): (Vec<_>, Vec<_>) = files.partition(|file| file.is_expired(now));
    gone.iter().try_for_each(|file| delete(all, file))?;
    Ok(files)
}

/// A file that is there.
pub(crate) fn find(all: &Collections, number: u64, now: u64) -> Result<Option<UploadedFile>> {
    let Some(collection) = collection(all)? else { return Ok(None) };
    let found = collection.retrieve(&[PointId::Number(number)], &PayloadSelector::All, &VectorSelector::None)?;
    let file = found.into_iter().next().and_then(|point| read(point.id, point.payload?));
    Ok(file.filter(|file| !file.is_expired(now)))
}

/// The bytes of a file.
pub(crate) fn content(all: &Collections, file: &UploadedFile) -> Result<Vec<u8>> {
    let collection = all.get(COLLECTION)?;
    let damaged =
        || Error::Corrupt { collection: COLLECTION.to_owned(), what: format!("the bytes of {} are wrong", file.id()) };
    let mut content = Vec::with_capacity(file.bytes);
    for part in file.parts() {
        let found = collection.retrieve(&[part], &PayloadSelector::All, &VectorSelector::None)?;
        let part = found.first().and_then(|point| point.payload.as_ref()?.get(CONTENT)?.as_str());
        let part = part.and_then(|part| base64_simd::STANDARD.decode_to_vec(part).ok());
        content.extend(part.ok_or_else(damaged)?);
    }
    if content.len() == file.bytes { Ok(content) } else { Err(damaged()) }
}

/// Deletes a file.
pub(crate) fn delete(all: &Collections, file: &UploadedFile) -> Result<()> {
    let Some(collection) = collection(all)? else { return Ok(()) };
    let ids = file.parts().chain([PointId::Number(file.number)]);
    collection.delete(&Selector::Ids(ids.collect()))
}

fn collection(all: &Collections) -> Result<Option<Arc<Collection>>> {
    match all.get(COLLECTION) {
        Err(Error::NotFound { .. }) => Ok(None),
        found => found.map(Some),
    }
}

fn read(id: PointId, payload: Payload) -> Option<UploadedFile> {
    let PointId::Number(number) = id else { return None };
    let file: UploadedFile = serde_json::from_value(Value::Object(payload)).ok()?;
    Some(UploadedFile { number, ..file })
}

#[cfg(test)]
mod tests {
    use magray_index::Options;

    use super::*;

    fn file(number: u64, content: &[u8]) -> UploadedFile {
        UploadedFile {
            number,
            filename: format!("{number}.txt"),
            bytes: content.len(),
            purpose: "assistants".to_owned(),
            expires_at: None,
        }
    }

    #[test]
    fn files_of_any_length_come_back_as_they_were_and_leave_whole() {
        let folder = tempfile::tempdir().unwrap();
        let all = Collections::open(folder.path(), Options::default()).unwrap();
        assert_eq!((list(&all, 0).unwrap().len(), find(&all, 1, 0).unwrap()), (0, None));
        for (number, bytes) in [(1, 0), (2, 5), (3, PART_BYTES), (4, 2 * PART_BYTES + 7)] {
            let content: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251) as u8).collect();
            let own = file(number, &content);
            put(&all, &own, &content, Limits::default(), 0).unwrap();
            assert_eq!(find(&all, number, 0).unwrap().as_ref(), Some(&own));
            assert!(super::content(&all, &own).unwrap() == content, "{bytes}");
        }
        let numbers: Vec<u64> = list(&all, 0).unwrap().iter().map(|file| file.number).collect();
        assert_eq!(numbers, [1, 2, 3, 4]);
        for own in list(&all, 0).unwrap() {
            delete(&all, &own).unwrap();
        }
        assert_eq!(all.get(COLLECTION).unwrap().count(None).unwrap(), 0);
    }

    #[test]
    fn more_than_the_limits_is_refused_and_what_has_expired_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let all = Collections::open(folder.path(), Options::default()).unwrap();
        let limits = Limits { files: 2, file_bytes: 10, bytes: 12 };
        let store = |number, content: &[u8], now| put(&all, &file(number, content), content, limits, now);
        let refused = |number, content: &[u8]| store(number, content, 0).unwrap_err().to_string();
        assert!(refused(1, &[0; 11]).contains("10 are allowed"));
        store(1, &[0; 6], 0).unwrap();
        assert!(refused(2, &[0; 7]).contains("12 are allowed"));
        let dated = UploadedFile { expires_at: Some(50), ..file(3, b"x") };
        put(&all, &dated, b"x", limits, 0).unwrap();
        assert!(refused(4, b"y").contains("there are 2 files"));
        assert!(find(&all, 3, 49).unwrap().is_some() && find(&all, 3, 50).unwrap().is_none());
        store(4, b"y", 50).unwrap();
        assert_eq!(list(&all, 50).unwrap().len(), 2);
    }
}
