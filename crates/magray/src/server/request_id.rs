//! A name for each request, in its answer and in the log.
//! Takes a client's own name where it is harmless, and never one that could forge a line of the log.

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

/// The client's name for its request, or a new one.
pub(crate) fn name(headers: &HeaderMap) -> HeaderValue {
    let is_harmless = |name: &&HeaderValue| {
        let bytes = name.as_bytes();
        (1..=LENGTH_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    };
    headers.get(HEADER).filter(is_harmless).cloned().unwrap_or_else(new)
}

/// A name that no other request has.
pub(crate) fn new() -> HeaderValue {
    // Two servers behind one door must not use the same names; the hasher of the standard library is seeded by chance.
    static SERVER: LazyLock<u32> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()) as u32);
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let name = format!("{:08x}-{number:08x}", *SERVER);
    HeaderValue::from_str(&name).unwrap_or_else(|error| unreachable!("hexadecimal digits: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(bytes: &[u8]) -> HeaderValue {
        let value = HeaderValue::from_bytes(bytes).unwrap();
        name(&[(HEADER, value)].into_iter().collect())
    }

    #[test]
    fn a_harmless_name_is_kept() {
        assert_eq!(named(b"abc-123"), "abc-123");
    }

    #[test]
    fn others_get_a_new_one_each() {
        for bytes in [&b""[..], b"a b", b"\xff", &[b'a'; LENGTH_MAX + 1]] {
            assert_ne!(named(bytes).as_bytes(), bytes);
        }
        assert_ne!(name(&HeaderMap::new()), name(&HeaderMap::new()));
    }
}
