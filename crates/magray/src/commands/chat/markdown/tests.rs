//! Tests of Markdown on a terminal: what is shown, how lines break, any pieces.

use super::*;
use proptest::prelude::*;
use unicode_width::UnicodeWidthStr;

fn render(columns: usize, pieces: &[&str]) -> String {
    let mut markdown = Markdown::new(columns);
    let mut shown: String = pieces.iter().map(|piece| markdown.push(piece)).collect();
    shown += &markdown.finish();
    shown
}

/// The text with signs for styles.
fn check(text: &str, expected: &str) {
    let shown = render(40, &[text]);
    let shown = shown.replace(RESET, "~").replace(BOLD, "B").replace(ITALIC, "I").replace(CODE, "C");
    assert_eq!(shown.trim_end_matches('~'), expected, "{text:?}");
}

fn plain(shown: &str) -> String {
    [RESET, BOLD, ITALIC, CODE, DIM].iter().fold(shown.to_owned(), |shown, sign| shown.replace(sign, ""))
}

#[test]
fn styles_and_blocks_are_shown() {
    check("a **b c** d", "a ~Bb c~ d\n");
    check("a *b* and 2 * 3 * 4 snake_case_x", "a ~Ib~ and 2 * 3 * 4 snake_case_x\n");
    check("use `a * b` now", "use ~Ca * b~ now\n");
    check("## Title\ntext", "~BTitle~\ntext\n");
    check("#no heading", "#no heading\n");
    check("- one\n- two\n  1. three\n> said", "\u{2022} one\n\u{2022} two\n  1. three\n\u{2502} said\n");
    check("```rust\nfn **x**() {}\n\n```\nafter", "~C  fn **x**() {}\n\n~after\n");
    check("a \\*star\\* and C:\\dir", "a *star* and C:\\dir\n");
    check("5\n12. x\n2024 was", "5\n12. x\n2024 was\n");
    check("-5 and --- and *", "-5 and --- and *\n");
    check("**never closed\nnext", "~Bnever closed~\nnext\n");
    check("", "");
}

#[test]
fn lines_break_between_words_and_items_are_indented() {
    let text = "- one two three four five six seven eight nine";
    assert_eq!(plain(&render(24, &[text])), "\u{2022} one two three four\n  five six seven eight\n  nine\n");
    assert_eq!(plain(&render(24, &["x".repeat(50).as_str()])).lines().count(), 3);
    let wide = "\u{65e5}\u{672c}\u{8a9e}".repeat(10);
    assert!(plain(&render(24, &[&wide])).lines().all(|line| line.width() <= 24));
}

#[test]
fn control_characters_never_reach_the_terminal() {
    let shown = plain(&render(80, &["a\u{1b}[2Jb\u{7}c\u{9b}31md\re\u{0}"]));
    assert_eq!(shown, "a[2Jbc31mde\n");
}

#[test]
fn words_are_shown_as_they_come() {
    let mut markdown = Markdown::new(80);
    assert_eq!(markdown.push("Hello wor"), "Hello");
    assert_eq!(markdown.push("ld, how"), " world,");
}

proptest! {
    #[test]
    fn no_line_is_wider_than_the_terminal(text in "[a-z *`#>.0-9\n\u{e9}\u{65e5}-]{0,200}", columns in 20usize..100) {
        for line in plain(&render(columns, &[&text])).lines() {
            prop_assert!(line.width() <= columns, "{line:?}");
        }
    }

    #[test]
    fn any_pieces_show_the_same(text in "[a-z *`#>.0-9\n\\\\\u{e9}-]{0,80}", cuts in prop::collection::vec(0usize..80, 0..8)) {
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| text.is_char_boundary(*cut)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&str> = cuts.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect();
        prop_assert_eq!(render(40, &pieces), render(40, &[&text]));
    }
}
