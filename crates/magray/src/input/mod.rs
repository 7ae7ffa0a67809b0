//! Texts to embed, one at a time or in bounded windows, from the command line, a file or stdin.
//! Never holds more than a window of them, never drops or joins lines.

mod json_lines;
mod lines;

use std::{
    ffi::OsString,
    fs::File,
    io::{self, BufRead, BufReader, ErrorKind},
    path::{Path, PathBuf},
};

use lines::Lines;

/// A window is embedded at once: long enough to keep all threads busy, small enough to stay cheap in memory.
const WINDOW_TEXTS: usize = 2048;
const WINDOW_BYTES: usize = 8 << 20;

#[derive(Debug, PartialEq)]
pub(crate) struct Text {
    pub(crate) text: String,
    /// The `id` of a JSON line, given back with the answer.
    pub(crate) id: Option<serde_json::Value>,
    /// Its line in the input, or its place on the command line, from 1.
    pub(crate) line: u64,
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("{input} holds no text")]
    NoTexts { input: InputName },
    #[error("{}: no such file", path.display())]
    NotFound { path: PathBuf },
    #[error("{}: a folder, not a file of texts", path.display())]
    IsFolder { path: PathBuf },
    #[error("{}: no permission to read it", path.display())]
    Forbidden { path: PathBuf },
    #[error("cannot read {input}: {reason}")]
    Unreadable { input: InputName, reason: io::Error },
    #[error(
        "{input}, line {line}: not valid UTF-8 at byte {byte} of the line (byte {offset} of the input, counted from 0)"
    )]
    NotUtf8 { input: InputName, line: u64, byte: usize, offset: u64 },
    #[error("text {index} of the command line is not valid UTF-8 at byte {byte} (counted from 0)")]
    ArgumentNotUtf8 { index: usize, byte: usize },
    #[error("{input}, {} {line}: longer than {limit} bytes; split it, or raise --max-text-bytes", input.unit())]
    TooLong { input: InputName, line: u64, limit: usize },
    #[error("{input}, line {line}: not JSON: {message}")]
    NotJson { input: InputName, line: u64, message: String },
    #[error("{input}, line {line}: {found}; a line is a JSON string, or an object with the string \"text\"")]
    NoText { input: InputName, line: u64, found: &'static str },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum InputName {
    Arguments,
    Stdin,
    File(PathBuf),
}

impl InputName {
    fn unit(&self) -> &'static str {
        match self {
            Self::Arguments => "text",
            Self::Stdin | Self::File(_) => "line",
        }
    }
}

impl std::fmt::Display for InputName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Arguments => f.write_str("the command line"),
            Self::Stdin => f.write_str("standard input"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A line is a text; an empty line is an empty text, so that answers stay in step with lines.
    Plain,
    /// A line is a JSON value; blank lines are passed over.
    JsonLines,
}

pub(crate) struct Texts {
    input: InputName,
    max_text_bytes: usize,
    bytes_total: Option<u64>,
    origin: Origin,
}

enum Origin {
    Arguments(std::iter::Enumerate<std::vec::IntoIter<OsString>>),
    Lines { lines: Lines<Box<dyn BufRead + Send>>, form: Form },
}

impl Texts {
    pub(crate) fn from_arguments(texts: Vec<OsString>, max_text_bytes: usize) -> Self {
        let bytes = texts.iter().map(|text| text.len() as u64).sum();
        let origin = Origin::Arguments(texts.into_iter().enumerate());
        Self { input: InputName::Arguments, max_text_bytes, bytes_total: Some(bytes), origin }
    }

    pub(crate) fn from_stdin(form: Form, max_text_bytes: usize) -> Self {
        Self::from_reader(
            InputName::Stdin,
            Box::new(BufReader::with_capacity(1 << 16, io::stdin())),
            form,
            max_text_bytes,
        )
    }

    /// Texts of a file; one that ends in `.jsonl` or `.ndjson` is read as JSON lines.
    pub(crate) fn from_file(path: &Path, form: Form, max_text_bytes: usize) -> Result<Self, InputError> {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        let form = if matches!(ending, "jsonl" | "ndjson") { Form::JsonLines } else { form };
        let file = File::open(path).map_err(|reason| open_error(path, reason))?;
        let metadata = file.metadata().map_err(|reason| open_error(path, reason))?;
        if metadata.is_dir() {
            return Err(InputError::IsFolder { path: path.to_owned() });
        }
        let input = InputName::File(path.to_owned());
        let reader = Box::new(BufReader::with_capacity(1 << 16, file));
        let texts = Self::from_reader(input, reader, form, max_text_bytes);
        Ok(Self { bytes_total: metadata.is_file().then_some(metadata.len()), ..texts })
    }

    fn from_reader(input: InputName, reader: Box<dyn BufRead + Send>, form: Form, max_text_bytes: usize) -> Self {
        // A character of a JSON text takes up to six bytes (`\u0001`); the rest is room for the object around it.
        let line_bytes_max = match form {
            Form::Plain => max_text_bytes,
            Form::JsonLines => max_text_bytes.saturating_mul(6).saturating_add(1 << 16),
        };
        let lines = Lines::new(reader, line_bytes_max);
        Self { input, max_text_bytes, bytes_total: None, origin: Origin::Lines { lines, form } }
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
        InputError::NoTexts { input: self.input.clone() }
    }

    pub(crate) fn bytes_read(&self) -> u64 {
        match &self.origin {
            Origin::Arguments(_) => 0,
            Origin::Lines { lines, .. } => lines.offset(),
        }
    }

    pub(crate) fn bytes_total(&self) -> Option<u64> {
        self.bytes_total
    }

    fn next_text(&mut self) -> Result<Option<Text>, InputError> {
        let text = match &mut self.origin {
            Origin::Arguments(arguments) => arguments.next().map(argument_text).transpose()?,
            Origin::Lines { lines, form } => line_text(lines, *form, &self.input)?,
        };
        match text {
            Some(text) if text.text.len() > self.max_text_bytes => {
                Err(InputError::TooLong { input: self.input.clone(), line: text.line, limit: self.max_text_bytes })
            }
            text => Ok(text),
        }
    }
}

fn argument_text((index, argument): (usize, OsString)) -> Result<Text, InputError> {
    match argument.into_string() {
        Ok(text) => Ok(Text { text, id: None, line: index as u64 + 1 }),
        Err(raw) => {
            let byte = std::str::from_utf8(raw.as_encoded_bytes()).map_or_else(|error| error.valid_up_to(), str::len);
            Err(InputError::ArgumentNotUtf8 { index: index + 1, byte })
        }
    }
}

fn line_text(
    lines: &mut Lines<Box<dyn BufRead + Send>>,
    form: Form,
    input: &InputName,
) -> Result<Option<Text>, InputError> {
    loop {
        let limit = lines.line_bytes_max();
        let line = match lines.next_line() {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(None),
            Err(lines::Fault::TooLong { line }) => {
                return Err(InputError::TooLong { input: input.clone(), line, limit });
            }
            Err(lines::Fault::Io(reason)) => return Err(InputError::Unreadable { input: input.clone(), reason }),
        };
        let number = line.number;
        let text = std::str::from_utf8(line.bytes).map_err(|error| InputError::NotUtf8 {
            input: input.clone(),
            line: number,
            byte: error.valid_up_to(),
            offset: line.offset + error.valid_up_to() as u64,
        })?;
        return match form {
            Form::Plain => Ok(Some(Text { text: text.to_owned(), id: None, line: number })),
            Form::JsonLines if text.trim().is_empty() => continue,
            Form::JsonLines => json_lines::read(text, number).map(Some).map_err(|fault| match fault {
                json_lines::Fault::NotJson(message) => {
                    InputError::NotJson { input: input.clone(), line: number, message }
                }
                json_lines::Fault::NoText(found) => InputError::NoText { input: input.clone(), line: number, found },
            }),
        };
    }
}

fn open_error(path: &Path, reason: io::Error) -> InputError {
    let path = path.to_owned();
    match reason.kind() {
        ErrorKind::NotFound => InputError::NotFound { path },
        ErrorKind::PermissionDenied => InputError::Forbidden { path },
        ErrorKind::IsADirectory => InputError::IsFolder { path },
        _ => InputError::Unreadable { input: InputName::File(path), reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(form: Form, bytes: &'static [u8], max_text_bytes: usize) -> Result<Vec<Text>, String> {
        let mut texts = Texts::from_reader(InputName::Stdin, Box::new(bytes), form, max_text_bytes);
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
        assert_eq!(texts[0], Text { text: "a".to_owned(), id: None, line: 1 });
        assert_eq!(texts[1], Text { text: "b".to_owned(), id: Some(7.into()), line: 3 });
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
        let mut texts = Texts::from_reader(InputName::Stdin, Box::new(many), Form::Plain, 10);
        assert_eq!(texts.next_window().unwrap().len(), WINDOW_TEXTS);
        assert_eq!(texts.next_window().unwrap().len(), 1);
        assert!(texts.next_window().unwrap().is_empty());
    }
}
