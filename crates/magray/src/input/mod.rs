//! Texts to embed, one at a time or in bounded windows, from the command line, files or stdin.
//! Never holds more than a window of them, never joins lines, drops none without saying so.

mod error;
mod json_lines;
mod lines;
mod source;

use std::{ffi::OsString, path::PathBuf};

pub(crate) use error::{InputError, InputName};
use source::Source;

/// A window is embedded at once: long enough to keep all threads busy, small enough to stay cheap in memory.
const WINDOW_TEXTS: usize = 2048;
const WINDOW_BYTES: usize = 8 << 20;

#[derive(Debug, PartialEq)]
pub(crate) struct Text {
    pub(crate) text: String,
    /// The `id` of a JSON line, given back with the answer.
    pub(crate) id: Option<serde_json::Value>,
    /// Which of the inputs it comes from.
    pub(crate) input: usize,
    /// Its line in the input, or its place on the command line, from 1.
    pub(crate) line: u64,
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A line is a text; an empty line is an empty text, so that answers stay in step with lines.
    Plain,
    /// A line is a JSON value; blank lines are passed over.
    JsonLines,
}

/// What becomes of a line that is no text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OnError {
    /// It ends the command.
    #[default]
    Stop,
    /// It is named, counted and left out.
    Skip,
}

/// How lines become texts.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// Of inputs whose name does not say it.
    pub(crate) form: Form,
    /// The field of a JSON object that holds the text.
    pub(crate) text_field: String,
    pub(crate) text_bytes_max: usize,
    pub(crate) on_error: OnError,
}

impl Rules {
    pub(crate) fn plain(text_bytes_max: usize) -> Self {
        Self { form: Form::Plain, text_field: "text".to_owned(), text_bytes_max, on_error: OnError::Stop }
    }
}

/// Lines that were left out.
#[derive(Debug, Default)]
pub(crate) struct Skipped {
    pub(crate) lines: u64,
    /// What was wrong with the first of them.
    pub(crate) first: Vec<InputError>,
}

impl Skipped {
    pub(crate) const NAMED_MAX: usize = 10;

    fn add(&mut self, error: InputError) {
        self.lines += 1;
        if self.first.len() < Self::NAMED_MAX {
            self.first.push(error);
        }
    }
}

pub(crate) struct Texts {
    rules: Rules,
    names: Vec<InputName>,
    /// The one of `names` that is being read.
    at: usize,
    /// Those of `names` that are open.
    sources: Vec<Option<Source>>,
    bytes_total: Option<u64>,
    bytes_before: u64,
    skipped: Skipped,
}

impl Texts {
    pub(crate) fn from_arguments(texts: Vec<OsString>, rules: Rules) -> Self {
        let bytes = texts.iter().map(|text| text.len() as u64).sum();
        Self {
            sources: vec![Some(Source::arguments(texts))],
            bytes_total: Some(bytes),
            ..Self::of(vec![InputName::Arguments], rules)
        }
    }

    /// Texts of files, one after the other; `-` is standard input. All of them must be readable.
    pub(crate) fn from_files(paths: &[PathBuf], rules: Rules) -> Result<Self, InputError> {
        let name = |path: &PathBuf| match path.as_os_str() == "-" {
            true => InputName::Stdin,
            false => InputName::File(path.clone()),
        };
        let names: Vec<InputName> = paths.iter().map(name).collect();
        let (mut sources, mut bytes_total) = (Vec::new(), Some(0));
        for name in &names {
            let source = Source::open(name, &rules)?;
            bytes_total = bytes_total.zip(source.bytes()).map(|(total, bytes)| total + bytes);
            // A file is opened again in its turn, as there may be more of them than can be open. A pipe is opened once.
            sources.push(Some(source).filter(|source| source.bytes().is_none()));
        }
        Ok(Self { sources, bytes_total, ..Self::of(names, rules) })
    }

    pub(crate) fn from_stdin(rules: Rules) -> Self {
        Self::of(vec![InputName::Stdin], rules)
    }

    fn of(names: Vec<InputName>, rules: Rules) -> Self {
        let sources = names.iter().map(|_| None).collect();
        Self { rules, names, at: 0, sources, bytes_total: None, bytes_before: 0, skipped: Skipped::default() }
    }

    /// The next texts, at most a window of them; none at the end.
    pub(crate) fn next_window(&mut self) -> Result<Vec<Text>, InputError> {
        let mut window = Vec::new();
        let mut bytes = 0;
        while window.len() < WINDOW_TEXTS && bytes < WINDOW_BYTES {
            let Some(text) = self.next_text()? else { break };
            bytes += text.text.len();
            window.push(text);
        }
        Ok(window)
    }

    pub(crate) fn nothing(&self) -> InputError {
        InputError::NoTexts { input: self.name(), skipped: self.skipped.lines }
    }

    /// The texts that were read before are not these.
    pub(crate) fn changed(&self, texts: u64) -> InputError {
        InputError::Changed { input: self.name(), texts }
    }

    fn name(&self) -> String {
        match self.names.as_slice() {
            [one] => one.to_string(),
            several => format!("the input ({} files)", several.len()),
        }
    }

    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_before + self.sources.get(self.at).and_then(Option::as_ref).map_or(0, Source::bytes_read)
    }

    pub(crate) fn bytes_total(&self) -> Option<u64> {
        self.bytes_total
    }

    pub(crate) fn names(&self) -> &[InputName] {
        &self.names
    }

    /// The lines that were left out since this was last asked.
    pub(crate) fn take_skipped(&mut self) -> Skipped {
        std::mem::take(&mut self.skipped)
    }

    fn next_text(&mut self) -> Result<Option<Text>, InputError> {
        loop {
            let Some(name) = self.names.get(self.at) else { return Ok(None) };
            let source = match &mut self.sources[self.at] {
                Some(source) => source,
                closed => closed.insert(Source::open(name, &self.rules)?),
            };
            match source.next_text(name, &self.rules) {
                Ok(Some(text)) => return Ok(Some(Text { input: self.at, ..text })),
                Ok(None) => {
                    self.bytes_before += source.bytes_read();
                    self.sources[self.at] = None;
                    self.at += 1;
                }
                Err(error) if error.is_of_one_line() && self.rules.on_error == OnError::Skip => self.skipped.add(error),
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_bytes(bytes: &'static [u8], rules: Rules) -> Texts {
        let source = Source::reader(Box::new(bytes), rules.form, &rules);
        Texts { sources: vec![Some(source)], ..Texts::from_stdin(rules) }
    }

    fn read(form: Form, bytes: &'static [u8], max_text_bytes: usize) -> Result<Vec<Text>, String> {
        let mut texts = of_bytes(bytes, Rules { form, ..Rules::plain(max_text_bytes) });
        let mut all = Vec::new();
        loop {
            match texts.next_window() {
                Ok(window) if window.is_empty() => return Ok(all),
                Ok(window) => all.extend(window),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn plain(bytes: &'static [u8]) -> Vec<String> {
        read(Form::Plain, bytes, 100).unwrap().into_iter().map(|text| text.text).collect()
    }

    #[test]
    fn every_line_is_a_text_also_an_empty_one() {
        assert_eq!(plain(b"a\n\nb\n"), ["a", "", "b"]);
        assert_eq!(plain(b"a\r\nb"), ["a", "b"]);
        assert_eq!(plain(b"\n"), [""]);
        assert_eq!(plain(b"\xef\xbb\xbfa\nb\0c\n"), ["a", "b\0c"]);
        assert_eq!(plain(b""), [""; 0]);
    }

    #[test]
    fn invalid_utf8_is_named_by_line_and_byte() {
        let message = read(Form::Plain, b"good\nb\xffd\n", 100).unwrap_err();
        assert!(message.contains("line 2") && message.contains("byte 1 of the line (byte 6 of"), "{message}");
    }

    #[test]
    fn a_long_line_is_refused_at_its_limit() {
        assert_eq!(read(Form::Plain, b"12345\n", 5).unwrap().len(), 1);
        let message = read(Form::Plain, b"a\n123456\n", 5).unwrap_err();
        assert!(message.contains("line 2: longer than 5 bytes"), "{message}");
        let message = read(Form::JsonLines, b"\"123456\"\n", 5).unwrap_err();
        assert!(message.contains("longer than 5 bytes"), "{message}");
    }

    #[test]
    fn json_lines_carry_ids_and_skip_blank_lines() {
        let texts = read(Form::JsonLines, b"\"a\"\n \n{\"text\": \"b\", \"id\": 7, \"other\": []}\n", 100).unwrap();
        assert_eq!(texts[0], Text { text: "a".to_owned(), id: None, input: 0, line: 1 });
        assert_eq!(texts[1], Text { text: "b".to_owned(), id: Some(7.into()), input: 0, line: 3 });
    }

    #[test]
    fn bad_json_lines_are_named() {
        let message = read(Form::JsonLines, b"\"a\"\n{\"text\": 1}\n", 100).unwrap_err();
        assert!(message.contains("line 2: its \"text\" is not a string"), "{message}");
        let message = read(Form::JsonLines, b"[1]\n", 100).unwrap_err();
        assert!(message.contains("line 1: an array"), "{message}");
        assert!(read(Form::JsonLines, b"{\n", 100).unwrap_err().contains("line 1: not JSON"));
    }

    #[test]
    fn windows_are_bounded() {
        let many: &'static [u8] = b"x\n".repeat(WINDOW_TEXTS + 1).leak();
        let mut texts = of_bytes(many, Rules::plain(10));
        assert_eq!(texts.next_window().unwrap().len(), WINDOW_TEXTS);
        assert_eq!(texts.next_window().unwrap().len(), 1);
        assert!(texts.next_window().unwrap().is_empty());
    }

    #[test]
    fn bad_lines_are_skipped_by_their_number_and_the_rest_is_read() {
        let bytes = b"good\nb\xffd\n1234567890123\nlast\n";
        let mut texts = of_bytes(bytes, Rules { on_error: OnError::Skip, ..Rules::plain(5) });
        let lines: Vec<u64> = texts.next_window().unwrap().iter().map(|text| text.line).collect();
        assert_eq!(lines, [1, 4]);
        let skipped = texts.take_skipped();
        let messages: Vec<String> = skipped.first.iter().map(ToString::to_string).collect();
        assert_eq!(skipped.lines, 2);
        assert!(messages[0].contains("line 2: not valid UTF-8"), "{messages:?}");
        assert!(messages[1].contains("line 3: longer than 5 bytes"), "{messages:?}");
    }

    #[test]
    fn of_a_million_bad_lines_a_few_are_named() {
        let bytes: &'static [u8] = b"\xff\n".repeat(100).leak();
        let mut texts = of_bytes(bytes, Rules { on_error: OnError::Skip, ..Rules::plain(5) });
        assert!(texts.next_window().unwrap().is_empty());
        assert!(texts.nothing().to_string().ends_with("holds no text but 100 bad lines"));
        assert_eq!(texts.take_skipped().first.len(), Skipped::NAMED_MAX);
    }
}
