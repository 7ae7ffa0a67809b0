//! The part of a text that says most about a query, with the query's words marked.
//! Bounded: reads the first part of a long text alone, and returns at most as many characters as asked for.

use std::{collections::BTreeMap, ops::Range};

use unicode_normalization::char::is_combining_mark;

use super::analyzer::Analyzer;

/// A second occurrence of a word in a snippet says less than another word.
const REPEATED: f32 = 0.1;

/// How long a snippet may be, and how much of the text is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnippetLimits {
    /// Characters of the snippet, dots for what was left out not counted.
    pub chars: usize,
    /// Bytes of the text that are searched for the query's words.
    pub text_bytes: usize,
}

impl Default for SnippetLimits {
    fn default() -> Self {
        Self { chars: 200, text_bytes: 1 << 20 }
    }
}

/// A part of a text on one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snippet {
    /// The part, with runs of white space as one space and `…` where something was left out.
    pub text: String,
    /// Bytes of `text` that are words of the query, in order.
    pub marks: Vec<Range<usize>>,
}

impl Snippet {
    /// The text with something before and after each word of the query.
    pub fn marked(&self, before: &str, after: &str) -> String {
        let mut marked = String::with_capacity(self.text.len() + self.marks.len() * (before.len() + after.len()));
        let mut at = 0;
        for mark in &self.marks {
            marked.extend([&self.text[at..mark.start], before, &self.text[mark.clone()], after]);
            at = mark.end;
        }
        marked.push_str(&self.text[at..]);
        marked
    }
}

/// The part of `text` with the most of the terms by weight; its beginning if it has none of them.
pub fn snippet(text: &str, analyzer: &Analyzer, terms: &BTreeMap<String, f32>, limits: SnippetLimits) -> Snippet {
    let text = &text[..text.floor_char_boundary(limits.text_bytes)];
    let matches = find(text, analyzer, terms);
    let best = best_window(&matches, terms.len(), limits.chars);
    let window = widen(text, matches[best.clone()].first().zip(matches[best.clone()].last()), limits.chars);
    on_one_line(text, window, &matches[best.start..])
}

/// A word of the query in the text.
struct Match {
    range: Range<usize>,
    /// Where it is in characters.
    chars: Range<usize>,
    term: usize,
    weight: f32,
}

fn find(text: &str, analyzer: &Analyzer, terms: &BTreeMap<String, f32>) -> Vec<Match> {
    let terms: BTreeMap<&str, (usize, f32)> =
        terms.iter().enumerate().map(|(term, (word, weight))| (word.as_str(), (term, *weight))).collect();
    let (mut bytes, mut chars) = (0, 0);
    let mut matches = Vec::new();
    for word in analyzer.words(text) {
        let Some(&(term, weight)) = terms.get(&*word.term) else { continue };
        let start = chars + text[bytes..word.range.start].chars().count();
        let end = start + text[word.range.clone()].chars().count();
        (bytes, chars) = (word.range.end, end);
        matches.push(Match { range: word.range, chars: start..end, term, weight });
    }
    matches
}

/// Which matches stand best within `chars` characters; the first of equal ones.
fn best_window(matches: &[Match], terms: usize, chars: usize) -> Range<usize> {
    let mut counts = vec![0usize; terms];
    let worth =
        |counts: &[usize], found: &Match| if counts[found.term] == 0 { found.weight } else { found.weight * REPEATED };
    let (mut start, mut sum) = (0, 0f32);
    let (mut best, mut best_sum) = (0..0, 0f32);
    for (end, last) in matches.iter().enumerate() {
        sum += worth(&counts, last);
        counts[last.term] += 1;
        while start < end && last.chars.end - matches[start].chars.start > chars {
            counts[matches[start].term] -= 1;
            sum -= worth(&counts, &matches[start]);
            start += 1;
        }
        // A word longer than a snippet is in none.
        if sum > best_sum && last.chars.end - matches[start].chars.start <= chars {
            (best, best_sum) = (start..end + 1, sum);
        }
    }
    best
}

/// The bytes to show: from the start of a sentence if one is near, else of a word.
fn widen(text: &str, found: Option<(&Match, &Match)>, chars: usize) -> Range<usize> {
    let Some((first, last)) = found else { return 0..word_end(text, 0, right_of(text, 0, chars)) };
    let spare = chars - (last.chars.end - first.chars.start);
    let start = start_near(text, left_of(text, first.range.start, spare / 2), first.range.start);
    let end = right_of(text, start, chars);
    if end == text.len() {
        let from = left_of(text, end, chars);
        return if from == 0 { 0..end } else { start_near(text, from, start)..end };
    }
    start..word_end(text, last.range.end, end)
}

/// Where to begin between `from` and `to`.
fn start_near(text: &str, from: usize, to: usize) -> usize {
    if from == 0 {
        return 0;
    }
    let before = &text[from..to];
    let sentence = before.rmatch_indices(['.', '!', '?', '\n']).find_map(|(at, mark)| {
        let rest = &before[at + mark.len()..];
        let spaces = rest.len() - rest.trim_start().len();
        (mark == "\n" || spaces > 0 || rest.is_empty()).then_some(from + at + mark.len() + spaces)
    });
    let word =
        || before.find(char::is_whitespace).map(|at| from + at + before[at..].len() - before[at..].trim_start().len());
    sentence.or_else(word).unwrap_or(from)
}

/// Where to end between `from` and `to`: at white space, or where no mark is torn from its letter.
fn word_end(text: &str, from: usize, to: usize) -> usize {
    if to == text.len() {
        return to;
    }
    if text[to..].starts_with(char::is_whitespace) {
        return to;
    }
    if let Some(space) = text[from..to].rfind(char::is_whitespace) {
        return from + text[from..from + space].trim_end().len();
    }
    let mut letters = text[from..to].char_indices().rev();
    match text[to..].starts_with(is_combining_mark) {
        true => letters.find(|(_, c)| !is_combining_mark(*c)).map_or(to, |(at, _)| from + at),
        false => to,
    }
}

fn left_of(text: &str, at: usize, chars: usize) -> usize {
    if chars == 0 { at } else { text[..at].char_indices().rev().nth(chars - 1).map_or(0, |(at, _)| at) }
}

fn right_of(text: &str, at: usize, chars: usize) -> usize {
    text[at..].char_indices().nth(chars).map_or(text.len(), |(more, _)| at + more)
}

fn on_one_line(text: &str, window: Range<usize>, matches: &[Match]) -> Snippet {
    let mut snippet = Snippet::default();
    if !text[..window.start].trim_start().is_empty() {
        snippet.text.push('…');
    }
    let (begin, mut at) = (snippet.text.len(), window.start);
    for found in matches.iter().skip_while(|found| found.range.start < window.start) {
        if found.range.end > window.end {
            break;
        }
        push(&mut snippet.text, begin, &text[at..found.range.start]);
        let start = snippet.text.len();
        snippet.text.push_str(&text[found.range.clone()]);
        snippet.marks.push(start..snippet.text.len());
        at = found.range.end;
    }
    push(&mut snippet.text, begin, &text[at..window.end]);
    snippet.text.truncate(snippet.text.trim_end().len().max(begin));
    if !text[window.end..].trim_end().is_empty() {
        snippet.text.push('…');
    }
    snippet
}

/// Appends with runs of white space and control characters as one space, none at the beginning.
fn push(line: &mut String, begin: usize, text: &str) {
    for c in text.chars() {
        match c.is_whitespace() || c.is_control() {
            false => line.push(c),
            true if line.len() == begin || line.ends_with(' ') => {}
            true => line.push(' '),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str, query: &str, chars: usize) -> Snippet {
        let analyzer = Analyzer::default();
        let terms = analyzer.words(query).map(|word| (word.term.into_owned(), 1.0)).collect();
        snippet(text, &analyzer, &terms, SnippetLimits { chars, ..SnippetLimits::default() })
    }

    #[track_caller]
    fn check(text: &str, query: &str, chars: usize, expected: &str) {
        assert_eq!(of(text, query, chars).marked("[", "]"), expected);
    }

    #[test]
    fn words_are_marked_by_their_stems() {
        check("Measuring  the\nconstants.", "constant measurements", 200, "[Measuring] the [constants].");
    }

    #[test]
    fn the_part_with_most_of_the_words_is_shown_from_its_sentence_on() {
        let text = "The dog sleeps. It dreams of nothing at all. A cat and a dog play. Then they rest for hours.";
        check(text, "cat dog", 40, "…A [cat] and a [dog] play. Then they rest for…");
        check(text, "hours", 30, "…Then they rest for [hours].");
        check(text, "dog sleeping", 20, "The [dog] [sleeps]. It…");
    }

    #[test]
    fn a_text_without_the_words_begins_at_its_beginning() {
        check("One two three four", "zebra", 9, "One two…");
        check("One two", "zebra", 9, "One two");
        check("", "zebra", 9, "");
    }

    #[test]
    fn different_words_beat_the_same_word_again() {
        let text = "cat cat cat cat ------------------------------ cat dog";
        check(text, "cat dog", 16, "…[cat] [dog]");
    }

    #[test]
    fn a_letter_keeps_its_marks() {
        let text = "e\u{301}".repeat(10);
        let cut = of(&text, "zebra", 5).text;
        assert_eq!(cut, "e\u{301}e\u{301}…");
    }

    proptest! {
        #[test]
        fn a_snippet_is_bounded_and_its_marks_are_words_of_the_query(
            text in "([a-c]{1,3}|日|e\u{301}|[ .\n\t]){0,80}", query in "[a-c]{1,3} [a-c]{1,3}", chars in 0usize..60,
        ) {
            let found = of(&text, &query, chars);
            prop_assert!(found.text.trim_matches('…').chars().count() <= chars, "{:?}", found);
            let analyzer = Analyzer::default();
            let terms: Vec<_> = analyzer.words(&query).map(|word| word.term.into_owned()).collect();
            for mark in &found.marks {
                let words: Vec<_> = analyzer.words(&found.text[mark.clone()]).collect();
                prop_assert!(words.len() == 1 && terms.contains(&words[0].term.to_string()), "{:?}", found);
            }
            let _ = found.marked("<b>", "</b>");
            // A word that fits is shown.
            let fits = analyzer.words(&text).any(|word| terms.contains(&word.term.to_string()) && text[word.range].chars().count() <= chars);
            prop_assert_eq!(fits, !found.marks.is_empty());
        }
    }
}
