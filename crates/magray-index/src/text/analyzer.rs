//! Turns a text into the terms that are indexed: words, lower case, without stop words, stemmed.
//! Does not guess languages, and knows no dictionaries: scripts without spaces are indexed by single characters.

use std::{borrow::Cow, fmt, ops::Range};

use rust_stemmers::Stemmer;
use unicode_normalization::{UnicodeNormalization, char::is_combining_mark};

use super::{language::Language, stop_words};

/// Longer words are left out: they are encoded data, not words of a question.
const WORD_BYTES_MAX: usize = 128;

/// Cuts texts into terms. Documents and queries must go through equal ones.
pub struct Analyzer {
    language: Option<Language>,
    stemmer: Option<Stemmer>,
    stop_words: Vec<&'static str>,
}

/// A word of a text: its term, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word<'t> {
    /// What is indexed, such as `measur` for `Measurements`.
    pub term: Cow<'t, str>,
    /// The bytes of the text that the term comes from.
    pub range: Range<usize>,
}

impl Analyzer {
    /// With the stop words and the stems of a language, and without single letters; `None` for all words as they are.
    pub fn new(language: Option<Language>) -> Self {
        let stemmer = language.map(|language| Stemmer::create(language.algorithm()));
        Self { language, stemmer, stop_words: language.map(stop_words::of).unwrap_or_default() }
    }

    /// The language whose stop words and stems it uses.
    pub fn language(&self) -> Option<Language> {
        self.language
    }

    /// The terms of a text in their order, stop words left out.
    pub fn words<'t>(&self, text: &'t str) -> impl Iterator<Item = Word<'t>> {
        // In English an apostrophe belongs to the word, and stemming takes `'s` away. Elsewhere it parts an article
        // from its noun.
        let mut scanner = Scanner { text, at: 0, apostrophes: self.language == Some(Language::English) };
        std::iter::from_fn(move || {
            loop {
                let range = scanner.next_word()?;
                if let Some(term) = self.term(&text[range.clone()]) {
                    return Some(Word { term, range });
                }
            }
        })
    }

    /// `None`: a stop word, a single letter or digit (as bm25s has it), or one that is too long.
    fn term<'t>(&self, word: &'t str) -> Option<Cow<'t, str>> {
        if word.len() > WORD_BYTES_MAX {
            return None;
        }
        let lower = lower_case(word);
        if self.language.is_some() && (is_one_letter(&lower) || self.stop_words.binary_search(&lower.as_ref()).is_ok())
        {
            return None;
        }
        let Some(stemmer) = &self.stemmer else { return Some(lower) };
        Some(match lower {
            Cow::Borrowed(word) => stemmer.stem(word),
            Cow::Owned(word) => Cow::Owned(match stemmer.stem(&word) {
                Cow::Borrowed(stem) if stem.len() == word.len() => word,
                stem => stem.into_owned(),
            }),
        })
    }
}

impl Default for Analyzer {
    fn default() -> Self {
        Self::new(Some(Language::English))
    }
}

impl fmt::Debug for Analyzer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Analyzer").field("language", &self.language).finish_non_exhaustive()
    }
}

/// Composed and compatible forms are one (`ﬁ` and `fi`, both ways to write `é`), and so are the cases.
fn lower_case(word: &str) -> Cow<'_, str> {
    if word.is_ascii() {
        return match word.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => Cow::Owned(word.to_ascii_lowercase()),
            false => Cow::Borrowed(word),
        };
    }
    let lower = word.nfkc().collect::<String>().to_lowercase();
    Cow::Owned(if lower.contains('\u{2019}') { lower.replace('\u{2019}', "'") } else { lower })
}

/// Finds words: runs of letters, digits and their marks.
struct Scanner<'t> {
    text: &'t str,
    at: usize,
    apostrophes: bool,
}

impl Scanner<'_> {
    fn next_word(&mut self) -> Option<Range<usize>> {
        let rest = &self.text[self.at..];
        let start = self.at + rest.find(char::is_alphanumeric)?;
        let mut chars = self.text[start..].char_indices().peekable();
        let (mut end, mut alone) = (start, false);
        while let Some((at, c)) = chars.next() {
            let single = stands_alone(c);
            let belongs = match c {
                _ if alone || (single && at > 0) => is_combining_mark(c),
                '\'' | '\u{2019}' if self.apostrophes => chars.peek().is_some_and(|(_, next)| next.is_alphabetic()),
                c => c.is_alphanumeric() || is_combining_mark(c),
            };
            if !belongs {
                break;
            }
            alone |= single;
            end = start + at + c.len_utf8();
        }
        self.at = end;
        Some(start..end)
    }
}

fn is_one_letter(word: &str) -> bool {
    let mut chars = word.chars();
    matches!((chars.next(), chars.next()), (Some(letter), None) if !stands_alone(letter))
}

/// Characters of scripts that put no spaces between words: each is a word.
fn stands_alone(c: char) -> bool {
    matches!(c,
        '\u{0e00}'..='\u{0eff}'     // Thai, Lao
        | '\u{1000}'..='\u{109f}'   // Myanmar
        | '\u{1780}'..='\u{17ff}'   // Khmer
        | '\u{3040}'..='\u{309f}'   // Hiragana
        | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}' // Han
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn terms(language: Option<Language>, text: &str) -> Vec<String> {
        Analyzer::new(language).words(text).map(|word| word.term.into_owned()).collect()
    }

    #[track_caller]
    fn check(language: Option<Language>, text: &str, expected: &[&str]) {
        assert_eq!(terms(language, text), expected, "{text:?}");
    }

    #[test]
    fn words_are_lower_case_without_stop_words_and_stemmed() {
        check(
            Some(Language::English),
            "The Measurements of dielectric CONSTANTS, by x-rays.",
            &["measur", "dielectr", "constant", "ray"],
        );
        check(Some(Language::German), "Die Häuser und der Garten", &["haus", "gart"]);
        check(Some(Language::French), "l'avion des ingénieurs", &["avion", "ingénieur"]);
        check(None, "The foo_bar v2.0", &["the", "foo", "bar", "v2", "0"]);
    }

    #[test]
    fn apostrophes_belong_to_english_words_alone() {
        check(Some(Language::English), "the dog's 'bone' isn\u{2019}t", &["dog", "bone", "isn't"]);
        check(None, "dog's", &["dog", "s"]);
    }

    #[test]
    fn two_ways_to_write_a_letter_are_one_term() {
        assert_eq!(terms(None, "caf\u{e9}"), terms(None, "CAFE\u{301}"));
        assert_eq!(terms(None, "\u{fb01}sh \u{ff21}"), ["fish", "a"]);
    }

    #[test]
    fn scripts_without_spaces_are_cut_into_characters() {
        check(None, "日本語abc カタカナ", &["日", "本", "語", "abc", "カタカナ"]);
    }

    #[test]
    fn encoded_data_is_left_out() {
        check(None, &format!("a {} b", "x".repeat(WORD_BYTES_MAX + 1)), &["a", "b"]);
    }

    proptest! {
        #[test]
        fn any_text_is_analysed_and_its_ranges_are_words_of_it(text in "\\PC{0,60}", which in 0..=Language::ALL.len()) {
            let analyzer = Analyzer::new(Language::ALL.get(which).copied());
            let mut end = 0;
            for word in analyzer.words(&text) {
                prop_assert!(word.range.start >= end && word.range.end > word.range.start);
                prop_assert!(text[word.range.clone()].starts_with(char::is_alphanumeric));
                end = word.range.end;
            }
        }
    }
}
