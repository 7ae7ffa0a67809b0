//! One file: its bytes with their digest, then its text and title.
//! Reads regular files alone, no more of one than the limit, and each once.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use sha2::{Digest, Sha256};

use super::{
    FileLimits, html,
    kind::{self, Kind},
    pdf,
    refused::Refused,
};

/// Titles are shown on one line.
const TITLE_CHARS_MAX: usize = 200;

/// The bytes of a file. The digest tells whether it must be indexed again.
pub struct FileBytes {
    bytes: Vec<u8>,
    digest: [u8; 32],
}

/// The text of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// How it was read.
    pub kind: Kind,
    /// From the document itself, or the name of the file.
    pub title: String,
    /// Never blank.
    pub text: String,
}

impl FileBytes {
    /// Reads a file.
    pub fn read(path: &Path, limits: &FileLimits) -> Result<Self, Refused> {
        let unreadable = |error: io::Error| Refused::Unreadable(error.kind());
        // Opening a pipe would wait for its other end.
        if !path.metadata().map_err(unreadable)?.is_file() {
            return Err(Refused::NotAFile);
        }
        let (most, mut bytes) = (limits.file_bytes, Vec::new());
        File::open(path).and_then(|file| file.take(most as u64 + 1).read_to_end(&mut bytes)).map_err(unreadable)?;
        Self::new(bytes, limits)
    }

    /// What came from elsewhere than a file of this machine.
    pub fn new(bytes: Vec<u8>, limits: &FileLimits) -> Result<Self, Refused> {
        match bytes.len() > limits.file_bytes {
            true => Err(Refused::TooLarge { bytes: bytes.len(), most: limits.file_bytes }),
            false => Ok(Self { digest: Sha256::digest(&bytes).into(), bytes }),
        }
    }

    /// SHA-256 of the bytes.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Takes the text out. The path gives the kind, and the title where the document has none.
    pub fn document(self, path: &Path, limits: &FileLimits) -> Result<Document, Refused> {
        let kind = kind::of(path, &self.bytes).ok_or(Refused::Binary)?;
        let (text, title) = match kind {
            Kind::Pdf => pdf::text(self.bytes, limits.file_bytes)?,
            Kind::Html => html::text(&decode(self.bytes)?),
            Kind::Markdown => {
                let text = decode(self.bytes)?;
                let title = markdown_title(&text);
                (text, title)
            }
            Kind::Text | Kind::Code => (decode(self.bytes)?, None),
        };
        if text.trim().is_empty() {
            return Err(Refused::Empty);
        }
        let name = || path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let title = title.unwrap_or_else(name).chars().take(TITLE_CHARS_MAX).collect();
        Ok(Document { kind, title, text })
    }
}

/// UTF-8, or UTF-16 with its mark. Old 8-bit texts lose their letters outside ASCII.
fn decode(bytes: Vec<u8>) -> Result<String, Refused> {
    if kind::is_utf16(&bytes) {
        let big = bytes[0] == 0xfe;
        let pair = |pair: &[u8]| {
            if big { u16::from_be_bytes([pair[0], pair[1]]) } else { u16::from_le_bytes([pair[0], pair[1]]) }
        };
        let units = bytes[2..].chunks_exact(2).map(pair);
        return Ok(char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect());
    }
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let lossy = String::from_utf8_lossy(error.as_bytes()).into_owned();
            // One letter in ten is more than any language has of accents.
            let lost = lossy.chars().filter(|c| *c == char::REPLACEMENT_CHARACTER).count();
            if lost * 10 > lossy.chars().count() {
                return Err(Refused::Binary);
            }
            lossy
        }
    };
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// The first heading, outside of code.
fn markdown_title(text: &str) -> Option<String> {
    let mut in_code = false;
    let mut before = "";
    for line in text.lines() {
        let line = line.trim();
        in_code ^= line.starts_with("```");
        if in_code {
            continue;
        }
        let hashes = line.len() - line.trim_start_matches('#').len();
        if (1..=6).contains(&hashes) && line[hashes..].starts_with(' ') {
            let title = line[hashes..].trim().trim_end_matches('#').trim();
            return (!title.is_empty()).then(|| title.to_owned());
        }
        if !before.is_empty() && line.len() >= 3 && line.bytes().all(|byte| byte == b'=') {
            return Some(before.to_owned());
        }
        before = line;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn document(name: &str, bytes: &[u8]) -> Result<Document, Refused> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("written");
        let limits = FileLimits { file_bytes: 100, ..FileLimits::default() };
        FileBytes::read(&path, &limits)?.document(&path, &limits)
    }

    #[track_caller]
    fn check(name: &str, bytes: &[u8], title: &str, text: &str) {
        let found = document(name, bytes).expect("a text");
        assert_eq!((found.title.as_str(), found.text.as_str()), (title, text));
    }

    #[test]
    fn texts_of_all_kinds_have_titles() {
        check("notes.txt", "\u{feff}hello".as_bytes(), "notes.txt", "hello");
        check("a.md", b"```\n# no\n```\n## Yes ##\ntext", "Yes", "```\n# no\n```\n## Yes ##\ntext");
        check("b.md", b"Under\n=====\n", "Under", "Under\n=====\n");
        check("c.html", b"<title>T</title><p>x", "T", "x");
        check("d.txt", b"\xff\xfeh\0i\0", "d.txt", "hi");
        check("latin.txt", b"na\xefve words are kept", "latin.txt", "na\u{fffd}ve words are kept");
    }

    #[test]
    fn what_is_no_text_is_refused_with_a_reason() {
        assert!(matches!(document("x.bin", b"ab\0cd"), Err(Refused::Binary)));
        assert!(matches!(document("x.txt", &[0xff; 50]), Err(Refused::Binary)));
        assert!(matches!(document("x.txt", b" \n"), Err(Refused::Empty)));
        assert!(matches!(document("x.txt", &[b'a'; 101]), Err(Refused::TooLarge { most: 100, .. })));
        let missing = FileBytes::read(Path::new("/nowhere/x"), &FileLimits::default()).err().expect("refused");
        assert!(missing.to_string().contains("not found"), "{missing}");
        let folder = FileBytes::read(Path::new("/"), &FileLimits::default()).err();
        assert!(matches!(folder, Some(Refused::NotAFile)));
    }

    #[test]
    fn the_digest_is_of_the_bytes() {
        let folder = tempfile::tempdir().expect("a folder");
        let digest = |name: &str, text: &str| {
            fs::write(folder.path().join(name), text).expect("written");
            FileBytes::read(&folder.path().join(name), &FileLimits::default()).expect("read").digest()
        };
        assert_eq!(digest("a", "x"), digest("b", "x"));
        assert_ne!(digest("a", "x"), digest("a", "y"));
    }
}
