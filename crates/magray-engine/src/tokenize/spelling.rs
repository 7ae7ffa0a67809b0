//! Tokens as people see them: one by one with their texts, and back into a text.
//! Reads no more of a long text than the model does.

use std::ops::Range;

use super::{
    Encoded, MARGIN_TOKENS, MAX_WINDOW_BYTES, TokenizeError, Tokenizer, WINDOW_BYTES_A_TOKEN, offsets::offsets, shorten,
};

/// A token of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpelledToken {
    /// Its number in the vocabulary.
    pub id: u32,
    /// The part of the text that it stands for; of a special token, or where its place is not known, how the vocabulary
    /// writes it.
    pub text: String,
    /// Whether it was put there by the tokenizer and is not of the text.
    pub is_special: bool,
    /// Its place in the text, in bytes.
    pub place: Option<Range<usize>>,
}

impl Tokenizer {
    /// The tokens of a text one by one, with the special ones around them if wanted.
    pub fn spell(&self, text: &str, with_special: bool) -> Result<Vec<SpelledToken>, TokenizeError> {
        let template = &self.pipeline.get_post_processor().single;
        let (before, after) = (template.prefix.len(), template.suffix.len());
        let ids = self.encode(text)?.ids;
        let inner = before..ids.len() - after;
        let kept = if with_special { 0..ids.len() } else { inner.clone() };
        let places = self.places(text, &ids[inner.clone()]);
        let spelled = |at: usize| {
            let (id, is_special) = (ids[at], !inner.contains(&at));
            let place = at.checked_sub(before).and_then(|at| places.get(at).cloned()).flatten();
            let written = match &place {
                Some(place) => text[place.clone()].to_owned(),
                None => self.pipeline.decode_tokens(&[id], false).pop().unwrap_or_default(),
            };
            SpelledToken { id, text: written, is_special, place }
        };
        Ok(kept.map(spelled).collect())
    }

    /// Where the first tokens of a text stand in it; as much of it is read as they need.
    fn places(&self, text: &str, ids: &[u32]) -> Vec<Option<Range<usize>>> {
        let mut window = (ids.len() + MARGIN_TOKENS) * WINDOW_BYTES_A_TOKEN;
        loop {
            let is_whole = window >= text.len();
            let places = offsets(&self.pipeline, if is_whole { text } else { shorten(text, window) }, ids);
            if is_whole || window >= MAX_WINDOW_BYTES || places.iter().all(Option::is_some) {
                return places;
            }
            window = (window * 4).min(MAX_WINDOW_BYTES);
        }
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
}
