//! Writes answers as JSON into one buffer of bytes.
//! Builds no tree; NaN and infinities, which JSON lacks, become `null`.

mod decimal;
pub(crate) mod write_budget;

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::header;

use super::errors::JSON;

/// JSON that is being written. The commas and brackets are the caller's.
#[derive(Debug, Default)]
pub(crate) struct Json(Vec<u8>);

/// Digits, sign, point and comma of a number in an embedding, about.
const BYTES_A_NUMBER: usize = 13;

impl Json {
    pub(crate) fn for_numbers(numbers: usize) -> Self {
        Self(Vec::with_capacity(numbers * BYTES_A_NUMBER + 256))
    }

    /// Makes room for so many bytes more.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.0.reserve(bytes);
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        self.0.into()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn into_text(self) -> String {
        String::from_utf8(self.0).unwrap_or_else(|error| unreachable!("only texts are written: {error}"))
    }

    pub(crate) fn raw(&mut self, json: &str) -> &mut Self {
        self.0.extend_from_slice(json.as_bytes());
        self
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        let written = serde_json::to_writer(&mut self.0, text);
        assert!(written.is_ok(), "memory takes every text");
        self
    }

    /// What is written rarely, or is JSON already.
    pub(crate) fn value(&mut self, value: &impl serde::Serialize) -> &mut Self {
        let written = serde_json::to_writer(&mut self.0, value);
        assert!(written.is_ok(), "memory takes every value");
        self
    }

    pub(crate) fn whole(&mut self, number: usize) -> &mut Self {
        // Written backwards into a small array: no formatting machinery for some digits.
        let mut digits = [0; 20];
        let (mut at, mut left) = (digits.len(), number);
        loop {
            at -= 1;
            digits[at] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        self.0.extend_from_slice(&digits[at..]);
        self
    }

    pub(crate) fn byte(&mut self, byte: i8) {
        if byte < 0 {
            self.0.push(b'-');
        }
        self.whole(byte.unsigned_abs().into());
    }

    /// What is written already, as it is.
    pub(crate) fn append(&mut self, json: &Self) -> &mut Self {
        self.0.extend_from_slice(&json.0);
        self
    }

    pub(crate) fn number(&mut self, number: f32) -> &mut Self {
        decimal::write_one(number, &mut self.0);
        self
    }

    pub(crate) fn numbers(&mut self, numbers: &[f32]) -> &mut Self {
        self.0.push(b'[');
        decimal::write(numbers, &mut self.0);
        if !numbers.is_empty() {
            // The last comma.
            self.0.pop();
        }
        self.0.push(b']');
        self
    }

    /// The numbers as the bytes of 32-bit floats, the least first, in base64.
    pub(crate) fn base64(&mut self, numbers: &[f32]) -> &mut Self {
        // A multiple of 3 numbers is a multiple of 3 bytes, so that the pieces join without padding.
        const PIECE: usize = 192;
        self.0.push(b'"');
        let mut bytes = [0; PIECE * 4];
        for piece in numbers.chunks(PIECE) {
            for (number, four) in piece.iter().zip(bytes.chunks_exact_mut(4)) {
                four.copy_from_slice(&number.to_le_bytes());
            }
            base64_simd::STANDARD.encode_append(&bytes[..piece.len() * 4], &mut self.0);
        }
        self.0.push(b'"');
        self
    }

    /// The numbers as the bytes of 32-bit floats, the least first, as they follow the JSON of some protocols.
    pub(crate) fn bytes_of(&mut self, numbers: &[f32]) -> &mut Self {
        self.0.reserve(numbers.len() * 4);
        self.0.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        self
    }

    pub(crate) fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) -> &mut Self {
        self.0.push(b'[');
        for (at, item) in items.into_iter().enumerate() {
            if at > 0 {
                self.0.push(b',');
            }
            write(self, item);
        }
        self.0.push(b']');
        self
    }
}

impl IntoResponse for Json {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, JSON)], Body::from(self.0)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Json)) -> String {
        let mut json = Json::default();
        write(&mut json);
        String::from_utf8(json.0).unwrap()
    }

    #[test]
    fn numbers_read_back_as_they_were() {
        let numbers = [0.0, -0.0, 1.0, 0.1, -1e-7, 3.4e38, f32::MIN_POSITIVE, 1e-45, 123_456.79];
        let text = written(|json| {
            json.numbers(&numbers);
        });
        let read: Vec<f32> = serde_json::from_str(&text).unwrap();
        assert!(read.iter().zip(&numbers).all(|(a, b)| a.to_bits() == b.to_bits()), "{text}");
    }

    #[test]
    fn what_json_cannot_say_is_null() {
        let text = written(|json| {
            json.numbers(&[f32::NAN, f32::INFINITY, 1.0]);
        });
        assert_eq!(text, "[null,null,1.0]");
    }

    #[test]
    fn base64_in_pieces_is_the_base64_of_the_whole() {
        for length in [0, 1, 2, 3, 191, 192, 193, 384, 1000] {
            let numbers: Vec<f32> = (0..length).map(|at| at as f32 / 7.0).collect();
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            let text = written(|json| {
                json.base64(&numbers);
            });
            assert_eq!(text, format!("\"{}\"", base64_simd::STANDARD.encode_to_string(&bytes)), "{length}");
        }
    }

    #[test]
    fn texts_are_escaped_and_wholes_are_whole() {
        let text = written(|json| {
            json.text("a \"b\"\n\u{1}ü").raw(":").whole(0).raw(",").whole(usize::MAX);
        });
        assert_eq!(text, format!("\"a \\\"b\\\"\\n\\u0001ü\":0,{}", usize::MAX));
    }
}
