//! The text of tokens as they come: whole characters, up to a text that ends it.
//! Holds back what may still become part of a character or of such a text.

/// Puts a text together.
#[derive(Clone, Debug, Default)]
pub struct TextBuilder {
    /// Texts that end it, none of them empty.
    stops: Vec<String>,
    /// Bytes that are no whole character yet.
    bytes: Vec<u8>,
    /// Text that may be the beginning of one that ends it.
    held: String,
    /// The text that ended it, by its place among them.
    ended_by: Option<usize>,
}

impl TextBuilder {
    /// A text that ends before any of these.
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { stops, ..Self::default() }
    }

    /// Whether a text came that ends it.
    pub fn has_ended(&self) -> bool {
        self.ended_by.is_some()
    }

    /// The text that ended it.
    pub fn ended_by(&self) -> Option<&str> {
        self.stops.get(self.ended_by?).map(String::as_str)
    }

    /// Takes the bytes of a token; gives what is certain by now.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.bytes.extend_from_slice(bytes);
        let mut whole = 0;
        for chunk in self.bytes.utf8_chunks() {
            let is_last = whole + chunk.valid().len() + chunk.invalid().len() == self.bytes.len();
            self.held.push_str(chunk.valid());
            whole += chunk.valid().len();
            let is_unfinished = is_last && is_beginning(chunk.invalid());
            if !chunk.invalid().is_empty() && !is_unfinished {
                self.held.push(char::REPLACEMENT_CHARACTER);
                whole += chunk.invalid().len();
            }
        }
        self.bytes.drain(..whole);
        self.release()
    }

    /// Gives what was held back.
    pub fn finish(&mut self) -> String {
        if self.has_ended() {
            return String::new();
        }
        if !std::mem::take(&mut self.bytes).is_empty() {
            self.held.push(char::REPLACEMENT_CHARACTER);
        }
        std::mem::take(&mut self.held)
    }

    fn release(&mut self) -> String {
        if self.has_ended() {
            self.held.clear();
            return String::new();
        }
        let found =
            self.stops.iter().enumerate().filter_map(|(stop, text)| Some((self.held.find(text.as_str())?, stop)));
        if let Some((at, stop)) = found.min() {
            self.ended_by = Some(stop);
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let may_begin = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let first = self.held.ceil_char_boundary(self.held.len().saturating_sub(longest));
        let places = self.held[first..].char_indices().map(|(at, _)| first + at);
        let kept = places.into_iter().find(may_begin).unwrap_or(self.held.len());
        let held = self.held.split_off(kept);
        std::mem::replace(&mut self.held, held)
    }
}

/// Whether more bytes could make a character of these.
fn is_beginning(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(stops: &[&str], pieces: &[&[u8]]) -> (Vec<String>, bool) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut builder = TextBuilder::new(&stops);
        let mut texts: Vec<String> = pieces.iter().map(|piece| builder.push(piece)).collect();
        texts.push(builder.finish());
        (texts, builder.has_ended())
    }

    #[test]
    fn characters_come_whole() {
        assert_eq!(all(&[], &["h".as_bytes(), &[0xc3], &[0xa9], b"!"]).0, ["h", "", "\u{e9}", "!", ""]);
        assert_eq!(all(&[], &[&[0xc3], b"a", &[0xff], b"b"]).0, ["", "\u{fffd}a", "\u{fffd}", "b", ""]);
        assert_eq!(all(&[], &[b"a", &[0xe4, 0xbd]]).0, ["a", "", "\u{fffd}"]);
    }

    #[test]
    fn what_may_end_the_text_is_held_back() {
        let found = all(&["\n\nUser:"], &[b"yes\n", b"\nUs", b"er: hi", b"more"]);
        assert_eq!(found, (vec!["yes".into(), String::new(), String::new(), String::new(), String::new()], true));
        let (texts, has_ended) = all(&["###"], &[b"a#", b"#b", b"##"]);
        assert_eq!((texts.concat(), has_ended), ("a##b##".to_owned(), false));
        assert_eq!(texts[1], "##b");
        assert_eq!(all(&["", "b"], &[b"abc"]), (vec!["a".into(), String::new()], true));
        let mut builder = TextBuilder::new(&["c".to_owned(), "b".to_owned()]);
        assert_eq!((builder.push(b"abc").as_str(), builder.ended_by()), ("a", Some("b")));
    }

    proptest! {
        #[test]
        fn however_it_is_cut_the_text_is_the_same(text in "[ab\u{e9}\u{4f60}]{0,12}", cuts in prop::collection::vec(1usize..4, 1..8)) {
            let mut builder = TextBuilder::new(&["aab".to_owned(), "\u{e9}b".to_owned()]);
            let (mut bytes, mut made, mut cuts) = (text.as_bytes(), String::new(), cuts.iter().cycle());
            while !bytes.is_empty() {
                let (piece, rest) = bytes.split_at((*cuts.next().unwrap()).min(bytes.len()));
                made += &builder.push(piece);
                bytes = rest;
            }
            made += &builder.finish();
            let end = ["aab", "\u{e9}b"].iter().filter_map(|stop| text.find(stop)).min();
            prop_assert_eq!(made, &text[..end.unwrap_or(text.len())]);
            prop_assert_eq!(builder.has_ended(), end.is_some());
        }
    }
}
