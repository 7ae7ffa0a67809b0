//! Turns token ids of OpenAI's tokenizer back into texts: some clients send them whatever the model is.
//! Reads the vocabulary from a file of the user; without one, ids are the model's own.

use std::{fs, path::Path};

use super::{StartError, errors::Problem};

pub(crate) struct OpenAiTokens {
    bytes: Vec<u8>,
    /// By id: where its text starts and ends; both 0 where there is no such id.
    spans: Vec<(u32, u32)>,
}

const IDS_MAX: usize = 1 << 20;

impl OpenAiTokens {
    /// Reads a file with a text in base64 and its id on each line.
    pub(crate) fn open(path: &Path) -> Result<Self, StartError> {
        let wrong = |reason: String| StartError::TokenFile { path: path.to_owned(), reason };
        let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        Self::read(&text).map_err(wrong)
    }

    fn read(text: &str) -> Result<Self, String> {
        let (mut bytes, mut spans) = (Vec::new(), Vec::new());
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
            let wrong = || format!("line {} is not a text in base64 and an id", number + 1);
            let (coded, id) = line.split_once(' ').ok_or_else(wrong)?;
            let id: usize = id.trim().parse().ok().filter(|id| *id < IDS_MAX).ok_or_else(wrong)?;
            let start = bytes.len();
            base64_simd::STANDARD.decode_append(coded, &mut bytes).map_err(|_| wrong())?;
            if spans.len() <= id {
                spans.resize(id + 1, (0, 0));
            }
            // The files have a few megabytes; one of more than four gigabytes would not have been read.
            spans[id] = (start as u32, bytes.len() as u32);
        }
        if spans.is_empty() { Err("it holds no tokens".to_owned()) } else { Ok(Self { bytes, spans }) }
    }

    /// The text of these ids. Bytes that are no UTF-8, as of a character that was cut in two, are replaced.
    pub(crate) fn decode(&self, ids: &[u32]) -> Result<String, Problem> {
        let mut text = Vec::with_capacity(ids.len() * 4);
        for id in ids {
            match self.spans.get(*id as usize) {
                Some((start, end)) if start < end => {
                    text.extend_from_slice(&self.bytes[*start as usize..*end as usize])
                }
                _ => return Err(Problem::invalid("input", format!("{id} is no token of the file of tokens"))),
            }
        }
        Ok(String::from_utf8(text).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_become_the_text_they_came_from() {
        // "he", "llo", the two bytes of "ü".
        let tokens = OpenAiTokens::read("aGU= 0\nbGxv 2\nww== 3\nvA== 4\n").unwrap();
        assert_eq!(tokens.decode(&[0, 2, 3, 4]).unwrap(), "helloü");
        assert_eq!(tokens.decode(&[0, 3]).unwrap(), "he\u{fffd}");
        assert!(tokens.decode(&[1]).is_err() && tokens.decode(&[5]).is_err());
    }

    #[test]
    fn a_file_of_something_else_is_refused() {
        for text in ["", "hello", "aGU= x", "???? 0", "aGU= 99999999"] {
            assert!(OpenAiTokens::read(text).is_err(), "{text}");
        }
    }
}
