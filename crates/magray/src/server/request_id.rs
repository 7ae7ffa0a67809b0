//! An id for each request, in its answer and in the log.
//! Takes a client's own id where it is harmless, and never one that could forge a line of the log.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use http::{HeaderMap, HeaderName, HeaderValue};

pub(crate) const HEADER: HeaderName = HeaderName::from_static("x-request-id");

const LENGTH_MAX: usize = 128;

pub(crate) fn of(headers: &HeaderMap) -> HeaderValue {
    let is_harmless = |id: &&HeaderValue| {
        let bytes = id.as_bytes();
        (1..=LENGTH_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    };
    headers.get(HEADER).filter(is_harmless).cloned().unwrap_or_else(new)
}

pub(crate) fn new() -> HeaderValue {
    // Servers behind one proxy must not use the same ids; the standard library's hasher has a random seed.
    static SERVER: LazyLock<u32> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()) as u32);
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let id = format!("{:08x}-{number:08x}", *SERVER);
    HeaderValue::from_str(&id).unwrap_or_else(|error| unreachable!("hexadecimal digits: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(bytes: &[u8]) -> HeaderValue {
        let value = HeaderValue::from_bytes(bytes).unwrap();
        of(&[(HEADER, value)].into_iter().collect())
    }

    #[test]
    fn a_harmless_id_is_kept() {
        assert_eq!(with(b"abc-123"), "abc-123");
    }

    #[test]
    fn others_get_a_new_one_each() {
        for bytes in [&b""[..], b"a b", b"\xff", &[b'a'; LENGTH_MAX + 1]] {
            assert_ne!(with(bytes).as_bytes(), bytes);
        }
        assert_ne!(of(&HeaderMap::new()), of(&HeaderMap::new()));
    }
}
