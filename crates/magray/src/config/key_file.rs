//! Keys as they are written in settings and files of keys.
//! Compares none: the server does. Messages name files and lines, never a key.

use std::{fs, io, io::Read, path::Path};

use super::ConfigError;

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct WrittenKey {
    secret: String,
    name: Option<String>,
}

const NAME_MAX: usize = 64;
/// Some ten thousand keys; a larger file is one given by mistake.
const FILE_BYTES_MAX: u64 = 1 << 20;

impl WrittenKey {
    pub(crate) fn unnamed(secret: String) -> Self {
        Self { secret, name: None }
    }

    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

pub(super) fn read_key_file(path: &Path, named_by: &str) -> Result<Vec<WrittenKey>, ConfigError> {
    let unreadable = |reason| ConfigError::KeyFile { path: path.to_owned(), named_by: named_by.to_owned(), reason };
    let mut bytes = Vec::new();
    fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(unreadable(io::Error::other(format!("it is larger than {FILE_BYTES_MAX} bytes"))));
    }
    let no_key =
        |line, reason| ConfigError::NoKey { path: path.to_owned(), line, named_by: named_by.to_owned(), reason };
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let before = bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
        no_key(before + 1, "this is no text")
    })?;
    for (line, number) in text.lines().zip(1..) {
        if let Some(reason) = wrong(line) {
            return Err(no_key(number, reason));
        }
    }
    let keys = read_keys(text);
    // A file without a key would leave the server open against the user's intent.
    match keys.is_empty() {
        true => Err(ConfigError::NoKeys { path: path.to_owned(), named_by: named_by.to_owned() }),
        false => Ok(keys),
    }
}

/// What is wrong with a line of a file of keys.
fn wrong(line: &str) -> Option<&'static str> {
    let is_key = |key: &WrittenKey| key.secret.bytes().all(|byte| byte.is_ascii_graphic());
    match line.trim_start() {
        line if line.starts_with('#') => None,
        line if line.starts_with("-----BEGIN") => Some("this is PEM, such as of a certificate"),
        line if line.starts_with(['{', '[']) => Some("this is JSON"),
        line if keys_of_line(line).iter().all(is_key) => None,
        _ => Some("a key has no blanks and only characters of ASCII"),
    }
}

/// Reads keys, one a line or separated by commas. What follows ` #` is the name of the line's key; blank lines and lines
/// that begin with `#` have none.
pub(crate) fn read_keys(text: &str) -> Vec<WrittenKey> {
    text.lines().filter(|line| !line.trim_start().starts_with('#')).flat_map(keys_of_line).collect()
}

fn keys_of_line(line: &str) -> Vec<WrittenKey> {
    let (keys, name) = line.split_once(" #").unwrap_or((line, ""));
    let name: String = name.trim().chars().filter(|letter| !letter.is_control()).take(NAME_MAX).collect();
    let keys = keys.split(',').map(str::trim).filter(|key| !key.is_empty());
    let written =
        |key: &str| WrittenKey { secret: key.to_owned(), name: Some(name.clone()).filter(|name| !name.is_empty()) };
    keys.map(written).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(content: &[u8], expected: Result<&[&str], &str>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        std::fs::write(&path, content).unwrap();
        let read = read_key_file(&path, "server.api_keys_file, default");
        let read = read.map(|keys| keys.into_iter().map(|key| key.secret).collect::<Vec<_>>());
        let told = read.map_err(|error| error.to_string().replace(&path.display().to_string(), "FILE"));
        match expected {
            Ok(keys) => assert_eq!(told.unwrap(), keys),
            Err(message) => assert!(told.as_ref().unwrap_err().starts_with(message), "{told:?}"),
        }
    }

    #[test]
    fn keys_stand_on_lines_or_between_commas() {
        check(b"a, b\n# no\n\n  c  \n", Ok(&["a", "b", "c"]));
        check(b"a#b # a name", Ok(&["a#b"]));
    }

    #[test]
    fn any_file_was_taken_for_keys() {
        check(b"good\nsecret words\n", Err("FILE:2: a key has no blanks and only characters of ASCII; a file of keys"));
        check("good # name\n\nschl\u{fc}ssel\n".as_bytes(), Err("FILE:3: a key has no blanks"));
        check(b"-----BEGIN CERTIFICATE-----\n", Err("FILE:1: this is PEM, such as of a certificate"));
        check(b"{\"keys\":[\"a\"]}\n", Err("FILE:1: this is JSON"));
        check(b"a\nb\n\x00\xff", Err("FILE:3: this is no text"));
        check(b"# none\n", Err("the file of keys FILE (server.api_keys_file, default) holds no key"));
        let folder = tempfile::tempdir().unwrap();
        let error = read_key_file(folder.path(), "server.api_keys_file, default").err().unwrap().to_string();
        let path = folder.path().display();
        assert!(error.starts_with(&format!("cannot read the file of keys {path} (server.api_keys_file")), "{error}");
        assert!(error.contains("directory") && error.ends_with("one key a line"), "{error}");
        let error = read_key_file(std::path::Path::new("/dev/zero"), "x").err().unwrap().to_string();
        assert!(error.contains("larger than"), "{error}");
    }
}
