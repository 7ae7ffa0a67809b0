//! The bytes that each token of a model stands for.
//! Puts nothing around a text and joins nothing: a character may be in several tokens.

use super::TokenizeError;
use crate::bounded_file::{self, TOKENIZER_BYTES_MAX};
use crate::spec::decoder::VOCAB_MAX;
use serde::Deserialize;
use std::collections::HashMap;
use std::path::Path;

/// Bytes by token.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    ends: Vec<usize>,
    control: Vec<bool>,
}

impl Vocabulary {
    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of a token; none of one that does not exist.
    pub fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..end]
    }

    /// Whether a token is a sign for the model and no text, as the end of a turn is.
    pub fn is_control(&self, id: u32) -> bool {
        self.control.get(id as usize).copied().unwrap_or(false)
    }

    /// The text of some tokens, without control tokens; bytes that are no text yet are replaced.
    pub fn text(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> =
            ids.iter().filter(|id| !self.is_control(**id)).flat_map(|id| self.bytes(*id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Vocabulary {
    /// The tokens of the `tokenizer.json` in this folder.
    pub fn open(folder: &Path) -> Result<Self, TokenizeError> {
        let file = folder.join("tokenizer.json");
        let unusable = |reason: String| TokenizeError::Unusable { file: file.clone(), reason };
        let json = bounded_file::read(&file, TOKENIZER_BYTES_MAX)
            .map_err(|source| TokenizeError::Unreadable { file: file.clone(), source })?;
        let json: TokenizerFile = serde_json::from_slice(&json).map_err(|error| unusable(error.to_string()))?;
        json.vocabulary().map_err(unusable)
    }
}

/// What a tokenizer's file says of its tokens.
#[derive(Deserialize)]
struct TokenizerFile {
    model: TokenizerModel,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    decoder: serde_json::Value,
}

#[derive(Deserialize)]
struct TokenizerModel {
    vocab: TokenList,
}

/// Tokens with their ids, or in the order of their ids with their scores.
#[derive(Deserialize)]
#[serde(untagged)]
enum TokenList {
    ById(HashMap<String, u32>),
    InOrder(Vec<(String, f64)>),
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    special: bool,
}

impl TokenizerFile {
    fn vocabulary(self) -> Result<Vocabulary, String> {
        // Decoders are one step or a list of steps; the name of the step tells how tokens spell bytes.
        let is_byte_level = self.decoder.to_string().contains("\"ByteLevel\"");
        let mut tokens: Vec<(u32, String, Option<bool>)> = match self.model.vocab {
            TokenList::ById(tokens) => tokens.into_iter().map(|(token, id)| (id, token, None)).collect(),
            TokenList::InOrder(tokens) => (0..).zip(tokens).map(|(id, (token, _))| (id, token, None)).collect(),
        };
        // Added tokens replace what the list has of their ids.
        tokens.extend(self.added_tokens.into_iter().map(|added| (added.id, added.content, Some(added.special))));
        tokens.sort_by_key(|(id, _, special)| (*id, special.is_none()));
        tokens.dedup_by_key(|(id, ..)| *id);
        let mut builder = VocabularyBuilder::default();
        for (id, token, special) in tokens {
            if id as usize > VOCAB_MAX {
                return Err(format!("the token '{token}' has the id {id}"));
            }
            // Ids that nothing has stand for nothing.
            while builder.len() < id as usize {
                builder.push(&[], true);
            }
            match special {
                Some(special) => builder.push(token.as_bytes(), special),
                None if is_byte_level => builder.push_byte_level(&token),
                None if token.starts_with("<0x") => builder.push_named_byte(&token),
                None => builder.push(token.replace('\u{2581}', " ").as_bytes(), false),
            }
        }
        Ok(builder.finish())
    }
}

/// Takes the tokens one after the other.
#[derive(Default)]
pub(super) struct VocabularyBuilder {
    made: Vocabulary,
}

impl VocabularyBuilder {
    pub(super) fn push(&mut self, bytes: &[u8], control: bool) {
        self.made.bytes.extend_from_slice(bytes);
        self.made.ends.push(self.made.bytes.len());
        self.made.control.push(control);
    }

    fn len(&self) -> usize {
        self.made.len()
    }

    /// A token in which each character stands for a byte. One with other characters stands for itself.
    pub(super) fn push_byte_level(&mut self, token: &str) {
        match token.chars().map(byte_of).collect::<Option<Vec<u8>>>() {
            Some(bytes) => self.push(&bytes, false),
            None => self.push(token.as_bytes(), false),
        }
    }

    /// A token that names a byte, as `<0x0A>` does.
    pub(super) fn push_named_byte(&mut self, token: &str) {
        let byte = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        match byte.and_then(|byte| u8::from_str_radix(byte, 16).ok()) {
            Some(byte) => self.push(&[byte], false),
            None => self.push(token.as_bytes(), false),
        }
    }

    pub(super) fn finish(self) -> Vocabulary {
        self.made
    }
}

/// The characters that stand for bytes.
pub(crate) fn byte_characters() -> impl Iterator<Item = char> {
    ('!'..='\u{143}').filter(|character| byte_of(*character).is_some())
}

/// The byte that a character stands for: the visible ones of Latin-1 for themselves, the 68 others in their order from U+0100 on.
fn byte_of(character: char) -> Option<u8> {
    let number = u32::from(character);
    match number {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => Some(number as u8),
        0x100..=0x120 => Some((number - 0x100) as u8),
        0x121..=0x142 => Some((number - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let mut bytes: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        bytes.sort();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(byte_of('\u{120}'), Some(b' '));
        assert_eq!(byte_of('\u{10a}'), Some(b'\n'));
    }

    #[test]
    fn a_tokenizers_file_spells_its_tokens_by_its_decoder() {
        let text = |json: serde_json::Value, ids: &[u32]| {
            serde_json::from_value::<TokenizerFile>(json).unwrap().vocabulary().unwrap().text(ids)
        };
        let added = serde_json::json!([{"id": 3, "content": "<end>", "special": true}]);
        let bytes = serde_json::json!({
            "model": {"vocab": {"\u{120}the": 1, "a": 0}}, "added_tokens": added, "decoder": {"type": "ByteLevel"},
        });
        assert_eq!(text(bytes, &[0, 1, 2, 3]), "a the");
        let pieces = serde_json::json!({
            "model": {"vocab": [["\u{2581}the", -1.0], ["<0x0A>", -2.0], ["a", -3.0]]}, "added_tokens": added,
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]},
        });
        assert_eq!(text(pieces, &[0, 1, 2, 3]), " the\na");
        let far = serde_json::json!({"model": {"vocab": {"a": u32::MAX}}});
        assert!(serde_json::from_value::<TokenizerFile>(far).unwrap().vocabulary().is_err());
    }

    #[test]
    fn tokens_are_bytes_and_control_tokens_no_text() {
        let mut builder = VocabularyBuilder::default();
        builder.push(b"<end>", true);
        builder.push_byte_level("\u{120}the");
        builder.push_named_byte("<0xE4>");
        builder.push(&[0xbd, 0xa0], false);
        let vocabulary = builder.finish();
        assert_eq!(vocabulary.text(&[1, 2, 3, 0]), " the\u{4f60}");
        assert_eq!((vocabulary.len(), vocabulary.bytes(9)), (4, &[][..]));
    }
}
