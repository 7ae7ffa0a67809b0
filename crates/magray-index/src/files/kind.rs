//! What kind of document a file is, by its first bytes and its name.
//! Never opens a file.

use std::path::Path;

/// Bytes that are looked at for signs of binary data.
const HEAD: usize = 8 << 10;

/// How the text of a file is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// As it is.
    Text,
    /// As it is; its first heading is the title.
    Markdown,
    /// Source code: as it is.
    Code,
    /// Without its tags.
    Html,
    /// Its text layer.
    Pdf,
}

/// `None`: binary data.
pub(super) fn of(path: &Path, bytes: &[u8]) -> Option<Kind> {
    if bytes.starts_with(b"%PDF-") {
        return Some(Kind::Pdf);
    }
    let head = &bytes[..bytes.len().min(HEAD)];
    if !is_utf16(head) && head.contains(&0) {
        return None;
    }
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_ascii_lowercase();
    Some(match extension.as_str() {
        "md" | "markdown" | "mdx" => Kind::Markdown,
        "html" | "htm" | "xhtml" => Kind::Html,
        extension if CODE.contains(&extension) => Kind::Code,
        _ if looks_like_html(head) => Kind::Html,
        _ => Kind::Text,
    })
}

pub(super) fn is_utf16(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff])
}

fn looks_like_html(head: &[u8]) -> bool {
    let head = head.trim_ascii_start();
    [&b"<!doctype html"[..], b"<html"]
        .iter()
        .any(|start| head.get(..start.len()).is_some_and(|first| first.eq_ignore_ascii_case(start)))
}

const CODE: &[&str] = &[
    "asm", "bash", "c", "cc", "clj", "cpp", "cs", "css", "cu", "cxx", "dart", "ex", "exs", "fs", "go", "h", "hpp",
    "hs", "java", "jl", "js", "json", "jsx", "kt", "lua", "m", "ml", "nix", "php", "pl", "proto", "ps1", "py", "r",
    "rb", "rs", "scala", "sh", "sql", "swift", "tf", "toml", "ts", "tsx", "vue", "xml", "yaml", "yml", "zig", "zsh",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_known_by_content_before_name() {
        let check = |name: &str, bytes: &[u8], expected| assert_eq!(of(Path::new(name), bytes), expected, "{name}");
        check("a.txt", b"%PDF-1.4", Some(Kind::Pdf));
        check("a.md", b"\x7fELF\0\0", None);
        check("README.MD", b"# x", Some(Kind::Markdown));
        check("main.rs", b"fn main() {}", Some(Kind::Code));
        check("page", b" <!DOCTYPE HTML>", Some(Kind::Html));
        check("LICENSE", b"", Some(Kind::Text));
        check("windows.txt", b"\xff\xfeh\0i\0", Some(Kind::Text));
    }
}
