//! Tokens as people see them: one by one with their texts, and back into a text.
//! Says nothing of where in the text a token stood: the tokenizer does not tell.

use super::{Encoded, TokenizeError, Tokenizer};

/// A token of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpelledToken {
    /// Its number in the vocabulary.
    pub id: u32,
    /// How the vocabulary writes it.
    pub text: String,
    /// Whether it was put there by the tokenizer and is not of the text.
    pub is_special: bool,
}

impl Tokenizer {
    /// The tokens of a text one by one, with the special ones around them if wanted.
    pub fn spell(&self, text: &str, with_special: bool) -> Result<Vec<SpelledToken>, TokenizeError> {
        let template = &self.pipeline.get_post_processor().single;
        let (before, after) = (template.prefix.len(), template.suffix.len());
        let ids = self.encode(text)?.ids;
        let inner = before..ids.len() - after;
        let kept = if with_special { 0..ids.len() } else { inner.clone() };
        Ok(kept.map(|at| self.spelled(ids[at], !inner.contains(&at))).collect())
    }

    /// The text of these tokens, without the special ones if wanted.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TokenizeError> {
        self.pipeline.decode(ids, skip_special).map_err(|e| TokenizeError::Failed { reason: e.to_string() })
    }

    /// A text given as token ids: the special tokens are put around those that lack them, and what does not fit is cut.
    pub fn complete(&self, ids: &[u32]) -> Encoded {
        let template = &self.pipeline.get_post_processor().single;
        let special = |run: &[(super::PipelineToken, u8)]| run.iter().map(|(token, _)| token.id()).collect::<Vec<_>>();
        let (prefix, suffix) = (special(&template.prefix), special(&template.suffix));
        let is_complete =
            ids.len() >= prefix.len() + suffix.len() && ids.starts_with(&prefix) && ids.ends_with(&suffix);
        let inner = if is_complete { &ids[prefix.len()..ids.len() - suffix.len()] } else { ids };
        let room = self.max_tokens - template.n_special();
        let kept = &inner[..inner.len().min(room)];
        Encoded {
            ids: [prefix.as_slice(), kept, suffix.as_slice()].concat(),
            type_ids: Vec::new(),
            truncated: kept.len() < inner.len(),
        }
    }

    fn spelled(&self, id: u32, is_special: bool) -> SpelledToken {
        let text = self.pipeline.decode_tokens(&[id], false).pop().unwrap_or_default();
        SpelledToken { id, text, is_special }
    }
}
