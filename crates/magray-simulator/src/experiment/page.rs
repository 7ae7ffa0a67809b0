//! Tables of a page, in Markdown.
//! Knows nothing of what the figures mean.

use super::figures::Spread;

pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let rule: Vec<String> = head.iter().map(|_| "---".to_owned()).collect();
    let mut text = line(&head) + &line(&rule).replace(' ', "");
    for row in rows {
        assert_eq!(row.len(), head.len(), "a row has the cells of the head");
        text += &line(row);
    }
    text
}

/// A number with about three figures.
pub(super) fn short(number: f64) -> String {
    match number.abs() {
        n if n >= 100.0 => format!("{number:.0}"),
        n if n >= 10.0 => format!("{number:.1}"),
        n if n >= 1.0 => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}

/// A figure with the spread between seeds.
pub(super) fn with_spread(spread: Spread) -> String {
    format!("{} ± {}", short(spread.mean), short(spread.deviation))
}

/// By how much one figure is below another.
pub(super) fn less(ours: f64, theirs: f64) -> String {
    match theirs > 0.0 {
        true => format!("{:.0} %", (1.0 - ours / theirs) * 100.0),
        false => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_row() {
        let text = table(&["a", "b"], &[vec!["1".to_owned(), "2".to_owned()]]);
        assert_eq!(text, "| a | b |\n|---|---|\n| 1 | 2 |\n");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(short(1234.5), "1234");
        assert_eq!(short(0.01234), "0.012");
        assert_eq!(less(25.0, 100.0), "75 %");
        assert_eq!(less(1.0, 0.0), "-");
    }
}
