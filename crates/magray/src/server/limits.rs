//! What one request may hold, and how long things may take.
//! Numbers and their checks; what all requests together may hold is `admission`'s.

use std::time::Duration;

use super::errors::{Kind, Problem};

/// The limits of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) body_bytes_max: usize,
    pub(crate) texts_max: usize,
    pub(crate) text_bytes_max: usize,
    pub(crate) tokens_max: usize,
    /// From the first byte of a body to its last.
    pub(crate) body_within: Duration,
    /// From the head of a request to its answer.
    pub(crate) answer_within: Duration,
    /// Whether texts that are longer than the model reads are cut where the request does not say.
    pub(crate) is_cutting: bool,
}

impl Limits {
    /// Refuses texts that are too many, too few, or too long.
    pub(crate) fn check_texts<'a>(
        &self,
        param: &'static str,
        texts: impl ExactSizeIterator<Item = &'a str>,
    ) -> Result<(), Problem> {
        self.check_count(param, texts.len())?;
        for (at, text) in texts.enumerate() {
            if text.len() > self.text_bytes_max {
                let (bytes, most) = (text.len(), self.text_bytes_max);
                return Err(Problem::too_large(param, format!("text {at} has {bytes} bytes; {most} are allowed")));
            }
        }
        Ok(())
    }

    /// Refuses too many texts, and none.
    pub(crate) fn check_count(&self, param: &'static str, texts: usize) -> Result<(), Problem> {
        match texts {
            0 => Err(Problem { kind: Kind::Empty, ..Problem::invalid(param, "there is no text in the request") }),
            _ if texts > self.texts_max => {
                let most = self.texts_max;
                Err(Problem::too_large(param, format!("the request has {texts} texts; {most} are allowed at a time")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses too many tokens.
    pub(crate) fn check_tokens(&self, param: &'static str, tokens: usize) -> Result<(), Problem> {
        if tokens <= self.tokens_max {
            return Ok(());
        }
        let most = self.tokens_max;
        Err(Problem::too_large(param, format!("the request has {tokens} tokens; {most} are allowed at a time")))
    }
}
