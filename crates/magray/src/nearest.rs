//! The known word that a misspelt one was probably meant to be.
//! Knows no words itself.

/// The nearest of the known words; `None` where none is like it.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_ascii_lowercase();
    let distance = |other: &str| strsim::damerau_levenshtein(&lower, &other.to_ascii_lowercase());
    let (distance, other) = known.map(|other| (distance(other), other)).min()?;
    // A third of the word wrong still reads as a slip; more than that is another word.
    (distance <= (word.chars().count() / 3).max(1)).then_some(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_seen_and_other_words_are_not() {
        let known = || ["threads", "model"].into_iter();
        assert_eq!(nearest("thread", known()), Some("threads"));
        assert_eq!(nearest("MODLE", known()), Some("model"));
        assert_eq!(nearest("gpu", known()), None);
    }
}
