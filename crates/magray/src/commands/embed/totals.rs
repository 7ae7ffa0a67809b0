//! What a run of `magray embed` did, for its last lines.
//! Counts; measures no time.

use crate::{
    console::Console,
    input::{InputName, Skipped, Text},
};

#[derive(Default)]
pub(super) struct Totals {
    pub(super) texts: u64,
    /// Those of `texts` that an earlier run has embedded.
    texts_before: u64,
    pub(super) tokens: u64,
    /// What computed them.
    pub(super) on: String,
    truncated: u64,
    /// Lines of the first texts that were cut.
    truncated_lines: Vec<String>,
    skipped: u64,
}

impl Totals {
    const LINES_SHOWN: usize = 5;

    /// After a run that has embedded this many.
    pub(super) fn after(texts_before: u64) -> Self {
        Self { texts: texts_before, texts_before, ..Self::default() }
    }

    pub(super) fn note_truncated(&mut self, text: &Text, names: &[InputName]) {
        self.truncated += 1;
        if self.truncated_lines.len() < Self::LINES_SHOWN {
            self.truncated_lines.push(match names {
                [_] => text.line.to_string(),
                several => format!("{}:{}", several[text.input], text.line),
            });
        }
    }

    /// Counts texts that a server has cut.
    pub(super) fn note_cut_by_server(&mut self, texts: u64) {
        self.truncated += texts;
    }

    /// Counts lines that were left out, and names the first of them.
    pub(super) fn note_skipped(&mut self, skipped: &Skipped, console: &Console) {
        let named = Skipped::NAMED_MAX.saturating_sub(self.skipped as usize);
        for error in skipped.first.iter().take(named) {
            console.warn(format_args!("skipped: {error}"));
        }
        self.skipped += skipped.lines;
    }

    pub(super) fn report(&self, tokens_max: Option<usize>, seconds: f64, console: &Console) {
        if self.skipped > 0 {
            let lines = if self.skipped == 1 { "line was" } else { "lines were" };
            console.warn(format_args!("{} bad {lines} skipped", self.skipped));
        }
        if self.truncated > 0 {
            let limit = tokens_max.map_or_else(|| " the tokens".to_owned(), |limit| format!(" the {limit} tokens"));
            let at = match self.truncated_lines.as_slice() {
                [] => String::new(),
                lines if self.truncated as usize > lines.len() => format!(" (at {}, ...)", lines.join(", ")),
                lines => format!(" (at {})", lines.join(", ")),
            };
            console.warn(format_args!(
                "{} of {} texts were longer than{limit} that the model reads and were cut{at}",
                self.truncated, self.texts,
            ));
        }
        let texts = self.texts - self.texts_before;
        let rate = texts as f64 / seconds.max(1e-9);
        let before = match self.texts_before {
            0 => String::new(),
            before => format!("; {before} were there before"),
        };
        console.note(format_args!(
            "{texts} {}, {} tokens in {seconds:.3} s ({rate:.0} texts/s) on {}{before}",
            if texts == 1 { "text" } else { "texts" },
            self.tokens,
            self.on,
        ));
    }
}
