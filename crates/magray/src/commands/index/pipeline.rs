//! Points on their way into a collection of this process: some are embedded while those before are stored.
//! Keeps two portions under way. What fails is told by a later call, and by `finish` at last.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        mpsc::{Receiver, sync_channel},
    },
    thread::JoinHandle,
};

use magray_engine::engine::{Answer, EngineError, Work};
use magray_index::{Change, Collection, Vector};

use crate::{
    console::Console,
    exit::Failure,
    qdrant::{
        bm25::Terms,
        points::Operation,
        vectors::{Document, Embedded},
    },
    session::{Notices, Session},
};

/// Portions that are tokenised and computed while another is stored.
const AHEAD: usize = 1;

#[derive(Default)]
pub(super) struct Pipeline {
    embedding: VecDeque<Portion>,
    storing: Option<JoinHandle<magray_index::Result<()>>>,
    notices: Notices,
}

/// Points whose texts are being embedded.
struct Portion {
    collection: Arc<Collection>,
    operation: Operation,
    documents: Vec<Document>,
    /// `None`: no text needs a model.
    answer: Option<Receiver<Result<Answer, EngineError>>>,
}

impl Pipeline {
    /// Hands points in. `work` are the texts among `documents` that a model embeds.
    pub(super) fn push(
        &mut self,
        (collection, operation): (Arc<Collection>, Operation),
        documents: Vec<Document>,
        (work, session): (Option<Work>, Option<&Session>),
        console: &Console,
    ) -> Result<(), Failure> {
        let answer = work.zip(session).map(|(work, session)| {
            let (sender, answer) = sync_channel(1);
            // The receiver is gone if something else has failed.
            session.engine().submit(work, move |answer| drop(sender.send(answer)));
            answer
        });
        self.embedding.push_back(Portion { collection, operation, documents, answer });
        while self.embedding.len() > AHEAD {
            self.store_next(session, console)?;
        }
        Ok(())
    }

    /// Waits until everything is stored.
    pub(super) fn finish(&mut self, session: Option<&Session>, console: &Console) -> Result<(), Failure> {
        while !self.embedding.is_empty() {
            self.store_next(session, console)?;
        }
        self.wait()
    }

    fn store_next(&mut self, session: Option<&Session>, console: &Console) -> Result<(), Failure> {
        let Some(mut portion) = self.embedding.pop_front() else { return Ok(()) };
        let mut rows = Vec::new();
        if let (Some(answer), Some(session)) = (portion.answer, session) {
            let answer = session.take(answer.recv().unwrap_or(Err(EngineError::Draining)))?;
            self.notices.tell(&answer, session, console);
            rows.extend(answer.rows().map(<[f32]>::to_vec));
        }
        let mut embedded = vectors(&portion.documents, rows, Terms::of_document);
        portion.operation.visit_vectors(&mut |vector| embedded.fill(vector));
        let change = portion.operation.into_change()?;
        self.wait()?;
        let storing = std::thread::Builder::new().name("storing".to_owned());
        let store = move || portion.collection.change(Vec::<Change>::from([change]));
        self.storing = Some(storing.spawn(store).map_err(Failure::Thread)?);
        Ok(())
    }

    fn wait(&mut self) -> Result<(), Failure> {
        let Some(storing) = self.storing.take() else { return Ok(()) };
        Ok(storing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)
    }
}

/// The vectors of documents: rows of a model, or terms.
pub(super) fn vectors(documents: &[Document], rows: Vec<Vec<f32>>, by_terms: fn(&Terms, &str) -> Vector) -> Embedded {
    let (mut rows, terms) = (rows.into_iter(), Terms::default());
    Embedded::new(documents.iter().map(|document| match document.is_bm25() {
        true => by_terms(&terms, &document.text),
        false => Vector::Dense(rows.next().unwrap_or_default()),
    }))
}
