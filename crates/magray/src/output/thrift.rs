//! Writes structures in Thrift's compact protocol, as far as Parquet's metadata needs it.
//! Reads nothing.

const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// One structure; its fields are written in rising order.
#[derive(Default)]
pub(super) struct Struct {
    bytes: Vec<u8>,
    last_field: u8,
}

impl Struct {
    pub(super) fn i32(mut self, field: u8, value: i32) -> Self {
        self.head(field, I32);
        put_zigzag(&mut self.bytes, i64::from(value));
        self
    }

    pub(super) fn i64(mut self, field: u8, value: u64) -> Self {
        self.head(field, I64);
        put_zigzag(&mut self.bytes, value as i64);
        self
    }

    pub(super) fn text(mut self, field: u8, text: &str) -> Self {
        self.head(field, BINARY);
        put_text(&mut self.bytes, text);
        self
    }

    pub(super) fn structure(mut self, field: u8, inner: Self) -> Self {
        self.head(field, STRUCT);
        self.bytes.extend(inner.end());
        self
    }

    pub(super) fn i32s(mut self, field: u8, values: &[i32]) -> Self {
        self.list_head(field, I32, values.len());
        values.iter().for_each(|value| put_zigzag(&mut self.bytes, i64::from(*value)));
        self
    }

    pub(super) fn texts(mut self, field: u8, texts: &[impl AsRef<str>]) -> Self {
        self.list_head(field, BINARY, texts.len());
        texts.iter().for_each(|text| put_text(&mut self.bytes, text.as_ref()));
        self
    }

    pub(super) fn structures(mut self, field: u8, inner: impl ExactSizeIterator<Item = Self>) -> Self {
        self.list_head(field, STRUCT, inner.len());
        inner.for_each(|inner| self.bytes.extend(inner.end()));
        self
    }

    pub(super) fn end(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }

    /// All fields that are used lie less than 16 above the one before, which is written in four bits.
    fn head(&mut self, field: u8, kind: u8) {
        debug_assert!(field > self.last_field && field - self.last_field < 16);
        self.bytes.push((field - self.last_field) << 4 | kind);
        self.last_field = field;
    }

    fn list_head(&mut self, field: u8, kind: u8, length: usize) {
        self.head(field, LIST);
        match u8::try_from(length) {
            Ok(length) if length < 15 => self.bytes.push(length << 4 | kind),
            _ => {
                self.bytes.push(0xf0 | kind);
                put_varint(&mut self.bytes, length as u64);
            }
        }
    }
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    put_varint(bytes, text.len() as u64);
    bytes.extend_from_slice(text.as_bytes());
}

fn put_zigzag(bytes: &mut Vec<u8>, value: i64) {
    put_varint(bytes, ((value << 1) ^ (value >> 63)) as u64);
}

pub(super) fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_written_as_the_protocol_says() {
        let inner = Struct::default().text(4, "ab");
        let bytes = Struct::default().i32(1, -1).i64(3, 300).structure(5, inner).i32s(6, &[0, 3]).end();
        assert_eq!(bytes, [0x15, 1, 0x26, 0xd8, 4, 0x2c, 0x48, 2, b'a', b'b', 0, 0x19, 0x25, 0, 6, 0]);
        let many = Struct::default().texts(1, &["x"; 20]).end();
        assert_eq!(many[..5], [0x19, 0xf8, 20, 1, b'x']);
    }
}
