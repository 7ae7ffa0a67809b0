//! Where texts are embedded: by an engine of this process, or by a server.
//! Keeps no order: each answer goes to the one who waits for it.

use std::sync::{
    Arc, Mutex, PoisonError,
    mpsc::{Receiver, SyncSender, sync_channel},
};

use magray_engine::engine::{Answer, Engine, EngineError, Work};
use serde::Deserialize;
use serde_json::json;

use super::progress::Progress;
use crate::{
    console::Console,
    exit::Failure,
    input::Text,
    output::Origin,
    remote::{PORTION_TEXTS, Remote, RemoteError, portions},
    session::{Notices, Session},
};

pub(super) enum Backend {
    Here { session: Box<Session>, notices: Notices },
    Server { remote: Remote, parallel: usize, prompt: Option<String> },
}

/// What came of a request, as it comes.
pub(super) enum Computed {
    Here(Result<Answer, EngineError>),
    Server(Result<Vectors, RemoteError>),
}

/// Some texts of a window, in their order.
pub(super) struct Request {
    pub(super) texts: usize,
    /// Indices of those that were longer than the model reads and were cut.
    pub(super) truncated: Vec<usize>,
    pub(super) answer: Receiver<Computed>,
}

pub(super) struct Vectors {
    dimensions: usize,
    values: Vec<f32>,
    pub(super) tokens: u64,
    /// Texts that a server has cut; it does not say which.
    pub(super) cut_by_server: u64,
    pub(super) origin: Origin,
}

impl Vectors {
    pub(super) fn rows(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.dimensions.max(1))
    }
}

impl Backend {
    pub(super) fn submitter(&self, prompt: Option<String>) -> Result<Submitter, Failure> {
        Ok(match self {
            Self::Here { session, .. } => {
                Submitter::Here { engine: session.engine().clone(), threads: session.threads(), prompt }
            }
            Self::Server { remote, parallel, prompt } => Submitter::Server(Pool::start(remote, *parallel, prompt)?),
        })
    }

    pub(super) fn take(&mut self, computed: Computed, console: &Console) -> Result<Vectors, Failure> {
        match (self, computed) {
            (Self::Here { session, notices }, Computed::Here(answer)) => {
                let answer = session.take(answer)?;
                notices.tell(&answer, session, console);
                let (origin, tokens) = (Origin::of(&answer), answer.tokens as u64);
                let Answer { dimensions, values, .. } = answer;
                Ok(Vectors { dimensions, values, tokens, cut_by_server: 0, origin })
            }
            (_, Computed::Server(vectors)) => Ok(vectors?),
            // The thread that should have answered is gone.
            (Self::Server { .. }, Computed::Here(answer)) => Err(answer.err().unwrap_or(EngineError::Draining).into()),
        }
    }

    /// Tokens that the model reads, where that is known.
    pub(super) fn tokens_max(&self) -> Option<usize> {
        match self {
            Self::Here { session, .. } => Some(session.spec().max_tokens),
            Self::Server { .. } => None,
        }
    }

    pub(super) fn describe(&self, origin: &Origin) -> String {
        match self {
            Self::Here { session, .. } => session.describe(origin),
            Self::Server { remote, .. } => format!("{} of {}", origin.device, remote.url()),
        }
    }

    pub(super) fn leave(self) {
        if let Self::Here { session, .. } = self {
            session.leave();
        }
    }
}

/// Hands texts in, in the thread that reads them.
pub(super) enum Submitter {
    Here { engine: Engine, threads: usize, prompt: Option<String> },
    Server(Pool),
}

impl Submitter {
    /// The texts of a window as requests, in their order. `bytes` of the input are read with them.
    pub(super) fn submit(&self, texts: &[Text], bytes: u64, progress: &Progress) -> Result<Vec<Request>, Failure> {
        let share = |count: usize| bytes * count as u64 / texts.len().max(1) as u64;
        match self {
            Self::Server(pool) => {
                Ok(portions(texts).map(|some| pool.submit(some, share(some.len()), progress.clone())).collect())
            }
            Self::Here { engine, threads, prompt } => {
                let mut work = engine.read_by(*threads, 0, texts, prompt.as_deref())?;
                let mut rest = std::mem::take(&mut work.texts).into_iter();
                let mut requests = Vec::with_capacity(texts.len().div_ceil(PORTION_TEXTS));
                loop {
                    let some: Vec<_> = rest.by_ref().take(PORTION_TEXTS).collect();
                    if some.is_empty() {
                        return Ok(requests);
                    }
                    let cut = some.iter().enumerate().filter(|(_, text)| text.truncated);
                    let (count, truncated) = (some.len(), cut.map(|(at, _)| at).collect());
                    let (sender, answer) = sync_channel(1);
                    let (progress, share) = (progress.clone(), share(count));
                    engine.submit(Work { texts: some, ..work.clone() }, move |answer| {
                        progress.add(count, share);
                        let _ = sender.send(Computed::Here(answer));
                    });
                    requests.push(Request { texts: count, truncated, answer });
                }
            }
        }
    }
}

/// Threads that each wait for one answer of a server.
pub(super) struct Pool {
    jobs: SyncSender<Job>,
}

struct Job {
    texts: Vec<String>,
    share: u64,
    progress: Progress,
    answer: SyncSender<Computed>,
}

impl Pool {
    fn start(remote: &Remote, threads: usize, prompt: &Option<String>) -> Result<Self, Failure> {
        let (jobs, receiver) = sync_channel::<Job>(threads);
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..threads {
            let (remote, prompt, receiver) = (remote.clone(), prompt.clone(), Arc::clone(&receiver));
            let thread = std::thread::Builder::new().name("request".to_owned());
            thread.spawn(move || answer_jobs(&remote, prompt.as_deref(), &receiver)).map_err(Failure::Thread)?;
        }
        Ok(Self { jobs })
    }

    /// Waits while all threads have enough to do.
    fn submit(&self, texts: &[Text], share: u64, progress: Progress) -> Request {
        let (sender, answer) = sync_channel(1);
        let count = texts.len();
        let texts = texts.iter().map(|text| text.text.clone()).collect();
        // If all threads are gone, the receiver of the answer finds its sender dropped.
        let _ = self.jobs.send(Job { texts, share, progress, answer: sender });
        Request { texts: count, truncated: Vec::new(), answer }
    }
}

fn answer_jobs(remote: &Remote, prompt: Option<&str>, jobs: &Mutex<Receiver<Job>>) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let vectors = embed(remote, prompt, &job.texts);
        job.progress.add(job.texts.len(), job.share);
        let _ = job.answer.send(Computed::Server(vectors));
    }
}

fn embed(remote: &Remote, prompt: Option<&str>, texts: &[String]) -> Result<Vectors, RemoteError> {
    #[derive(Deserialize)]
    struct Embeddings {
        data: Vec<Embedding>,
        usage: Usage,
    }
    #[derive(Deserialize)]
    struct Embedding {
        index: usize,
        embedding: String,
    }
    #[derive(Deserialize)]
    struct Usage {
        prompt_tokens: u64,
    }
    let mut body = json!({ "input": texts, "encoding_format": "base64" });
    for (name, value) in [("model", remote.model()), ("prompt_name", prompt)] {
        if let Some(value) = value {
            body[name] = value.into();
        }
    }
    let reply = remote.post("/v1/embeddings", &body)?;
    let mut found: Embeddings = serde_json::from_slice(&reply.body).map_err(|error| remote.unexpected(error))?;
    found.data.sort_by_key(|embedding| embedding.index);
    let mut values = Vec::new();
    for embedding in &found.data {
        let bytes = base64_simd::STANDARD.decode_to_vec(&embedding.embedding);
        let bytes = bytes.map_err(|error| remote.unexpected(error))?;
        values.extend(bytes.chunks_exact(4).map(|value| f32::from_le_bytes([value[0], value[1], value[2], value[3]])));
    }
    let dimensions = values.len() / texts.len().max(1);
    if found.data.len() != texts.len() || dimensions * texts.len() != values.len() || dimensions == 0 {
        return Err(remote.unexpected(format!("{} vectors for {} texts", found.data.len(), texts.len())));
    }
    let origin = Origin { device: reply.device, precision: None, fallback: reply.fallback };
    Ok(Vectors { dimensions, values, tokens: found.usage.prompt_tokens, cut_by_server: reply.truncated, origin })
}
