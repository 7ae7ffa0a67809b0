//! Reads plain texts (only ASCII) for the tokenizers of BERT, word by word, several times as fast as the general path.
//! Leaves every other text, and every other tokenizer, to that path: it returns nothing rather than something else.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};

use super::pieces::{AT_ONCE, Pieces, Place};

/// Marks the pieces within a word. No plain word starts with it: its first sign is a word of its own.
const WITHIN: &str = "##";

/// The vocabulary of such a tokenizer.
pub(super) struct PlainWords {
    pieces: Pieces,
    unknown: u32,
    longest_word: usize,
    classes: [Class; 256],
}

/// What a byte is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// A part of a word, in lower case.
    Letter(u8),
    /// Between words.
    Space,
    /// A word of its own.
    Sign(u8),
    /// As if it were not there.
    Nothing,
    /// Not for this path: part of a character beyond ASCII, or perhaps of an added token.
    Other,
}

/// What a `tokenizer.json` says that counts here.
#[derive(Deserialize)]
struct Described {
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<Normalizer>,
    pre_tokenizer: Option<PreTokenizer>,
    model: WordPiece,
}

#[derive(Deserialize)]
struct Added {
    content: String,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Normalizer {
    #[serde(rename = "BertNormalizer")]
    Bert { clean_text: bool, lowercase: bool },
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum PreTokenizer {
    #[serde(rename = "BertPreTokenizer")]
    Bert {},
}

#[derive(Deserialize)]
struct WordPiece {
    r#type: String,
    unk_token: String,
    continuing_subword_prefix: String,
    max_input_chars_per_word: usize,
    vocab: Vocabulary,
}

/// All pieces, in the file's order: a map of them would only be made to be taken apart again.
struct Vocabulary(Vec<(String, u32)>);

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Vocabulary;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("pieces and their ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
                let mut pieces = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    pieces.push(entry);
                }
                Ok(Vocabulary(pieces))
            }
        }

        deserializer.deserialize_map(Collect)
    }
}

impl PlainWords {
    /// The words of this tokenizer; `None` where it is of another kind.
    pub(super) fn of(json: &str) -> Option<Self> {
        let Described { added_tokens, normalizer, pre_tokenizer, model } = serde_json::from_str(json).ok()?;
        let Normalizer::Bert { clean_text: true, lowercase } = normalizer? else { return None };
        let PreTokenizer::Bert {} = pre_tokenizer?;
        if model.r#type != "WordPiece" || model.continuing_subword_prefix != WITHIN {
            return None;
        }
        let Vocabulary(vocab) = model.vocab;
        let unknown = vocab.iter().rev().find_map(|(piece, id)| (*piece == model.unk_token).then_some(*id))?;
        let place = |(piece, id): (String, u32)| match piece.strip_prefix(WITHIN) {
            Some(rest) if !rest.is_empty() => (Place::Within, rest.as_bytes().to_vec(), id),
            _ => (Place::Start, piece.into_bytes(), id),
        };
        let pieces = Pieces::new(vocab.into_iter().map(place))?;
        let mut classes = std::array::from_fn(|byte| class(byte as u8, lowercase));
        for start in added_tokens.iter().filter_map(|added| added.content.bytes().next()) {
            classes[usize::from(start.to_ascii_lowercase())] = Class::Other;
            classes[usize::from(start.to_ascii_uppercase())] = Class::Other;
        }
        Some(Self { pieces, unknown, longest_word: model.max_input_chars_per_word, classes })
    }

    /// Puts the text's tokens behind those that are there; `None`, and nothing put, where the text is not plain.
    pub(super) fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Option<()> {
        let start = ids.len();
        let mut words = Words::with_room(text.len());
        for byte in text.bytes() {
            let is_end = match self.classes[usize::from(byte)] {
                Class::Letter(letter) => {
                    words.letters.push(letter);
                    continue;
                }
                Class::Nothing => continue,
                Class::Space => None,
                Class::Sign(sign) => Some(sign),
                Class::Other => {
                    ids.truncate(start);
                    return None;
                }
            };
            self.end_word(&mut words, ids);
            if let Some(sign) = is_end {
                words.letters.push(sign);
                self.end_word(&mut words, ids);
            }
        }
        self.end_word(&mut words, ids);
        self.look_up(&mut words, ids);
        Some(())
    }

    /// The letters behind the last word, if there are any, are a word.
    fn end_word(&self, words: &mut Words, ids: &mut Vec<u32>) {
        if words.letters.len() == words.end() {
            return;
        }
        words.ends[words.count] = words.letters.len();
        words.count += 1;
        if words.count == AT_ONCE {
            self.look_up(words, ids);
        }
    }

    /// Puts the tokens of all words, which are then gone.
    fn look_up(&self, words: &mut Words, ids: &mut Vec<u32>) {
        for (word, seen) in words.each().zip(self.pieces.glance(words.each())) {
            match seen.filter(|_| word.len() <= self.longest_word) {
                Some(id) => ids.push(id),
                None => self.word(word, ids),
            }
        }
        words.letters.clear();
        words.count = 0;
    }

    /// A word as the longest piece that it starts with, the longest that goes on from there, and so on.
    fn word(&self, word: &[u8], ids: &mut Vec<u32>) {
        let (before, mut place, mut left) = (ids.len(), Place::Start, word);
        while !left.is_empty() {
            let longest = self.pieces.longest_at(place, left).filter(|_| word.len() <= self.longest_word);
            let Some((length, id)) = longest else {
                ids.truncate(before);
                ids.push(self.unknown);
                return;
            };
            ids.push(id);
            (place, left) = (Place::Within, &left[length..]);
        }
    }
}

/// Words that wait to be looked up together.
struct Words {
    /// End to end, and then those of a word that has not ended.
    letters: Vec<u8>,
    /// Where each ends.
    ends: [usize; AT_ONCE],
    count: usize,
}

impl Words {
    /// For a text of this many bytes; few words have more than sixteen letters.
    fn with_room(bytes: usize) -> Self {
        Self { letters: Vec::with_capacity(bytes.min(AT_ONCE * 16)), ends: [0; AT_ONCE], count: 0 }
    }

    /// Where the last ends.
    fn end(&self) -> usize {
        self.ends[..self.count].last().copied().unwrap_or(0)
    }

    fn each(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends);
        self.ends[..self.count].iter().zip(starts).map(|(&end, start)| &self.letters[start..end])
    }
}

/// What a byte is where no token is added.
fn class(byte: u8, lowercase: bool) -> Class {
    match byte {
        b'\t' | b'\n' | b'\r' | b' ' => Class::Space,
        0x80.. => Class::Other,
        _ if byte.is_ascii_control() => Class::Nothing,
        _ if byte.is_ascii_punctuation() => Class::Sign(byte),
        _ if lowercase => Class::Letter(byte.to_ascii_lowercase()),
        _ => Class::Letter(byte),
    }
}
