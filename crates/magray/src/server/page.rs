//! The files of the page, as they are in the binary, with the rules that browsers are to keep for them.
//! Asks for no key: the files say nothing of the server. What the page shows it asks for by routes that check.

use std::sync::LazyLock;

use axum::{
    Router,
    body::Body,
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use sha2::{Digest, Sha256};

use super::app::App;

/// Where the page is; its files are below.
pub(super) const PATHS: [&str; 6] = ["/ui", "/ui/", "/ui/app.js", "/ui/worker.js", "/ui/style.css", "/ui/icon.svg"];

/// Nothing but the page's own files and the server's own answers: no script or style in a document, no other host, no frame,
/// and no text of a model or a document that is read as HTML.
const POLICY: &str = "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types magray";

const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    // A new version of the binary has other files by the same names.
    (header::CACHE_CONTROL, "no-cache"),
];

struct File {
    kind: &'static str,
    bytes: &'static [u8],
    tag: LazyLock<HeaderValue>,
}

macro_rules! file {
    ($name:literal, $kind:literal) => {{
        const BYTES: &[u8] = include_bytes!(concat!("../../ui/dist/", $name));
        static FILE: File = File { kind: $kind, bytes: BYTES, tag: LazyLock::new(|| tag_of(BYTES)) };
        get(|headers: HeaderMap| async move { FILE.answer(&headers) })
    }};
}

/// What answers the paths.
pub(super) fn handlers() -> Router<App> {
    Router::new()
        .route("/ui", get(|| async { (StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, "ui/")]) }))
        .route("/ui/", file!("index.html", "text/html; charset=utf-8"))
        .route("/ui/app.js", file!("app.js", "text/javascript; charset=utf-8"))
        .route("/ui/worker.js", file!("worker.js", "text/javascript; charset=utf-8"))
        .route("/ui/style.css", file!("style.css", "text/css; charset=utf-8"))
        .route("/ui/icon.svg", file!("icon.svg", "image/svg+xml"))
}

fn tag_of(bytes: &[u8]) -> HeaderValue {
    let digest = Sha256::digest(bytes);
    let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    HeaderValue::from_str(&format!("\"{hex}\"")).unwrap_or_else(|_| unreachable!("digits are a header"))
}

impl File {
    fn answer(&self, asked: &HeaderMap) -> Response {
        // Caches may call a tag weak when they pack what it is of.
        let is_known = asked.get_all(header::IF_NONE_MATCH).iter().any(|tags| {
            let tags = tags.to_str().unwrap_or_default().split(',').map(|tag| tag.trim().trim_start_matches("W/"));
            tags.into_iter().any(|tag| self.tag.as_bytes() == tag.as_bytes())
        });
        let mut response = match is_known {
            true => StatusCode::NOT_MODIFIED.into_response(),
            false => Body::from(Bytes::from_static(self.bytes)).into_response(),
        };
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind));
        headers.insert(header::ETAG, self.tag.clone());
        headers.extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
        response
    }
}

#[cfg(test)]
mod tests {
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    /// The budget of all files together, packed.
    const PACKED_BYTES_MAX: usize = 300 << 10;

    #[test]
    fn the_page_is_small() {
        let mut packed = 0;
        for file in [
            include_bytes!("../../ui/dist/index.html").as_slice(),
            include_bytes!("../../ui/dist/app.js"),
            include_bytes!("../../ui/dist/worker.js"),
            include_bytes!("../../ui/dist/style.css"),
            include_bytes!("../../ui/dist/icon.svg"),
        ] {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(file).unwrap();
            packed += encoder.finish().unwrap().len();
        }
        assert!(packed <= PACKED_BYTES_MAX, "{packed}");
    }

    #[test]
    fn the_document_has_no_script_or_style_of_its_own_and_names_no_host() {
        let document = include_str!("../../ui/dist/index.html");
        assert!(!document.contains("http:") && !document.contains("https:") && !document.contains("<style"));
        assert!(!document.contains("style=") && !document.contains(" on"), "{document}");
        let scripts: Vec<&str> = document.split("<script").skip(1).collect();
        assert!(scripts.iter().all(|script| script.contains("src=") && script.contains("></script>")), "{document}");
    }
}
