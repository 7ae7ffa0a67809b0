//! Passages that a question is answered from, numbered so that the answer can cite them.
//! Finds none and asks no model.

/// Passages that a question is answered from, where nothing else is said.
pub const PASSAGES: usize = 5;

/// The question behind its passages, each with the number that it is cited by.
pub fn with_passages<'a>(passages: impl IntoIterator<Item = &'a str>, question: &str) -> String {
    let mut text = String::new();
    for (number, passage) in (1..).zip(passages) {
        text += &format!("\n[{number}] {}\n", passage.trim());
    }
    if text.is_empty() {
        return question.to_owned();
    }
    let before = "Answer the question from these passages. Cite a passage by its number, as in [1].\n";
    format!("{before}{text}\nQuestion: {question}")
}

/// The beginnings of passages that have this many bytes together at most.
pub fn cut<'a>(passages: impl ExactSizeIterator<Item = &'a mut String>, bytes_max: usize) {
    let each = (bytes_max / passages.len().max(1)).max(1);
    for passage in passages {
        passage.truncate(passage.floor_char_boundary(each));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passages_are_numbered_and_stand_before_the_question() {
        let text = with_passages(["The sky is blue. ", "Grass is green."], "Why?");
        assert!(text.contains("[1] The sky is blue.\n"), "{text}");
        assert!(text.contains("[2] Grass is green.\n") && text.ends_with("\nQuestion: Why?"), "{text}");
        assert_eq!(with_passages([], "Why?"), "Why?");
    }

    #[test]
    fn long_passages_are_cut_at_a_character() {
        let mut passages = ["äöü".to_owned(), "a".to_owned()];
        cut(passages.iter_mut(), 6);
        assert_eq!(passages, ["ä", "a"]);
    }
}
