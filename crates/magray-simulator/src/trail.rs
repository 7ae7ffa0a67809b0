//! Remembers what was told to the machine and what it answered, in words.
//! Is only filled when a seed is run again to see what went wrong.

use magray_core::schedule::{Action, Event, Moment, Sequence, Span, Step};
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct Trail {
    lines: VecDeque<String>,
    most: usize,
    /// A heartbeat, written only if it leads to an action: there are very many.
    sign: Option<String>,
}

impl Trail {
    /// A trail of at most this many lines; none are written where that is 0.
    pub(crate) fn of(most: usize) -> Self {
        Self { lines: VecDeque::new(), most, sign: None }
    }

    pub(crate) fn event(&mut self, now: Moment, event: &Event) {
        if self.most == 0 {
            return;
        }
        let line = format!("{} -> {}", time(now), event_words(event));
        self.sign = None;
        match event {
            Event::Heartbeat { .. } => self.sign = Some(line),
            _ => self.push(line),
        }
    }

    pub(crate) fn action(&mut self, now: Moment, action: &Action) {
        if self.most > 0 {
            if let Some(sign) = self.sign.take() {
                self.push(sign);
            }
            self.push(format!("{}    <- {}", time(now), action_words(action)));
        }
    }

    pub(crate) fn into_lines(self) -> Vec<String> {
        self.lines.into()
    }

    fn push(&mut self, line: String) {
        if self.lines.len() == self.most {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }
}

/// Milliseconds since the start, in columns.
pub(crate) fn time(at: Moment) -> String {
    format!("{:>14.6} ms", at.as_nanos() as f64 / 1e6)
}

fn event_words(event: &Event) -> String {
    match event {
        Event::Submitted(request) => {
            let tokens: u64 = request.sequences.iter().map(Sequence::tokens_max).sum();
            format!(
                "Submitted {}: model {}, key {}, {} sequences, {tokens} tokens, {:?}, deadline {}, allowed {:?}",
                request.id.0,
                request.group.model.0,
                request.group.key,
                request.sequences.len(),
                request.priority,
                request.deadline.map_or("none".to_owned(), |at| time(at).trim().to_owned()),
                request.allowed
            )
        }
        other => format!("{other:?}"),
    }
}

fn action_words(action: &Action) -> String {
    let Action::Start { device, batch, steps, .. } = action else { return format!("{action:?}") };
    let words = |step: &Step| match &step.span {
        Span::Whole => format!("{}[{}..{}]", step.request.0, step.sequences.start, step.sequences.end),
        Span::Part { tokens, new_tokens_max } => {
            let Step { request, sequences, .. } = step;
            format!("{}[{}]:{}..{}+{new_tokens_max}", request.0, sequences.start, tokens.start, tokens.end)
        }
    };
    let steps: Vec<String> = steps.iter().map(words).collect();
    format!("Start batch {} on device {}: {}", batch.0, device.0, steps.join(" "))
}
