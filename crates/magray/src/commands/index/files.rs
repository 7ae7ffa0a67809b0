//! Files as documents of a collection: their texts, split by tokens. A file that has not changed since is passed over.
//! Reads what `magray_index::files` reads, and deletes nothing but the parts of files that have changed.

use std::path::{Path, PathBuf};

use magray_index::files::{FileBytes, FileLimits, walk};
use serde_json::{Value, json};

use super::place::Place;
use crate::{commands::Context, exit::Failure, input::InputError, qdrant::texts::id_of};

/// Parts that are embedded and stored together.
const PORTION: usize = 256;

/// What became of the files.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) files: usize,
    pub(super) unchanged: usize,
    pub(super) refused: usize,
    pub(super) parts: usize,
}

/// The files that paths name, each once.
pub(super) fn list(paths: &[PathBuf], context: &Context) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        path.symlink_metadata().map_err(|reason| InputError::of_opening(path, reason))?;
        let listed = walk(path, &FileLimits::default());
        for (path, reason) in &listed.refused {
            context.console.warn(format_args!("left out: {}: {reason}", path.display()));
        }
        if listed.cut {
            context
                .console
                .warn(format_args!("{} has more files than are read at once: the rest is left out", path.display()));
        }
        files.extend(listed.files);
    }
    Ok(files)
}

/// Puts the parts of files into a collection.
pub(super) fn add(
    place: &mut Place<'_>,
    collection: &str,
    files: &[PathBuf],
    (model, text_field): (&str, &str),
    context: &Context,
) -> Result<Counts, Failure> {
    let limits = FileLimits::default();
    let bar = context.console.steps_bar(files.len());
    bar.set_prefix("indexing");
    let (mut counts, mut waiting) = (Counts::default(), Vec::new());
    for path in files {
        let source = source_of(path);
        bar.set_message(format!(", {source}"));
        bar.inc(1);
        let read = FileBytes::read(path, &limits);
        let (digest, bytes) = match read {
            Ok(bytes) => (hex(&bytes.digest()), bytes),
            Err(reason) => {
                counts.refused += 1;
                context.console.warn(format_args!("left out: {source} {reason}"));
                continue;
            }
        };
        match find(place, collection, &source, &digest)? {
            Found::Same => {
                counts.unchanged += 1;
                continue;
            }
            Found::Other => place.delete_points(collection, &of_source(&source))?,
            Found::Nothing => {}
        }
        let document = match bytes.document(path, &limits) {
            Ok(document) => document,
            Err(reason) => {
                counts.refused += 1;
                context.console.warn(format_args!("left out: {source} {reason}"));
                continue;
            }
        };
        counts.files += 1;
        let chunks = place.split(&document.text, model)?;
        let parts = chunks.len();
        for (number, chunk) in chunks.into_iter().enumerate() {
            let text = &document.text[chunk.range.clone()];
            let payload = json!({
                text_field: text, "source": source, "title": document.title, "line": chunk.line, "part": number, "parts": parts,
                "digest": digest,
            });
            let id = id_of(&format!("{source}#{number}"));
            waiting.push(json!({"id": id, "vector": {"text": text, "model": model}, "payload": payload}));
            counts.parts += 1;
            if waiting.len() == PORTION {
                place.upsert(collection, std::mem::take(&mut waiting))?;
            }
        }
    }
    if !waiting.is_empty() {
        place.upsert(collection, waiting)?;
    }
    bar.finish_and_clear();
    Ok(counts)
}

/// The name of a file in a collection: its whole path, so that it is known again from every folder.
fn source_of(path: &Path) -> String {
    path.canonicalize().unwrap_or_else(|_| path.to_owned()).to_string_lossy().into_owned()
}

fn of_source(source: &str) -> Value {
    json!({"must": [{"key": "source", "match": {"value": source}}]})
}

/// What a collection has of a file.
enum Found {
    Nothing,
    /// All parts of it, as it is now.
    Same,
    /// Parts of what it was, or not all: a run was interrupted.
    Other,
}

fn find(place: &Place<'_>, collection: &str, source: &str, digest: &str) -> Result<Found, Failure> {
    let body = json!({"filter": of_source(source), "limit": 1, "with_payload": ["digest", "parts"]});
    let (points, _) = place.scroll(collection, &body)?;
    let Some(point) = points.first() else { return Ok(Found::Nothing) };
    let is_same = point["payload"]["digest"] == digest
        && point["payload"]["parts"].as_u64() == Some(place.count(collection, &of_source(source))?);
    Ok(if is_same { Found::Same } else { Found::Other })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
