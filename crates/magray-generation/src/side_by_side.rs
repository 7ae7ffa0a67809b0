//! Several answers that go on at once, told in the order in which they come.
//! Reads all of them in turn: an answer that is not read pauses.

use std::{
    future::poll_fn,
    task::{Context, Poll},
};

use magray_engine::engine::EngineError;

use super::answer::{AnswerEvent, AnswerStream};

/// Several answers.
pub struct SideBySide {
    answers: Vec<AnswerStream>,
    /// Who is asked first.
    first: usize,
}

/// What came, and of which answer.
pub type AnswersEvent = (usize, Result<AnswerEvent, EngineError>);

impl SideBySide {
    /// Reads these.
    pub fn new(answers: Vec<AnswerStream>) -> Self {
        Self { answers, first: 0 }
    }

    /// What comes next of any answer; `None` when all are over.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<AnswersEvent>> {
        self.poll_among(context, |_| true)
    }

    /// What comes next of some answers, which are named by their numbers; `None` when these are over. The others are not read: their
    /// sequences pause when they have a few tokens ahead.
    pub fn poll_among(
        &mut self,
        context: &mut Context<'_>,
        is_wanted: impl Fn(usize) -> bool,
    ) -> Poll<Option<AnswersEvent>> {
        let (count, mut are_over) = (self.answers.len(), true);
        let first = self.first;
        for index in (0..count).map(|turn| (first + turn) % count).filter(|index| is_wanted(*index)) {
            match self.answers[index].poll_next(context) {
                Poll::Ready(Some(event)) => {
                    self.first = index + 1;
                    return Poll::Ready(Some((index, event)));
                }
                Poll::Ready(None) => {}
                Poll::Pending => are_over = false,
            }
        }
        if are_over { Poll::Ready(None) } else { Poll::Pending }
    }

    /// What comes next of any answer; `None` when all are over.
    pub async fn next(&mut self) -> Option<AnswersEvent> {
        poll_fn(|context| self.poll_next(context)).await
    }
}
