//! Indexes files of vector stores beside the requests: takes their text out, splits it, embeds it, stores the chunks.
//! What a file has become is in its record, on the disk. A file whose indexing was cut off by the end of the process is
//! indexed again when somebody asks for it or searches its store.

use std::{path::Path, time::Duration};

use magray_engine::engine::Priority;
use magray_index::{
    Vector,
    files::{FileBytes, FileLimits, Refused},
};
use tracing::Span;

use super::{
    app::App,
    documents::{self, Purpose},
    errors::{Kind, Problem},
    index_jobs::{Job, now},
    request_record::RequestRecord,
};
use crate::{
    qdrant::{collections::Kept, vectors::Document},
    splitting::split_by_tokens,
    vector_stores::{
        attached::{self, AttachedFile, Chunk, ErrorCode, LastError, Status},
        ids::Of,
        uploaded,
    },
};

/// Chunks that are embedded and stored together.
const PORTION: usize = 64;
/// How often a portion is put into a full queue, and how long is waited between two tries.
const TRIES: usize = 120;
const WAIT_MIN: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_secs(5);

impl App {
    /// Indexes those of these files that are not indexed yet, after this returns.
    pub(crate) fn index_files<'a>(&self, store: &str, files: impl IntoIterator<Item = &'a AttachedFile>) {
        let unfinished = files.into_iter().filter(|file| file.status == Status::InProgress);
        for job in unfinished.map(|file| Job::new(store, file)) {
            if self.indexing().running().insert(job.clone()) {
                let record = RequestRecord::new(Span::none());
                record.set_caller(RequestRecord::current().asker().caller, None, false);
                // Others wait for an answer, and nobody for this one.
                let _ = record.set_priority(Priority::Low);
                let app = self.clone();
                tokio::spawn(async move { record.scope(run(&app, job)).await });
            }
        }
    }
}

/// Takes the job from the list, however it ends.
struct Running<'a>(&'a App, &'a Job);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.indexing().running().remove(self.1);
    }
}

async fn run(app: &App, job: Job) {
    let _running = Running(app, &job);
    // The semaphore is never closed.
    let _slot = app.indexing().slots.acquire().await;
    let Err(error) = index(app, &job).await else { return };
    tracing::warn!(target: "magray::server", file = job.file_id, reason = error.message, "a file was not indexed");
    let (own, job) = (app.clone(), job.clone());
    let noted = app.collections().with_all(move |all| {
        let _changing = own.indexing().change();
        let Some(record) = job.record(all)? else { return Ok(()) };
        let collection = all.get(&job.store)?;
        attached::delete_chunks(&collection, &job.file_id)?;
        Ok(attached::put(&collection, &[AttachedFile { status: Status::Failed, last_error: Some(error), ..record }])?)
    });
    if let Err(problem) = noted.await {
        tracing::warn!(target: "magray::server", error = problem.message, "the record of a file was not written");
    }
}

/// A text, and where its chunks are.
struct Split {
    text: String,
    chunks: Vec<magray_index::files::Chunk>,
}

async fn index(app: &App, job: &Job) -> Result<(), LastError> {
    let (own, wanted) = (app.clone(), job.clone());
    let read = app.collections().with_all(move |all| {
        let _changing = own.indexing().change();
        let Some(record) = wanted.record(all)? else { return Ok(None) };
        let collection = all.get(&wanted.store)?;
        // A file that is put in again has chunks already, and so has one whose indexing was cut off.
        attached::delete_chunks(&collection, &wanted.file_id)?;
        let gone = || Problem::new(Kind::NotFound, "the file was deleted before it was indexed");
        let number = Of::File.number(&wanted.file_id).ok_or_else(gone)?;
        let file = uploaded::find(all, number, now())?.ok_or_else(gone)?;
        let model = Kept::of(&collection.config()).model();
        Ok(Some((record, uploaded::content(all, &file)?, model)))
    });
    let Some((record, content, model)) = read.await.map_err(failed)? else { return Ok(()) };
    let number = app.models().embedder(model.as_deref()).map_err(failed)?;
    let _held = app.admission().hold_anyway(2 * content.len() as u64);
    let (own, size, filename) = (app.clone(), record.chunk_size(), record.filename.clone());
    let splitting = tokio::task::spawn_blocking(move || split(&own, number, size, (content, &filename)));
    // What ends the thread by a panic is wrong with the file.
    let broken = |_| LastError { code: ErrorCode::InvalidFile, message: "the file could not be read".to_owned() };
    let Split { text, chunks } = splitting.await.map_err(broken)??;
    let (mut usage_bytes, mut next) = (0, 0);
    for portion in chunks.chunks(PORTION) {
        let texts: Vec<String> = portion.iter().map(|chunk| text[chunk.range.clone()].to_owned()).collect();
        let vectors = embed(app, &texts, model.as_deref()).await.map_err(failed)?;
        let made = texts.into_iter().zip(vectors).zip(portion).zip(next..);
        let made: Vec<Chunk> =
            made.map(|(((text, vector), chunk), part)| Chunk { part, line: chunk.line, text, vector }).collect();
        next += made.len();
        usage_bytes += made.iter().map(bytes_of).sum::<u64>();
        if !store(app, job, made).await.map_err(failed)? {
            return Ok(());
        }
    }
    let (own, job) = (app.clone(), job.clone());
    let finish = app.collections().with_all(move |all| {
        let _changing = own.indexing().change();
        let Some(record) = job.record(all)? else { return Ok(()) };
        let done = AttachedFile { status: Status::Completed, usage_bytes, ..record };
        Ok(attached::put(&*all.get(&job.store)?, &[done])?)
    });
    finish.await.map_err(failed)
}

fn split(
    app: &App,
    model: usize,
    size: magray_index::files::ChunkSize,
    (content, filename): (Vec<u8>, &str),
) -> Result<Split, LastError> {
    let limits = FileLimits::default();
    let document = FileBytes::new(content, &limits).and_then(|bytes| bytes.document(Path::new(filename), &limits));
    let document = document.map_err(|refused| {
        let code = if matches!(refused, Refused::Binary) { ErrorCode::UnsupportedFile } else { ErrorCode::InvalidFile };
        LastError { code, message: format!("the file {refused}") }
    })?;
    let starts = |segment: &&str| {
        let tokens = app.engine().spell(model, segment, false)?;
        Ok(tokens.into_iter().map(|token| token.place.map_or(0, |place| place.start)).collect())
    };
    let chunks = split_by_tokens(&document.text, size, |segments| segments.iter().map(starts).collect());
    let chunks = chunks.map_err(|error: Problem| failed(error))?;
    Ok(Split { text: document.text, chunks })
}

/// The vectors of texts. A full queue is waited for.
async fn embed(app: &App, texts: &[String], model: Option<&str>) -> Result<Vec<Vector>, Problem> {
    for _ in 1..TRIES {
        let document = |text: &String| Document { text: text.clone(), model: model.map(str::to_owned) };
        match documents::embed(app, texts.iter().map(document).collect(), Purpose::Storing).await {
            Err(Problem { kind: Kind::Busy | Kind::Expired | Kind::Unavailable, retry_after, .. }) => {
                tokio::time::sleep(retry_after.unwrap_or(WAIT_MIN).clamp(WAIT_MIN, WAIT_MAX)).await;
            }
            done => return done.map(Iterator::collect),
        }
    }
    Err(Problem::new(Kind::Unavailable, "no device computes, or there is too much to do: put the file in again later"))
}

/// Stores chunks. Returns whether the file is still to be indexed by this job.
async fn store(app: &App, job: &Job, chunks: Vec<Chunk>) -> Result<bool, Problem> {
    let (own, job) = (app.clone(), job.clone());
    app.collections()
        .with_all(move |all| {
            let _changing = own.indexing().change();
            let Some(record) = job.record(all)? else { return Ok(false) };
            attached::put_chunks(&*all.get(&job.store)?, &record, chunks)?;
            Ok(true)
        })
        .await
}

fn bytes_of(chunk: &Chunk) -> u64 {
    let numbers = if let Vector::Dense(numbers) = &chunk.vector { numbers.len() } else { 0 };
    (chunk.text.len() + numbers * size_of::<f32>()) as u64
}

fn failed(problem: Problem) -> LastError {
    LastError { code: ErrorCode::ServerError, message: problem.message }
}
