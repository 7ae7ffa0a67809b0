//! One input of texts: arguments, or a reader of lines.
//! Does not decide what becomes of lines that are no text.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, BufRead, BufReader},
};

use super::{
    Form, InputError, InputName, Rules, Text, json_lines,
    lines::{self, Lines},
};

pub(super) struct Source {
    bytes: Option<u64>,
    kind: Kind,
}

enum Kind {
    Arguments(std::iter::Enumerate<std::vec::IntoIter<OsString>>),
    Lines { lines: Lines<Box<dyn BufRead + Send>>, form: Form },
}

impl Source {
    pub(super) fn arguments(texts: Vec<OsString>) -> Self {
        Self { bytes: None, kind: Kind::Arguments(texts.into_iter().enumerate()) }
    }

    /// Opens stdin or a file; a file that ends in `.jsonl` or `.ndjson` is read as JSON lines.
    pub(super) fn open(name: &InputName, rules: &Rules) -> Result<Self, InputError> {
        let path = match name {
            InputName::Arguments => unreachable!("arguments are not opened"),
            InputName::Stdin => {
                return Ok(Self::reader(Box::new(BufReader::with_capacity(1 << 16, io::stdin())), rules.form, rules));
            }
            InputName::File(path) => path,
        };
        let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
        let form = if ending == "jsonl" || ending == "ndjson" { Form::JsonLines } else { rules.form };
        let file = File::open(path).map_err(|reason| InputError::of_opening(path, reason))?;
        let metadata = file.metadata().map_err(|reason| InputError::of_opening(path, reason))?;
        if metadata.is_dir() {
            return Err(InputError::IsFolder { path: path.clone() });
        }
        let source = Self::reader(Box::new(BufReader::with_capacity(1 << 16, file)), form, rules);
        Ok(Self { bytes: metadata.is_file().then_some(metadata.len()), ..source })
    }

    pub(super) fn reader(reader: Box<dyn BufRead + Send>, form: Form, rules: &Rules) -> Self {
        // A character of a JSON text takes up to six bytes (`\u0001`); the rest is room for the object around it.
        let line_bytes_max = match form {
            Form::Plain => rules.text_bytes_max,
            Form::JsonLines => rules.text_bytes_max.saturating_mul(6).saturating_add(1 << 16),
        };
        Self { bytes: None, kind: Kind::Lines { lines: Lines::new(reader, line_bytes_max), form } }
    }

    /// The size of a file.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    pub(super) fn bytes_read(&self) -> u64 {
        match &self.kind {
            Kind::Arguments(_) => 0,
            Kind::Lines { lines, .. } => lines.offset(),
        }
    }

    pub(super) fn next_text(&mut self, name: &InputName, rules: &Rules) -> Result<Option<Text>, InputError> {
        let text = match &mut self.kind {
            Kind::Arguments(arguments) => arguments.next().map(argument_text).transpose()?,
            Kind::Lines { lines, form } => line_text(lines, *form, name, &rules.text_field)?,
        };
        match text {
            Some(text) if text.text.len() > rules.text_bytes_max => {
                Err(InputError::TooLong { input: name.clone(), line: text.line, limit: rules.text_bytes_max })
            }
            text => Ok(text),
        }
    }
}

fn argument_text((index, argument): (usize, OsString)) -> Result<Text, InputError> {
    match argument.into_string() {
        Ok(text) => Ok(Text { text, id: None, input: 0, line: index as u64 + 1 }),
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
    field: &str,
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
            Form::Plain => Ok(Some(Text { text: text.to_owned(), id: None, input: 0, line: number })),
            Form::JsonLines if text.trim().is_empty() => continue,
            Form::JsonLines => json_lines::read(text, field, number).map(Some).map_err(|fault| match fault {
                json_lines::Fault::NotJson(message) => {
                    InputError::NotJson { input: input.clone(), line: number, message }
                }
                json_lines::Fault::NoText(found) => {
                    InputError::NoText { input: input.clone(), line: number, found, field: field.to_owned() }
                }
            }),
        };
    }
}
