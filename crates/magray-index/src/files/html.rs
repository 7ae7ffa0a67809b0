//! The text of an HTML page: tags away, entities decoded, a line for each block.
//! Tokenises only: builds no tree, so nesting costs nothing. Scripts and styles are left out.

use html5gum::{DefaultEmitter, Token, Tokenizer};

/// Text and title of a page.
pub(super) fn text(page: &str) -> (String, Option<String>) {
    let mut emitter = DefaultEmitter::<()>::default();
    // Otherwise what stands in a script would be read as tags.
    emitter.naively_switch_states(true);
    let mut writer = Writer::default();
    for token in Tokenizer::new_with_emitter(page, emitter) {
        match token {
            Ok(Token::StartTag(tag)) => writer.open(&tag.name, tag.self_closing),
            Ok(Token::EndTag(tag)) => writer.close(&tag.name),
            Ok(Token::String(text)) => writer.text(&String::from_utf8_lossy(&text)),
            Ok(_) => {}
        }
    }
    let title = writer.title.split_whitespace().collect::<Vec<_>>().join(" ");
    (writer.text.trim().to_owned(), (!title.is_empty()).then_some(title))
}

#[derive(Default)]
struct Writer {
    text: String,
    title: String,
    /// The element whose text goes nowhere, until it ends.
    hidden: Option<Vec<u8>>,
    in_title: bool,
    preformatted: usize,
}

impl Writer {
    fn open(&mut self, tag: &[u8], self_closing: bool) {
        match tag {
            _ if self.hidden.is_some() => {}
            b"script" | b"style" | b"template" | b"noscript" | b"svg" | b"iframe" if !self_closing => {
                self.hidden = Some(tag.to_vec());
            }
            b"title" => self.in_title = true,
            b"pre" => {
                self.break_line(2);
                self.preformatted += 1;
            }
            b"td" | b"th" => self.space(),
            tag => self.break_line(lines_around(tag)),
        }
    }

    fn close(&mut self, tag: &[u8]) {
        match tag {
            _ if self.hidden.is_some() => {
                if self.hidden.as_deref() == Some(tag) {
                    self.hidden = None;
                }
            }
            b"title" => self.in_title = false,
            b"pre" => {
                self.break_line(2);
                self.preformatted = self.preformatted.saturating_sub(1);
            }
            tag => self.break_line(lines_around(tag)),
        }
    }

    fn text(&mut self, text: &str) {
        if self.hidden.is_some() {
            return;
        }
        if self.in_title {
            return self.title.push_str(text);
        }
        if self.preformatted > 0 {
            return self.text.push_str(text);
        }
        for c in text.chars() {
            match c.is_whitespace() {
                true => self.space(),
                false => self.text.push(c),
            }
        }
    }

    fn space(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with([' ', '\n']) {
            self.text.push(' ');
        }
    }

    fn break_line(&mut self, lines: usize) {
        if lines == 0 || self.text.is_empty() {
            return;
        }
        self.text.truncate(self.text.trim_end_matches(' ').len());
        let ended = self.text.len() - self.text.trim_end_matches('\n').len();
        self.text.extend(std::iter::repeat_n('\n', lines.saturating_sub(ended)));
    }
}

/// How many lines end before and after an element.
fn lines_around(tag: &[u8]) -> usize {
    match tag {
        b"p" | b"h1" | b"h2" | b"h3" | b"h4" | b"h5" | b"h6" | b"ul" | b"ol" | b"dl" | b"table" | b"blockquote"
        | b"section" | b"article" | b"figure" | b"hr" => 2,
        b"br" | b"li" | b"tr" | b"div" | b"dt" | b"dd" | b"main" | b"header" | b"footer" | b"nav" | b"aside"
        | b"form" | b"option" | b"caption" | b"figcaption" | b"details" | b"summary" | b"address" | b"body"
        | b"head" => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(page: &str, expected: &str, title: Option<&str>) {
        let (found, found_title) = text(page);
        assert_eq!((found.as_str(), found_title.as_deref()), (expected, title));
    }

    #[test]
    fn tags_go_and_blocks_become_lines() {
        check(
            "<html><head><title>A &amp; B</title><style>p {}</style></head><body><h1>Head</h1><p>One <b>two</b>\n three.\
             <ul><li>x<li>y</ul><script>if (a < b) { '<p>no</p>' }</script>caf&eacute;&#x21;",
            "Head\n\nOne two three.\n\nx\ny\n\ncafé!",
            Some("A & B"),
        );
        check("<table><tr><td>a<td>b<tr><td>c</table>", "a b\nc", None);
        check("<pre>fn x()\n    y</pre>z", "fn x()\n    y\n\nz", None);
    }

    #[test]
    fn broken_pages_give_what_text_they_have() {
        check("a < b <i", "a < b", None);
        check("<<<>>> </p></p> &nope; &#99999999;", "<<<>>>\n\n&nope; \u{fffd}", None);
        check(&"<div>".repeat(100_000), "", None);
        check("<script>never ends", "", None);
    }
}
