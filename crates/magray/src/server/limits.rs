//! Checks texts and tokens against the limits of a request.
//! What all requests together may hold is `admission`'s.

use super::errors::{Kind, Problem};
use crate::config::RequestLimits;

impl RequestLimits {
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

    pub(crate) fn check_tokens(&self, param: &'static str, tokens: usize) -> Result<(), Problem> {
        if tokens <= self.tokens_max {
            return Ok(());
        }
        let most = self.tokens_max;
        Err(Problem::too_large(param, format!("the request has {tokens} tokens; {most} are allowed at a time")))
    }
}
