//! Splits documents by the tokens of a model. Each text is tokenised once; parts of it are counted by where tokens begin.
//! Knows no model: the caller tells where the tokens of a segment begin.

use magray_index::files::{Chunk, ChunkSize, split};

/// What models of 256 tokens read whole, with their own tokens and a prompt.
const CHUNK: ChunkSize = ChunkSize { tokens: 220, overlap: 40 };
/// What a model adds to a text.
const ADDED_TOKENS: usize = 16;
/// No model reads less than the tokens of so short a segment, so that none is cut.
const SEGMENT_BYTES: usize = 120;

/// How long the parts of documents are for a model that reads this many tokens.
pub(crate) fn chunk_size(max_tokens: usize) -> ChunkSize {
    let size = readable_size(CHUNK, max_tokens);
    ChunkSize { overlap: size.overlap.min(size.tokens / 4), ..size }
}

/// A size that somebody wants, cut to what a model of this many tokens reads.
pub(crate) fn readable_size(wanted: ChunkSize, max_tokens: usize) -> ChunkSize {
    let tokens = wanted.tokens.min(max_tokens.saturating_sub(ADDED_TOKENS)).max(1);
    ChunkSize { tokens, overlap: wanted.overlap.min(tokens / 2) }
}

/// The parts of a text. `token_starts` tells for each segment at which bytes of it tokens begin.
pub(crate) fn split_by_tokens<E>(
    text: &str,
    size: ChunkSize,
    token_starts: impl FnOnce(&[&str]) -> Result<Vec<Vec<usize>>, E>,
) -> Result<Vec<Chunk>, E> {
    let segments = segments(text);
    let mut starts: Vec<usize> = Vec::new();
    for (segment, own) in segments.iter().zip(token_starts(&segments)?) {
        for start in own {
            // In order, also where a tokenizer does not know a place.
            let last = starts.last().copied().unwrap_or(0);
            starts.push((place(text, segment) + start).max(last));
        }
    }
    let below = |byte: usize| starts.partition_point(|start| *start < byte);
    Ok(split(text, size, |part| below(place(text, part) + part.len()) - below(place(text, part))))
}

/// Where a part of a text begins.
fn place(text: &str, part: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}

/// Short parts that end between words where they can.
fn segments(text: &str) -> Vec<&str> {
    let (mut segments, mut rest) = (Vec::new(), text.trim_start());
    while !rest.is_empty() {
        let most = rest.floor_char_boundary(SEGMENT_BYTES);
        let end = match rest[..most].rfind(char::is_whitespace) {
            Some(space) if most < rest.len() && space > 0 => space,
            _ => most,
        };
        segments.push(rest[..end].trim_end());
        rest = rest[end..].trim_start();
    }
    segments
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    /// A token is two bytes of a word.
    fn starts(segments: &[&str]) -> Result<Vec<Vec<usize>>, Infallible> {
        let of = |segment: &&str| {
            let words = segment.split_whitespace();
            words.flat_map(|word| (0..word.len()).step_by(2).map(|at| place(segment, word) + at)).collect()
        };
        Ok(segments.iter().map(of).collect())
    }

    proptest! {
        #[test]
        fn parts_have_no_more_tokens_than_wanted(text in "([a-zé]{1,150}|[. \n])*", tokens in 4usize..40) {
            let size = ChunkSize { tokens, overlap: tokens / 4 };
            let Ok(chunks) = split_by_tokens(&text, size, starts);
            let mut covered = 0;
            for chunk in &chunks {
                let Ok(counted) = starts(&segments(&text[chunk.range.clone()]));
                // A word that is cut may count one more.
                prop_assert!(counted.iter().map(Vec::len).sum::<usize>() <= tokens + 1);
                prop_assert!(text[covered.min(chunk.range.start)..chunk.range.start].trim().is_empty());
                covered = chunk.range.end;
            }
            prop_assert!(text[covered..].trim().is_empty());
        }
    }

    #[test]
    fn a_model_that_reads_little_gets_short_parts() {
        assert_eq!(chunk_size(8192), CHUNK);
        assert_eq!(chunk_size(64), ChunkSize { tokens: 48, overlap: 12 });
        assert_eq!(chunk_size(0).tokens, 1);
    }
}
