//! Tokenizers as GGUF files hold them: a list of tokens with kinds, scores or merges, and the name of a way to split words.
//! Refuses kinds of tokenizers and ways to split that are not known by name; a wrong guess would change ids without a sign.

mod merges;
mod splits;
#[cfg(test)]
mod tests;

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{
    TokenizeError, Vocabulary,
    vocabulary::{VocabularyBuilder, byte_characters},
};

/// Tokens of a file: four times as many as the largest published models have.
const TOKENS_MAX: usize = 1 << 20;

/// Merges of a file.
const MERGES_MAX: usize = 1 << 22;

/// Bytes of a token. Each pair of parts of it is looked for.
const TOKEN_BYTES_MAX: usize = 1 << 10;

/// What a GGUF file says of its tokenizer (`tokenizer.ggml.*`).
#[derive(Clone, Debug)]
pub struct GgufTokenizer<'a> {
    /// The file, for messages.
    pub file: &'a Path,
    /// `gpt2` or `llama`.
    pub model: &'a str,
    /// How words are split.
    pub pre: Option<&'a str>,
    /// The tokens by their ids.
    pub tokens: Vec<&'a str>,
    /// What each token is; none where the file does not say.
    pub kinds: Vec<i64>,
    /// The scores of tokens, for `llama`.
    pub scores: Vec<f32>,
    /// Pairs of tokens that become one, the most important first, for `gpt2`.
    pub merges: Vec<&'a str>,
    /// The token that a text begins with.
    pub begin: Option<u64>,
    /// The token that a text ends with.
    pub end: Option<u64>,
    /// The token for what is not known.
    pub unknown: Option<u64>,
    /// Whether texts begin with `begin`.
    pub add_begin: Option<bool>,
    /// Whether texts end with `end`.
    pub add_end: Option<bool>,
    /// Whether a space goes before a text.
    pub add_space: Option<bool>,
}

// Kinds of tokens, by their numbers in the file.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const BYTE: i64 = 6;

/// The two kinds of tokenizers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Pairs of bytes by a list of merges, as GPT-2 has them.
    Bytes,
    /// Pairs of characters by the scores of what they make, as SentencePiece has them; what has no token becomes bytes.
    Scores,
}

impl GgufTokenizer<'_> {
    fn unusable(&self, reason: impl Into<String>) -> TokenizeError {
        TokenizeError::Unusable { file: self.file.to_owned(), reason: reason.into() }
    }

    fn kind(&self) -> Result<Kind, TokenizeError> {
        match self.model {
            "gpt2" => Ok(Kind::Bytes),
            "llama" => Ok(Kind::Scores),
            other => {
                Err(self.unusable(format!("its kind is '{other}' (tokenizer.ggml.model); gpt2 and llama are known")))
            }
        }
    }

    /// Refuses lists of other lengths than the tokens', and lengths that no real file has.
    fn check(&self) -> Result<Kind, TokenizeError> {
        let kind = self.kind()?;
        let count = self.tokens.len();
        if !(1..=TOKENS_MAX).contains(&count) {
            return Err(self.unusable(format!("it has {count} tokens, and 1 to {TOKENS_MAX} are accepted")));
        }
        if let Some(longest) = self.tokens.iter().map(|token| token.len()).max().filter(|n| *n > TOKEN_BYTES_MAX) {
            return Err(self.unusable(format!("a token has {longest} bytes, and {TOKEN_BYTES_MAX} is the most")));
        }
        if self.merges.len() > MERGES_MAX {
            let merges = self.merges.len();
            return Err(self.unusable(format!("it has {merges} merges, and {MERGES_MAX} is the most")));
        }
        if !self.kinds.is_empty() && self.kinds.len() != count {
            return Err(self.unusable(format!("it has {count} tokens and {} kinds of tokens", self.kinds.len())));
        }
        match kind {
            Kind::Scores if self.scores.len() != count => {
                Err(self.unusable(format!("it has {count} tokens and {} scores", self.scores.len())))
            }
            Kind::Scores if self.scores.iter().any(|score| !score.is_finite()) => {
                Err(self.unusable("a token's score is not a number"))
            }
            Kind::Bytes if self.merges.is_empty() => Err(self.unusable("it has no merges")),
            _ => Ok(kind),
        }
    }

    fn token_kind(&self, id: usize) -> i64 {
        self.kinds.get(id).copied().unwrap_or(1)
    }

    /// Whether the token is looked for in the text before it is split.
    fn is_added(&self, id: usize) -> bool {
        matches!(self.token_kind(id), CONTROL | USER_DEFINED)
    }

    /// The token of an id that the file names for a purpose.
    fn named(&self, id: Option<u64>, purpose: &str) -> Result<(usize, &str), TokenizeError> {
        let id = id.ok_or_else(|| self.unusable(format!("it does not say which token {purpose}")))?;
        let index = usize::try_from(id).ok();
        let token = index.and_then(|index| Some((index, *self.tokens.get(index)?)));
        token.ok_or_else(|| self.unusable(format!("token {id} {purpose}, and it has {}", self.tokens.len())))
    }

    /// The same tokenizer as a `tokenizer.json`.
    pub(super) fn to_json(&self) -> Result<Vec<u8>, TokenizeError> {
        let kind = self.check()?;
        let mut vocab = Map::new();
        for (id, token) in self.tokens.iter().enumerate() {
            // The first of two tokens of the same text is the one that texts become.
            vocab.entry(*token).or_insert_with(|| json!(id));
        }
        let added: Vec<Value> = (0..self.tokens.len())
            .filter(|id| self.is_added(*id))
            .map(|id| {
                json!({"id": id, "content": self.tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": self.token_kind(id) == CONTROL})
            })
            .collect();
        let (normalizer, pre_tokenizer, model, begins) = match kind {
            Kind::Bytes => {
                let pre = self.pre.unwrap_or("default");
                let split = splits::find(pre).ok_or_else(|| {
                    let known = splits::names().join(", ");
                    self.unusable(format!("it splits words like '{pre}' (tokenizer.ggml.pre); the known are {known}"))
                })?;
                // Some vocabularies lack bytes that no text of theirs had. What has no token is left out, as by the makers' libraries.
                let mut beyond = self.tokens.len();
                for character in byte_characters() {
                    vocab.entry(character).or_insert_with(|| {
                        beyond += 1;
                        json!(beyond - 1)
                    });
                }
                let merges: Option<Vec<_>> = self.merges.iter().map(|merge| split_merge(merge)).collect();
                let merges = merges.ok_or_else(|| self.unusable("a merge is not two tokens with a space between"))?;
                let model = json!({"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false,
                    "continuing_subword_prefix": null, "end_of_word_suffix": null, "byte_fallback": false,
                    "ignore_merges": split.whole_words_first, "vocab": vocab, "merges": merges});
                let normalizer = if split.composed { json!({"type": "NFC"}) } else { Value::Null };
                (normalizer, split.pre_tokenizer(), model, split.begins)
            }
            Kind::Scores => {
                let (_, unknown) = self.named(Some(self.unknown.unwrap_or(0)), "is the unknown one")?;
                let merges = merges::by_scores(self).ok_or_else(|| {
                    self.unusable(format!("it has more than {MERGES_MAX} pairs of tokens that make one"))
                })?;
                let model = json!({"type": "BPE", "dropout": null, "unk_token": unknown, "fuse_unk": true,
                    "continuing_subword_prefix": null, "end_of_word_suffix": null, "byte_fallback": true,
                    "ignore_merges": false, "vocab": vocab, "merges": merges});
                let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
                let normalizer = if self.add_space.unwrap_or(true) {
                    json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u{2581}"}, spaces]})
                } else {
                    spaces
                };
                (normalizer, Value::Null, model, true)
            }
        };
        let json = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": self.template(begins)?,
            "decoder": null, "model": model});
        serde_json::to_vec(&json).map_err(|error| self.unusable(error.to_string()))
    }

    /// Which special tokens stand around a text, and between two.
    fn template(&self, begins: bool) -> Result<Value, TokenizeError> {
        let mut specials = Map::new();
        let mut special = |token: Option<(usize, &str)>| match token {
            None => Vec::new(),
            Some((id, token)) => {
                specials.insert(token.to_owned(), json!({"id": token, "ids": [id], "tokens": [token]}));
                vec![json!({"SpecialToken": {"id": token, "type_id": 0}})]
            }
        };
        let begin = match self.add_begin.unwrap_or(begins) {
            true => Some(self.named(self.begin, "begins a text")?),
            false => None,
        };
        let end = match self.add_end.unwrap_or(false) {
            true => Some(self.named(self.end, "ends a text")?),
            false => None,
        };
        let (begin, end) = (special(begin), special(end));
        let text = |name: &str| vec![json!({"Sequence": {"id": name, "type_id": 0}})];
        let single = [begin.clone(), text("A"), end.clone()].concat();
        let pair = [begin.clone(), text("A"), end.clone(), begin, text("B"), end].concat();
        Ok(json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": specials}))
    }

    /// The bytes of each token.
    pub(super) fn vocabulary(&self) -> Result<Vocabulary, TokenizeError> {
        let kind = self.check()?;
        let mut builder = VocabularyBuilder::default();
        for (id, token) in self.tokens.iter().enumerate() {
            let control = self.token_kind(id) == CONTROL;
            match kind {
                _ if self.is_added(id) => builder.push(token.as_bytes(), control),
                Kind::Bytes => builder.push_byte_level(token),
                Kind::Scores if self.token_kind(id) == BYTE => builder.push_named_byte(token),
                Kind::Scores => builder.push(token.replace('\u{2581}', " ").as_bytes(), false),
            }
        }
        Ok(builder.finish())
    }
}

/// The two tokens of a merge: tokens begin with no space, so that the first one behind a letter stands between them.
fn split_merge(merge: &str) -> Option<(&str, &str)> {
    let first = merge.chars().next()?.len_utf8();
    let space = merge[first..].find(' ')?;
    Some((&merge[..first + space], &merge[first + space + 1..]))
}
