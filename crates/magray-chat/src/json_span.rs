//! Finds where a JSON object or array ends in a text that still grows.
//! Checks only strings and brackets; whether it is JSON is found out when it has ended.

/// How far the text was looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct JsonSpan {
    scanned: usize,
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
    end: Option<usize>,
}

impl JsonSpan {
    /// The end of the value that begins at the start of this text, which is the text of the last call or a longer one.
    pub(crate) fn find_end(&mut self, text: &str) -> Option<usize> {
        if self.end.is_some() {
            return self.end;
        }
        for (at, byte) in text.bytes().enumerate().skip(self.scanned) {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.is_in_string => self.is_escaped = true,
                b'"' => self.is_in_string = !self.is_in_string,
                _ if self.is_in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            if self.depth == 0 && !self.is_in_string {
                self.end = Some(at + 1);
                break;
            }
        }
        self.scanned = text.len();
        self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_found_byte_by_byte_too() {
        let text = r#"{"a": ["}", "\"]", {"b": "é"}]} and more"#;
        let end = text.find(" and").expect("it is there");
        assert_eq!(JsonSpan::default().find_end(text), Some(end));
        let mut span = JsonSpan::default();
        for (at, _) in text.char_indices() {
            assert_eq!(span.find_end(&text[..at]), (at >= end).then_some(end));
        }
    }
}
