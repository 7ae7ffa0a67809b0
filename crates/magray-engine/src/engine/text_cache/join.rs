//! An answer that is put together: rows that are known, rows that others compute, and rows of its own.
//! Looks up nothing.

use super::entries::Known;
use super::{Key, TextCache};
use crate::engine::{Answer, Engine, EngineError, PendingAnswer, Work};
use crate::tokenize::Encoded;
use futures_channel::oneshot::Receiver;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Where the row of a text comes from.
#[derive(Debug)]
pub(super) enum Place {
    Known(Arc<Known>),
    /// This work computes it, and others may wait for it.
    Leads(Encoded),
    /// Another work computes it.
    Follows(Encoded, Receiver<Option<Arc<Known>>>),
}

/// Texts that this work computes for others too. Dropped, it tells those who wait that nothing comes.
pub(super) struct Leading {
    cache: Arc<TextCache>,
    keys: VecDeque<Key>,
}

impl Leading {
    pub(super) fn new(cache: Arc<TextCache>) -> Self {
        Self { cache, keys: VecDeque::new() }
    }

    pub(super) fn take_on(&mut self, key: Key) {
        self.keys.push_back(key);
    }

    /// The next of its texts is computed.
    fn end_next(&mut self, known: &Arc<Known>) {
        if let Some(key) = self.keys.pop_front() {
            self.cache.end(key, Some(Arc::clone(known)));
        }
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        for key in self.keys.drain(..) {
            self.cache.end(key, None);
        }
    }
}

/// An answer that is awaited; dropped before it came, its own work is cancelled.
#[must_use = "work that is not awaited is cancelled"]
pub struct Asked(Kind);

enum Kind {
    Direct(PendingAnswer),
    Known(Option<Answer>),
    Joined(Pin<Box<dyn Future<Output = Result<Answer, EngineError>> + Send>>),
}

impl Asked {
    pub(super) fn direct(pending: PendingAnswer) -> Self {
        Self(Kind::Direct(pending))
    }
}

impl Future for Asked {
    type Output = Result<Answer, EngineError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Kind::Direct(pending) => Pin::new(pending).poll(context),
            Kind::Known(answer) => Poll::Ready(answer.take().ok_or(EngineError::Draining)),
            Kind::Joined(future) => future.as_mut().poll(context),
        }
    }
}

/// Queues the work's own texts at once, and puts the answer together when all rows are there.
pub(super) fn join(engine: &Engine, work: Work, mut places: Vec<Place>, leading: Leading, tokens: usize) -> Asked {
    if let Some(known) = all_known(&places) {
        return Asked(Kind::Known(Some(of_known(&known, tokens))));
    }
    let mut own = Vec::new();
    for place in &mut places {
        if let Place::Leads(text) = place {
            own.push(std::mem::take(text));
        }
    }
    let asking = (!own.is_empty()).then(|| engine.ask(Work { texts: own, ..work.clone() }));
    let engine = engine.clone();
    Asked(Kind::Joined(Box::pin(async move { put_together(&engine, work, places, leading, asking, tokens).await })))
}

fn all_known(places: &[Place]) -> Option<Vec<&Arc<Known>>> {
    places.iter().map(|place| if let Place::Known(known) = place { Some(known) } else { None }).collect()
}

async fn put_together(
    engine: &Engine,
    work: Work,
    places: Vec<Place>,
    mut leading: Leading,
    asking: Option<PendingAnswer>,
    tokens: usize,
) -> Result<Answer, EngineError> {
    let answer = match asking {
        Some(asking) => Some(asking.await?),
        None => None,
    };
    let mut own = answer.iter().flat_map(Answer::rows);
    let mut rows = Vec::with_capacity(places.len());
    let mut left = Vec::new();
    let mut waits = Vec::new();
    for place in places {
        rows.push(match place {
            Place::Known(known) => Some(known),
            Place::Leads(_) => {
                let known = own.next().zip(answer.as_ref()).map(|(row, answer)| known_of(row, answer));
                known.as_ref().inspect(|known| leading.end_next(known));
                known
            }
            Place::Follows(text, receiver) => {
                waits.push((rows.len(), text, receiver));
                None
            }
        });
    }
    drop(own);
    // Those who wait for this work have their rows: two works that wait for each other both go on.
    drop(leading);
    for (at, text, receiver) in waits {
        match receiver.await {
            Ok(Some(known)) => rows[at] = Some(known),
            // The work that was to compute it failed or was withdrawn.
            Ok(None) | Err(_) => left.push((at, text)),
        }
    }
    let mut later = None;
    if !left.is_empty() {
        let (at, texts): (Vec<usize>, Vec<Encoded>) = left.into_iter().unzip();
        let answer = engine.ask(Work { texts, ..work }).await?;
        for (at, row) in at.into_iter().zip(answer.rows()) {
            rows[at] = Some(known_of(row, &answer));
        }
        later = Some(answer);
    }
    let known: Vec<&Arc<Known>> = rows.iter().flatten().collect();
    let mut joined = of_known(&known, tokens);
    if let Some(last) = later.or(answer) {
        joined = Answer { dimensions: joined.dimensions, values: joined.values, tokens, ..last };
    }
    Ok(joined)
}

fn known_of(row: &[f32], answer: &Answer) -> Arc<Known> {
    Arc::new(Known { row: row.into(), device: answer.device, precision: answer.precision })
}

/// An answer of rows that are there.
fn of_known(rows: &[&Arc<Known>], tokens: usize) -> Answer {
    let last = rows.last();
    Answer {
        dimensions: last.map_or(0, |known| known.row.len()),
        values: rows.iter().flat_map(|known| known.row.iter()).copied().collect(),
        tokens,
        device: last.map(|known| known.device).unwrap_or_default(),
        precision: last.map_or(magray_core::Precision::F32, |known| known.precision),
        batch_texts: 0,
        queued: Duration::ZERO,
        computed: Duration::ZERO,
        replays: 0,
        fallback: None,
    }
}
