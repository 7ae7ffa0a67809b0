//! Cuts a text into chunks of a number of tokens that overlap, at the ends of paragraphs and sentences where it can.
//! Does not know what a token is: the caller counts them.

use std::ops::Range;

/// How long chunks are, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSize {
    /// The most; at least 1.
    pub tokens: usize,
    /// How much of the end of a chunk the next one repeats, at most. Less than half of `tokens` counts.
    pub overlap: usize,
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Its bytes in the text; without white space at the ends.
    pub range: Range<usize>,
    /// The line of the text on which it begins, from 1.
    pub line: usize,
}

/// The chunks of a text in order. Together they hold all of it but white space.
pub fn split(text: &str, size: ChunkSize, count: impl Fn(&str) -> usize) -> Vec<Chunk> {
    let tokens_max = size.tokens.max(1);
    // Pieces well below the size of a chunk fill it better, and overlap better.
    let piece_max = tokens_max.div_ceil(4);
    let mut pieces = Vec::new();
    for (range, border) in borders(text) {
        cut(text, range, border, piece_max, &count, &mut pieces);
    }
    let overlap_max = size.overlap.min(tokens_max / 2);
    let mut chunks = Vec::new();
    let (mut start, mut end, mut line, mut counted) = (0, 0, 1, 0);
    while end < pieces.len() {
        // Where the overlap leaves no room for anything new there is none.
        let next = chunk_end(text, &pieces, start..end, tokens_max, &count);
        let Some(next) = next else {
            start = end;
            continue;
        };
        end = next;
        let range = pieces[start].range.start..pieces[end - 1].range.end;
        line += text[counted..range.start].matches('\n').count();
        counted = range.start;
        chunks.push(Chunk { range, line });
        start = next_start(&pieces, start, end, overlap_max);
    }
    chunks
}

/// How good a place to cut is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Border {
    Inside,
    Line,
    Sentence,
    Paragraph,
}

struct Piece {
    range: Range<usize>,
    tokens: usize,
    /// What comes after it.
    border: Border,
}

/// The index after the last piece of a chunk: as many as fit, fewer if that makes a better end. `overlap` are the pieces that
/// it begins with; `None` if no other fits.
fn chunk_end(
    text: &str,
    pieces: &[Piece],
    overlap: Range<usize>,
    tokens_max: usize,
    count: &impl Fn(&str) -> usize,
) -> Option<usize> {
    let (start, mut end, mut tokens) = (overlap.start, overlap.start, 0);
    let mut sums = vec![0];
    while end < pieces.len() && (end == start || tokens + pieces[end].tokens <= tokens_max) {
        tokens += pieces[end].tokens;
        sums.push(tokens);
        end += 1;
    }
    // Tokens may run across pieces, so their sum need not be that of the whole.
    while end > start + 1 && count(&text[pieces[start].range.start..pieces[end - 1].range.end]) > tokens_max {
        end -= 1;
    }
    if end == pieces.len() {
        return Some(end);
    }
    // A chunk is at least half full, and ends as well as it can.
    let full_enough = |at: &usize| sums[at - start] * 2 >= sums[end - start];
    (overlap.end + 1..=end).filter(full_enough).max_by_key(|at| (pieces[at - 1].border, *at))
}

/// Where the next chunk begins: as early as the overlap allows, and later than the chunk before.
fn next_start(pieces: &[Piece], start: usize, end: usize, overlap_max: usize) -> usize {
    let (mut next, mut tokens) = (end, 0);
    while next > start + 1 && tokens + pieces[next - 1].tokens <= overlap_max {
        next -= 1;
        tokens += pieces[next].tokens;
    }
    next
}

/// The sentences and lines of a text without white space around them, and what comes after each.
fn borders(text: &str) -> Vec<(Range<usize>, Border)> {
    let mut parts: Vec<(Range<usize>, Border)> = Vec::new();
    let (mut start, mut chars) = (0, text.char_indices().peekable());
    let mut push = |range: Range<usize>, border| {
        let part = &text[range.clone()];
        let start = range.start + part.len() - part.trim_start().len();
        let end = start + part.trim().len();
        match parts.last_mut() {
            _ if start < end => parts.push((start..end, border)),
            // A line without text ends a paragraph.
            Some((_, before)) if border == Border::Line && *before != Border::Inside => *before = Border::Paragraph,
            _ => {}
        }
    };
    while let Some((at, c)) = chars.next() {
        let end = at + c.len_utf8();
        let next = chars.peek().map(|(_, next)| *next);
        let border = match c {
            '\n' => Border::Line,
            '。' | '！' | '？' => Border::Sentence,
            '.' | '!' | '?' if next.is_none_or(char::is_whitespace) => Border::Sentence,
            '"' | '\'' | ')' | '”' | '’' if ends_sentence(&text[start..at]) && next.is_none_or(char::is_whitespace) => {
                Border::Sentence
            }
            _ => continue,
        };
        push(start..end, border);
        start = end;
    }
    push(start..text.len(), Border::Paragraph);
    parts
}

fn ends_sentence(text: &str) -> bool {
    text.ends_with(['.', '!', '?'])
}

/// Halves a part until it is small enough, at white space if there is any.
fn cut(
    text: &str,
    range: Range<usize>,
    border: Border,
    piece_max: usize,
    count: &impl Fn(&str) -> usize,
    pieces: &mut Vec<Piece>,
) {
    let part = &text[range.clone()];
    let tokens = count(part);
    let middle = if tokens > piece_max { middle(part) } else { None };
    let Some(middle) = middle else {
        pieces.push(Piece { range, tokens, border });
        return;
    };
    let (first, second) = (part[..middle].trim_end(), part[middle..].trim_start());
    cut(text, range.start..range.start + first.len(), Border::Inside, piece_max, count, pieces);
    cut(text, range.end - second.len()..range.end, border, piece_max, count, pieces);
}

/// Where to cut a part in two: the white space nearest to its middle, or any letter. `None`: it is one letter.
fn middle(part: &str) -> Option<usize> {
    let half = part.floor_char_boundary(part.len() / 2);
    let before = part[..half].rfind(char::is_whitespace);
    let after = part[half..].find(char::is_whitespace).map(|at| half + at);
    let space = match (before, after) {
        (Some(before), Some(after)) => Some(if half - before <= after - half { before } else { after }),
        (before, after) => before.or(after),
    };
    // A long word between spaces that are far away is cut itself.
    let near = space.filter(|at| at.abs_diff(half) <= part.len() / 4);
    near.or_else(|| part.char_indices().map(|(at, _)| at).find(|at| *at >= half.max(1)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(text: &str) -> usize {
        text.split_whitespace().count()
    }

    fn chunks(text: &str, tokens: usize, overlap: usize) -> Vec<&str> {
        split(text, ChunkSize { tokens, overlap }, words).into_iter().map(|chunk| &text[chunk.range]).collect()
    }

    #[test]
    fn chunks_end_with_paragraphs_and_sentences() {
        let text = "One two three. Four five six.\n\nSeven eight nine ten. Eleven twelve thirteen fourteen.";
        assert_eq!(
            chunks(text, 8, 0),
            ["One two three. Four five six.", "Seven eight nine ten. Eleven twelve thirteen fourteen.",]
        );
        assert_eq!(chunks(text, 100, 10), [text]);
    }

    #[test]
    fn the_next_chunk_repeats_the_last_sentence() {
        assert_eq!(chunks("A b c. D e f. G h i. J k l.", 12, 3), ["A b c. D e f. G h i. J k l."]);
        assert_eq!(chunks("A b. C d. E f. G h. I j.", 8, 2), ["A b. C d. E f. G h.", "G h. I j."]);
    }

    #[test]
    fn a_text_without_any_border_is_cut_too() {
        let text = "日".repeat(100);
        let found = split(&text, ChunkSize { tokens: 10, overlap: 2 }, |text| text.chars().count());
        assert!(found.iter().all(|chunk| text[chunk.range.clone()].chars().count() <= 10), "{found:?}");
        assert!(found.len() < 20, "{}", found.len());
    }

    #[test]
    fn chunks_know_their_lines() {
        let found = split("a\n\nb\nc", ChunkSize { tokens: 1, overlap: 0 }, words);
        assert_eq!(found.iter().map(|chunk| chunk.line).collect::<Vec<_>>(), [1, 3, 4]);
        assert!(split(" \n ", ChunkSize { tokens: 1, overlap: 0 }, words).is_empty());
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_no_chunk_is_too_long(
            text in "([a-zé日]{1,9}|[.!?]|[ \n])*", tokens in 0usize..20, overlap in 0usize..30,
        ) {
            // A token is two bytes here, so that words have several.
            let count = |text: &str| text.len().div_ceil(2);
            let found = split(&text, ChunkSize { tokens, overlap }, count);
            let mut covered = 0;
            let mut last = 0;
            for (number, chunk) in found.iter().enumerate() {
                let part = &text[chunk.range.clone()];
                prop_assert!(!part.is_empty() && part.trim() == part);
                prop_assert!(count(part) <= tokens.max(1) || part.chars().count() == 1, "{:?}", part);
                prop_assert!(number == 0 || chunk.range.start > last && chunk.range.end > covered);
                if chunk.range.start > covered {
                    prop_assert!(text[covered..chunk.range.start].trim().is_empty());
                }
                prop_assert_eq!(chunk.line, 1 + text[..chunk.range.start].matches('\n').count());
                (last, covered) = (chunk.range.start, chunk.range.end);
            }
            prop_assert!(text[covered..].trim().is_empty());
        }
    }
}
