//! Splits the body of a request into lines of JSON, and gathers their texts into batches.
//! Holds a frame of the body and one line at most: what a client sends beyond that waits with it.

use std::{borrow::Cow, time::Duration};

use axum::body::Body;
use bytes::{Buf, BytesMut};
use http_body_util::BodyExt;
use serde::Deserialize;

use super::errors::{Kind, Problem};
use crate::config::RequestLimits;

pub(super) struct LineReader {
    body: Body,
    buffer: BytesMut,
    /// Bytes of the buffer that are known to end no line.
    searched: usize,
    limits: RequestLimits,
    /// Lines so far.
    count: usize,
    /// Whether the rest of a line that is too long is being passed over.
    is_passing: bool,
    is_ended: bool,
}

/// Neighbouring lines: the text of each, or what is wrong with it.
pub(super) struct LineBatch {
    pub(super) first: usize,
    pub(super) lines: Vec<Result<String, Problem>>,
    pub(super) bytes: usize,
}

/// Lines of a batch at most: enough to fill a device together with the batches before and after it.
const BATCH_LINES: usize = 256;
/// A batch that has lines waits this long for more.
const GATHERING: Duration = Duration::from_millis(2);
/// A character of a text has at most this many bytes in JSON, where it is escaped.
const ESCAPED_BYTES: usize = 6;

impl LineReader {
    pub(super) fn new(body: Body, limits: RequestLimits) -> Self {
        Self { body, buffer: BytesMut::new(), searched: 0, limits, count: 0, is_passing: false, is_ended: false }
    }

    /// The next lines; `None`: there are no more.
    pub(super) async fn next(&mut self) -> Option<LineBatch> {
        let mut batch = LineBatch { first: self.count, lines: Vec::new(), bytes: 0 };
        loop {
            while let Some(line) = self.line() {
                let text = line.and_then(|line| read(&line, &self.limits));
                if let Some(text) = text.transpose() {
                    batch.bytes += text.as_ref().map_or(0, String::len);
                    batch.lines.push(text);
                    self.count += 1;
                }
                // A text has no more tokens than bytes, and the special ones.
                let is_full = batch.bytes + 2 * batch.lines.len() >= self.limits.tokens_max / 2;
                if is_full || batch.lines.len() >= BATCH_LINES.min(self.limits.texts_max) {
                    return Some(batch);
                }
            }
            if self.is_ended {
                return (!batch.lines.is_empty()).then_some(batch);
            }
            let patience = if batch.lines.is_empty() { self.limits.body_within } else { GATHERING };
            match tokio::time::timeout(patience, self.body.frame()).await {
                Ok(Some(Ok(frame))) => self.buffer.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Ok(None) => {
                    self.is_ended = true;
                    // The last line needs no end.
                    self.buffer.extend_from_slice(b"\n");
                }
                Ok(Some(Err(error))) => {
                    let message = format!("the body of the request broke off: {error}");
                    return Some(self.end(batch, Problem::new(Kind::Malformed, message)));
                }
                Err(_) if !batch.lines.is_empty() => return Some(batch),
                Err(_) => {
                    let message = "no line came in time: the stream ends here";
                    return Some(self.end(batch, Problem::new(Kind::TooSlow, message)));
                }
            }
        }
    }

    /// Ends with a problem in place of the next line.
    fn end(&mut self, mut batch: LineBatch, problem: Problem) -> LineBatch {
        self.is_ended = true;
        self.buffer.clear();
        self.searched = 0;
        batch.lines.push(Err(problem));
        batch
    }

    /// A line that is there whole, or is too long.
    fn line(&mut self) -> Option<Result<BytesMut, Problem>> {
        let end = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n').map(|end| self.searched + end);
        self.searched = if end.is_some() || self.is_passing { 0 } else { self.buffer.len() };
        if self.is_passing {
            self.buffer.advance(end.map_or(self.buffer.len(), |end| end + 1));
            self.is_passing = end.is_none();
            return if end.is_some() { self.line() } else { None };
        }
        let most = self.limits.text_bytes_max.saturating_mul(ESCAPED_BYTES).saturating_add(256);
        match end {
            Some(end) if end <= most => {
                let mut line = self.buffer.split_to(end + 1);
                line.truncate(end);
                Some(Ok(line))
            }
            None if self.buffer.len() <= most => None,
            _ => {
                (self.is_passing, self.searched) = (true, 0);
                Some(Err(Problem::new(Kind::TooLarge, format!("the line has more than {most} bytes"))))
            }
        }
    }
}

/// A line is a text, or an object that has one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line<'a> {
    Text(#[serde(borrow)] Cow<'a, str>),
    Object {
        #[serde(borrow, alias = "inputs", alias = "text")]
        input: Cow<'a, str>,
    },
}

/// The text of a line; `None`: it is empty.
fn read(line: &[u8], limits: &RequestLimits) -> Result<Option<String>, Problem> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let text = match serde_json::from_slice(line) {
        Ok(Line::Text(text) | Line::Object { input: text }) => text,
        Err(error) if error.is_data() => {
            return Err(Problem::new(Kind::Invalid, "a line is a text, or an object with an `input` or a `text`"));
        }
        Err(error) => return Err(error.into()),
    };
    if text.len() > limits.text_bytes_max {
        let (bytes, most) = (text.len(), limits.text_bytes_max);
        return Err(Problem::new(Kind::TooLarge, format!("the text has {bytes} bytes; {most} are allowed")));
    }
    Ok(Some(text.into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> RequestLimits {
        RequestLimits {
            body_bytes_max: 100,
            texts_max: 3,
            text_bytes_max: 20,
            tokens_max: 1_000,
            body_within: Duration::from_secs(60),
            answer_within: Duration::from_secs(60),
            is_cutting: true,
        }
    }

    fn batches(body: impl Into<Body>) -> Vec<(usize, Vec<Result<String, Kind>>)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (mut reader, mut all) = (LineReader::new(body.into(), limits()), Vec::new());
            while let Some(LineBatch { first, lines, .. }) = reader.next().await {
                all.push((first, lines.into_iter().map(|line| line.map_err(|problem| problem.kind)).collect()));
            }
            all
        })
    }

    #[test]
    fn lines_become_batches_and_a_wrong_one_is_told_in_its_place() {
        let text = |text: &str| Ok(text.to_owned());
        let body = "\"a\"\n\n{\"input\":\"b\\n\"}\r\n[1]\n{\"text\":\"c\"}\n{\n{\"inputs\":\"d\"}";
        let expected = vec![
            (0, vec![text("a"), text("b\n"), Err(Kind::Invalid)]),
            (3, vec![text("c"), Err(Kind::Malformed), text("d")]),
        ];
        assert_eq!(batches(body), expected);
        assert!(batches("").is_empty() && batches("\n\n").is_empty());
    }

    #[test]
    fn a_line_without_end_is_passed_over() {
        let body = format!("\"{}\"\n\"{}\"\n\"b\"\n", "a".repeat(21), "a".repeat(10_000));
        assert_eq!(batches(body), [(0, vec![Err(Kind::TooLarge), Err(Kind::TooLarge), Ok("b".to_owned())])]);
        assert_eq!(batches("a".repeat(10_000)), [(0, vec![Err(Kind::TooLarge)])]);
    }
}
