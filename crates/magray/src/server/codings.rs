//! Compressed requests and answers: which codings are known, and how bodies are unpacked and packed.
//! Unpacks no more than a request may have and is held for, and packs nothing that stays nearly as large.

use std::io::{Read, Write};

use axum::{
    body::{Body, Bytes, HttpBody},
    response::{IntoResponse, Response},
};
use flate2::{Compression, read::MultiGzDecoder, write::GzEncoder};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::BodyExt;
use tokio::sync::Semaphore;

use super::{
    admission::HeldBytes,
    errors::{Kind, Problem},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    Gzip,
    Zstd,
}

/// Unpacked at once; each piece is held before it is there.
const PIECE_BYTES: usize = 64 << 10;
/// The memory of the past that a frame of zstd may ask for, which HTTP limits to this.
const WINDOW_LOG_MAX: u32 = 23;
/// Answers below this are sent in a few packets as they are.
const ANSWER_BYTES_MIN: u64 = 16 << 10;
/// A part of an answer that tells whether all of it would get smaller.
const SAMPLE_BYTES: usize = 4 << 10;
/// The fastest levels: vectors do not get much smaller by slower ones.
const ZSTD_LEVEL: i32 = 1;

impl Coding {
    /// The coding of a request's body; `None`: it is plain.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Option<Self>, Problem> {
        let Some(value) = headers.get(header::CONTENT_ENCODING) else { return Ok(None) };
        match value.to_str().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(None),
            "gzip" | "x-gzip" => Ok(Some(Self::Gzip)),
            "zstd" => Ok(Some(Self::Zstd)),
            _ => {
                let message = "this content-encoding is not known: send the body in gzip or zstd, or plain";
                Err(Problem::new(Kind::UnknownCoding, message))
            }
        }
    }

    /// The coding that a client likes best of those known here; of equal ones the faster.
    fn accepted(value: &HeaderValue) -> Option<Self> {
        let mut best: Option<(f32, Self)> = None;
        for item in value.to_str().ok()?.split(',') {
            let (name, weight) = item.split_once(';').unwrap_or((item, ""));
            let weight = weight.trim().strip_prefix("q=").map_or(Some(1.0), |weight| weight.trim().parse().ok());
            let coding = match name.trim().to_ascii_lowercase().as_str() {
                "zstd" => Self::Zstd,
                "gzip" | "x-gzip" | "*" => Self::Gzip,
                _ => continue,
            };
            let Some(weight) = weight.filter(|weight: &f32| *weight > 0.0) else { continue };
            let is_better =
                |(known, other): &(f32, Self)| weight > *known || (weight == *known && *other == Self::Gzip);
            if best.as_ref().is_none_or(is_better) {
                best = Some((weight, coding));
            }
        }
        best.map(|(_, coding)| coding)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    /// Unpacks a body of at most this many bytes, each of which is held. Blocks.
    pub(crate) fn unpack(self, packed: &[u8], most: u64, held: &mut HeldBytes) -> Result<Bytes, Problem> {
        let broken = |error| Problem::new(Kind::Malformed, format!("the body is no {}: {error}", self.name()));
        let mut reader: Box<dyn Read + '_> = match self {
            Self::Gzip => Box::new(MultiGzDecoder::new(packed)),
            Self::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(packed).map_err(broken)?;
                decoder.window_log_max(WINDOW_LOG_MAX).map_err(broken)?;
                Box::new(decoder)
            }
        };
        let mut whole = Vec::new();
        while !packed.is_empty() {
            // A window holds a copy of what was unpacked last.
            let has_window = self == Self::Zstd && whole.len() < 1 << WINDOW_LOG_MAX;
            held.grow(PIECE_BYTES as u64 * if has_window { 2 } else { 1 })?;
            let read = reader.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut whole).map_err(broken)?;
            if whole.len() as u64 > most {
                return Err(Problem::new(
                    Kind::TooLarge,
                    format!("the body of the request has more than {most} bytes when it is unpacked: send fewer texts"),
                ));
            }
            if read < PIECE_BYTES {
                break;
            }
        }
        held.resize(whole.len() as u64);
        Ok(whole.into())
    }

    /// `None`: it would stay nearly as large.
    fn pack(self, plain: &[u8]) -> Option<Vec<u8>> {
        let middle = plain.len().saturating_sub(SAMPLE_BYTES) / 2;
        let sample = &plain[middle..plain.len().min(middle + SAMPLE_BYTES)];
        let is_worth_it = |packed: &[u8], plain: &[u8]| packed.len() * 3 <= plain.len() * 2;
        if !is_worth_it(&zstd::bulk::compress(sample, ZSTD_LEVEL).ok()?, sample) {
            return None;
        }
        let packed = match self {
            Self::Zstd => zstd::bulk::compress(plain, ZSTD_LEVEL).ok()?,
            Self::Gzip => {
                let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 2), Compression::fast());
                encoder.write_all(plain).ok()?;
                encoder.finish().ok()?
            }
        };
        is_worth_it(&packed, plain).then_some(packed)
    }
}

/// Packs a large answer where its client accepts that and it gets smaller; `writers` bounds how many are packed at once.
pub(super) async fn pack_answer(response: Response, accepted: Option<HeaderValue>, writers: &Semaphore) -> Response {
    let is_packable = response.status() == StatusCode::OK
        && response.body().size_hint().exact().is_some_and(|bytes| bytes >= ANSWER_BYTES_MIN)
        && !response.headers().contains_key(header::CONTENT_ENCODING)
        && response.headers().get(header::CONTENT_TYPE).is_some_and(is_text);
    let Some(coding) = accepted.filter(|_| is_packable).as_ref().and_then(Coding::accepted) else { return response };
    let (mut parts, body) = response.into_parts();
    // It is in one piece: nothing is waited for or copied.
    let Ok(whole) = body.collect().await else {
        return Problem::new(Kind::Internal, "the answer could not be written").into_response();
    };
    let plain = whole.to_bytes();
    parts.headers.append(header::VARY, HeaderValue::from_static("accept-encoding"));
    // The semaphore is never closed.
    let _permit = writers.acquire().await.ok();
    let own = plain.clone();
    match tokio::task::spawn_blocking(move || coding.pack(&own)).await {
        Ok(Some(packed)) => {
            parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
            parts.headers.remove(header::CONTENT_LENGTH);
            Response::from_parts(parts, Body::from(packed))
        }
        _ => Response::from_parts(parts, Body::from(plain)),
    }
}

fn is_text(kind: &HeaderValue) -> bool {
    [b"application/json".as_slice(), b"text/"].iter().any(|start| kind.as_bytes().starts_with(start))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::server::admission::Admission;

    const BOTH: [Coding; 2] = [Coding::Gzip, Coding::Zstd];

    fn packed(coding: Coding, plain: &[u8]) -> Vec<u8> {
        match coding {
            Coding::Zstd => zstd::bulk::compress(plain, 3).unwrap(),
            Coding::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
                encoder.write_all(plain).unwrap();
                encoder.finish().unwrap()
            }
        }
    }

    #[test]
    fn what_was_packed_is_unpacked_and_held() {
        let plain = serde_json::to_vec(&vec!["river"; 40_000]).unwrap();
        for coding in BOTH {
            let admission = Arc::new(Admission::new(1 << 30));
            let mut held = admission.hold(0).unwrap();
            let unpacked = coding.unpack(&packed(coding, &plain), 1 << 30, &mut held).unwrap();
            assert_eq!((&*unpacked, admission.held()), (&*plain, plain.len() as u64));
            let twice = [packed(coding, b"a"), packed(coding, b"b")].concat();
            assert_eq!(coding.unpack(&twice, 9, &mut held).unwrap(), "ab");
            assert!(coding.unpack(b"", 9, &mut held).unwrap().is_empty());
        }
    }

    #[test]
    fn a_bomb_is_refused_before_it_is_held() {
        let plain = vec![b' '; 64 << 20];
        for coding in BOTH {
            let admission = Arc::new(Admission::new(1 << 30));
            let bomb = packed(coding, &plain);
            assert!(bomb.len() < 100_000);
            let mut held = admission.hold(0).unwrap();
            let refused = coding.unpack(&bomb, 1 << 20, &mut held).unwrap_err();
            assert_eq!(refused.kind, Kind::TooLarge);
            assert!(admission.held() < 4 << 20, "{}", admission.held());
            // Where others hold the memory, it is refused by that.
            let admission = Arc::new(Admission::new(8 << 20));
            let (_others, mut held) = (admission.hold(1 << 20).unwrap(), admission.hold(0).unwrap());
            assert_eq!(coding.unpack(&bomb, 64 << 20, &mut held).unwrap_err().kind, Kind::Busy);
            assert!(admission.held() <= 8 << 20);
        }
    }

    #[test]
    fn what_is_broken_is_malformed() {
        let admission = Arc::new(Admission::new(1 << 30));
        for coding in BOTH {
            let mut held = admission.hold(0).unwrap();
            let mut cut = packed(coding, &vec![b'a'; 100_000]);
            cut.truncate(cut.len() - 3);
            for body in [b"hello".as_slice(), &cut] {
                assert_eq!(coding.unpack(body, 1 << 20, &mut held).unwrap_err().kind, Kind::Malformed, "{coding:?}");
            }
        }
    }

    #[test]
    fn a_client_gets_what_it_likes_best() {
        let accepted = |value: &'static str| Coding::accepted(&HeaderValue::from_static(value));
        assert_eq!(accepted("gzip, deflate, br, zstd"), Some(Coding::Zstd));
        assert_eq!(accepted("gzip;q=1.0, zstd;q=0.5"), Some(Coding::Gzip));
        assert_eq!(accepted("zstd;q=0, gzip;q=0.1"), Some(Coding::Gzip));
        assert_eq!(accepted("*"), Some(Coding::Gzip));
        for value in ["", "identity", "br", "gzip;q=0", "gzip;q=x"] {
            assert_eq!(accepted(value), None, "{value}");
        }
    }

    #[test]
    fn only_what_gets_smaller_is_packed() {
        let mut number = 1_u32;
        let mut next = || {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(number) / f64::from(u32::MAX) - 0.5
        };
        let numbers: Vec<f64> = (0..10_000).map(|_| next()).collect();
        let floats = serde_json::to_vec(&numbers.iter().map(|number| *number as f32).collect::<Vec<_>>()).unwrap();
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| (*number as f32).to_le_bytes()).collect();
        let base64 = base64_simd::STANDARD.encode_to_string(&bytes);
        for coding in BOTH {
            let admission = Arc::new(Admission::new(1 << 30));
            let packed = coding.pack(&floats).expect("digits get smaller");
            assert_eq!(coding.unpack(&packed, 1 << 30, &mut admission.hold(0).unwrap()).unwrap(), floats);
            assert!(coding.pack(base64.as_bytes()).is_none(), "base64 of numbers hardly gets smaller");
        }
    }
}
