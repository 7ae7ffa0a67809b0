//! Turns texts into token ids. The tokenizers crate is used in this folder only.
//! Never pads, ignores the truncation that a tokenizer's file asks for, never returns more tokens than the model reads.

mod canonical;
mod gguf;
mod offsets;
mod pieces;
mod plain_words;
mod spelling;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

pub use gguf::GgufTokenizer;
use plain_words::PlainWords;
pub use spelling::SpelledToken;
pub use vocabulary::Vocabulary;
#[cfg(feature = "testing")]
pub(crate) use vocabulary::byte_characters;

use tokenizers::pipeline::{EncodeOptions, Override, PipelineToken, PipelineTokenizer, Template};

use crate::{
    bounded_file::{self, TOKENIZER_BYTES_MAX},
    pause,
    spec::ModelSpec,
};

/// Why a tokenizer cannot be used, or a text not be read with it.
#[derive(Debug, thiserror::Error)]
pub enum TokenizeError {
    /// There is no tokenizer.
    #[error("'{}' does not exist: the model needs its tokenizer in this form; save it again with a fast tokenizer", file.display())]
    Missing {
        /// The file that was looked for.
        file: PathBuf,
    },
    /// The file cannot be read.
    #[error("cannot read '{}': {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The file describes no tokenizer, or one of a kind that is not known.
    #[error("'{}' is not a tokenizer that can be used: {reason}", file.display())]
    Unusable {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The model reads so few tokens that a text has no room beside the special ones.
    #[error("the model reads {max_tokens} tokens and its tokenizer adds {added}: there is no room for a text")]
    NoRoom {
        /// What the model reads.
        max_tokens: usize,
        /// The special tokens.
        added: usize,
    },
    /// The tokenizer belongs to another model.
    #[error("'{}' made the token id {id} and the model knows {vocab}: they are of different models", file.display())]
    BeyondVocabulary {
        /// The tokenizer's file.
        file: PathBuf,
        /// The id.
        id: u32,
        /// How many ids the model knows.
        vocab: usize,
    },
    /// The tokenizer could not read this text.
    #[error("a text cannot be turned into tokens: {reason}")]
    Failed {
        /// What the tokenizer says.
        reason: String,
    },
}

/// A text, or a pair of texts, as the model reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The token ids, special tokens included.
    pub ids: Vec<u32>,
    /// Which text of a pair each token belongs to; as many as `ids`.
    pub type_ids: Vec<u32>,
    /// Whether the text was longer than the model reads.
    pub truncated: bool,
}

/// A model's tokenizer, cut to the length that the model reads.
pub struct Tokenizer {
    file: PathBuf,
    pipeline: PipelineTokenizer,
    /// A faster path for most texts of most models.
    plain: Option<PlainWords>,
    options: EncodeOptions,
    max_tokens: usize,
    vocab: usize,
    /// Whether ids from `vocab` on stand for bytes that have no token, and are left out.
    leaves_out: bool,
}

/// Texts of a batch that a thread takes at once: enough to make the taking cheap.
const BLOCK_TEXTS: usize = 32;

/// Bytes of text that are worth a thread: it takes some tens of microseconds to start one.
const BYTES_A_THREAD: usize = 32 << 10;

/// Bytes of the first try for each token that can be kept. Real text has 3 to 6 bytes a token.
const WINDOW_BYTES_A_TOKEN: usize = 32;

/// Tokens at the end of a shortened text that are thrown away, because they could be others in the whole text.
///
/// A word cut in two has at most 100 WordPiece tokens (longer words are unknown as a whole). BPE and Unigram have no
/// such bound, but what they make of a stretch depends on a few pieces around it, and a piece is a few letters.
const MARGIN_TOKENS: usize = 256;

/// Bytes of a text that are looked at in search of enough tokens. So much text with so few tokens is no language, but
/// spaces or signs that the vocabulary does not know, and those cost time and memory too.
const MAX_WINDOW_BYTES: usize = 1 << 20;

impl Tokenizer {
    /// Opens `tokenizer.json` in this folder for a model that reads this many tokens.
    pub fn open(dir: &Path, max_tokens: usize) -> Result<Self, TokenizeError> {
        Self::read(dir, max_tokens, false, usize::MAX)
    }

    /// Opens the tokenizer of this model.
    pub fn for_model(spec: &ModelSpec) -> Result<Self, TokenizeError> {
        Self::read(&spec.encoder_folder, spec.max_tokens, spec.lowercase, spec.shape.vocab)
    }

    fn read(dir: &Path, max_tokens: usize, lowercase: bool, vocab: usize) -> Result<Self, TokenizeError> {
        let file = dir.join("tokenizer.json");
        let json = bounded_file::read(&file, TOKENIZER_BYTES_MAX).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => TokenizeError::Missing { file: file.clone() },
            _ => TokenizeError::Unreadable { file: file.clone(), source },
        })?;
        Self::of(file, &json, max_tokens, lowercase, vocab)
    }

    /// The tokenizer of a GGUF file, for a model that reads this many tokens, and the bytes of its tokens.
    pub fn from_gguf(source: &GgufTokenizer<'_>, max_tokens: usize) -> Result<(Self, Vocabulary), TokenizeError> {
        let tokenizer = Self::of(source.file.to_owned(), &source.to_json()?, max_tokens, false, source.tokens.len())?;
        let tokenizer = Self { leaves_out: true, ..tokenizer };
        Ok((tokenizer, source.vocabulary()?))
    }

    fn of(file: PathBuf, json: &[u8], max_tokens: usize, lowercase: bool, vocab: usize) -> Result<Self, TokenizeError> {
        let unusable = |reason: String| TokenizeError::Unusable { file: file.clone(), reason };
        let json = canonical::rewrite(json, lowercase).map_err(|e| unusable(e.to_string()))?;
        let pipeline = tokenizers::from_json(&json).map_err(|e| unusable(e.to_string()))?;
        let added = pipeline.get_post_processor().single.n_special();
        if max_tokens <= added {
            return Err(TokenizeError::NoRoom { max_tokens, added });
        }
        // Special tokens and truncation are done below, where it is known how much was cut.
        let options = EncodeOptions {
            add_special_tokens: false,
            encode_special_tokens: false,
            padding: Override::Off,
            truncation: Override::Off,
        };
        Ok(Self { file, pipeline, plain: PlainWords::of(&json), options, max_tokens, vocab, leaves_out: false })
    }

    /// The longest text in tokens, special tokens included.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// The tokens of one text.
    pub fn encode(&self, text: &str) -> Result<Encoded, TokenizeError> {
        let template = &self.pipeline.get_post_processor().single;
        let room = self.max_tokens - template.n_special();
        let (ids, truncated) = self.first_tokens(text, room)?;
        let kept = ids.len().min(room);
        self.checked(assemble(template, &ids[..kept], &[], truncated))
    }

    /// The tokens of a text without those that stand around every text: it has its special tokens itself.
    pub fn encode_bare(&self, text: &str) -> Result<Encoded, TokenizeError> {
        let (mut ids, truncated) = self.first_tokens(text, self.max_tokens)?;
        ids.truncate(self.max_tokens);
        self.checked(Encoded { type_ids: vec![0; ids.len()], ids, truncated })
    }

    /// The tokens of two texts that are read together. Where both do not fit, the longer one is cut first.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<Encoded, TokenizeError> {
        let template = &self.pipeline.get_post_processor().pair;
        let added = template.n_special();
        let Some(room) = self.max_tokens.checked_sub(added).filter(|&room| room > 0) else {
            return Err(TokenizeError::NoRoom { max_tokens: self.max_tokens, added });
        };
        let ((a, more_a), (b, more_b)) = (self.first_tokens(first, room)?, self.first_tokens(second, room)?);
        let (kept_a, kept_b) = share_room(a.len(), b.len(), room);
        let truncated = more_a || more_b || kept_a < a.len() || kept_b < b.len();
        self.checked(assemble(template, &a[..kept_a], &b[..kept_b], truncated))
    }

    /// The tokens of many texts, in their order, made by at most this many threads.
    pub fn encode_batch<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        threads: usize,
    ) -> Result<Vec<Encoded>, TokenizeError> {
        let bytes = texts.iter().map(|text| text.as_ref().len()).sum();
        in_blocks(texts, bytes, threads, |text| self.encode(text.as_ref()))
    }

    /// The tokens of many pairs, in their order, made by at most this many threads.
    pub fn encode_pairs<A, B>(&self, pairs: &[(A, B)], threads: usize) -> Result<Vec<Encoded>, TokenizeError>
    where
        A: AsRef<str> + Sync,
        B: AsRef<str> + Sync,
    {
        let bytes = pairs.iter().map(|(a, b)| a.as_ref().len() + b.as_ref().len()).sum();
        in_blocks(pairs, bytes, threads, |(a, b)| self.encode_pair(a.as_ref(), b.as_ref()))
    }

    /// How many tokens at the start of a text belong to this prompt before it, with the special tokens that
    /// stand first: those that pooling leaves out for a model that does not pool its prompt.
    pub fn prompt_tokens(&self, prompt: &str) -> Result<usize, TokenizeError> {
        let template = &self.pipeline.get_post_processor().single;
        let room = self.max_tokens - template.n_special();
        Ok(template.prefix.len() + self.first_tokens(prompt, room)?.0.len().min(room))
    }

    /// The first `room` tokens of a text or somewhat more, and whether there are more than `room`.
    ///
    /// They are exactly those of the whole text, though a text far longer than the model reads is not read to its end,
    /// so that the work grows with what is kept. The one exception is a text whose first [`MAX_WINDOW_BYTES`] hold
    /// fewer tokens than the model reads: it ends there.
    fn first_tokens(&self, text: &str, room: usize) -> Result<(Vec<u32>, bool), TokenizeError> {
        let enough = room.saturating_add(MARGIN_TOKENS);
        let mut window = enough.saturating_mul(WINDOW_BYTES_A_TOKEN);
        while window < text.len() {
            let mut ids = self.all_tokens(shorten(text, window))?;
            if ids.len() > enough {
                ids.truncate(ids.len() - MARGIN_TOKENS);
                return Ok((ids, true));
            }
            if window >= MAX_WINDOW_BYTES {
                return Ok((ids, true));
            }
            window = window.saturating_mul(4).min(MAX_WINDOW_BYTES);
        }
        let ids = self.all_tokens(text)?;
        let more = ids.len() > room;
        Ok((ids, more))
    }

    fn all_tokens(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 1);
        if self.plain.as_ref().and_then(|plain| plain.encode(text, &mut ids)).is_some() {
            return Ok(ids);
        }
        self.any_tokens(text)
    }

    /// The tokens of any text, by the general path.
    fn any_tokens(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        let mut tokens = Vec::with_capacity(text.len() / 4 + 1);
        let encoded = self.pipeline.encode_into(text, &self.options, &mut tokens);
        encoded.map_err(|e| TokenizeError::Failed { reason: e.to_string() })?;
        let mut ids = PipelineToken::cast_slice(&tokens).to_vec();
        if self.leaves_out {
            ids.retain(|id| (*id as usize) < self.vocab);
        }
        Ok(ids)
    }

    /// The text, if the model knows all its tokens.
    fn checked(&self, encoded: Encoded) -> Result<Encoded, TokenizeError> {
        match encoded.ids.iter().max() {
            Some(&id) if id as usize >= self.vocab => {
                Err(TokenizeError::BeyondVocabulary { file: self.file.clone(), id, vocab: self.vocab })
            }
            _ => Ok(encoded),
        }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("file", &self.file)
            .field("max_tokens", &self.max_tokens)
            .finish_non_exhaustive()
    }
}

/// The text up to a space at or before byte `end`, or to the character there when no word ends near it.
///
/// The space itself is left to the rest: tokenizers that keep it put it at the front of the next word.
fn shorten(text: &str, end: usize) -> &str {
    let head = &text[..text.floor_char_boundary(end)];
    let words = head.rfind(' ').map_or("", |space| head[..space].trim_end_matches(' '));
    if words.len() >= head.len() / 2 { words } else { head }
}

/// How many tokens of each text fit into `room`, taking from the longer until they are equal.
fn share_room(a: usize, b: usize, room: usize) -> (usize, usize) {
    if a + b <= room {
        return (a, b);
    }
    let (short, long) = (a.min(b), a.max(b));
    let (short, long) = if short <= room / 2 { (short, long.min(room - short)) } else { (room / 2, room - room / 2) };
    if a <= b { (short, long) } else { (long, short) }
}

/// Puts the special tokens around one text or between two.
fn assemble(template: &Template, a: &[u32], b: &[u32], truncated: bool) -> Encoded {
    let length = template.n_special() + a.len() + b.len();
    let mut encoded = Encoded { ids: Vec::with_capacity(length), type_ids: Vec::with_capacity(length), truncated };
    let special = |encoded: &mut Encoded, run: &[(PipelineToken, u8)]| {
        encoded.ids.extend(run.iter().map(|(token, _)| token.id()));
        encoded.type_ids.extend(run.iter().map(|(_, type_id)| u32::from(*type_id)));
    };
    let text = |encoded: &mut Encoded, ids: &[u32], type_id: u8| {
        encoded.ids.extend_from_slice(ids);
        encoded.type_ids.resize(encoded.ids.len(), u32::from(type_id));
    };
    special(&mut encoded, &template.prefix);
    text(&mut encoded, a, template.a_type_id);
    special(&mut encoded, &template.infix);
    text(&mut encoded, b, template.b_type_id.unwrap_or(0));
    special(&mut encoded, &template.suffix);
    encoded
}

/// Encodes all items, on as many threads as their bytes are worth; the first error wins.
fn in_blocks<T: Sync>(
    items: &[T],
    bytes: usize,
    threads: usize,
    encode: impl Fn(&T) -> Result<Encoded, TokenizeError> + Sync,
) -> Result<Vec<Encoded>, TokenizeError> {
    let threads = threads.min(bytes / BYTES_A_THREAD).min(items.len().div_ceil(BLOCK_TEXTS));
    if threads <= 1 {
        let encode = |item: &T| {
            pause::point();
            encode(item)
        };
        return items.iter().map(encode).collect();
    }
    let mut done = vec![Encoded::default(); items.len()];
    let blocks = Mutex::new(items.chunks(BLOCK_TEXTS).zip(done.chunks_mut(BLOCK_TEXTS)));
    let work = || {
        loop {
            let taken = blocks.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((items, room)) = taken else { return Ok(()) };
            for (item, encoded) in items.iter().zip(room) {
                *encoded = encode(item)?;
            }
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut outcome = work();
        for other in others {
            match other.join() {
                Ok(theirs) => outcome = outcome.and(theirs),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        outcome
    })?;
    Ok(done)
}
