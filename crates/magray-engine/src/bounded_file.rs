//! Reads a small file of a model whole, within a limit of its kind.
//! Refuses pipes and devices, which have no end, and files that are larger than any real one.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

/// The largest real ones (an index of shards, a tokenizer_config.json with many added tokens) have a few megabytes.
pub(crate) const SETTINGS_BYTES_MAX: u64 = 16 << 20;

/// The largest real tokenizer.json, with a quarter of a million tokens, has about 35 MB.
pub(crate) const TOKENIZER_BYTES_MAX: u64 = 64 << 20;

/// The bytes of a file of a limited length.
pub(crate) fn read(file: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    // Asked before opening: to open a pipe waits for a writer.
    if !fs::metadata(file)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(file)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let reason = format!("it has more than {bytes_max} bytes, the most that is read of such a file");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit_and_not_beyond() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "12345").unwrap();
        assert_eq!(read(&file, 5).unwrap(), b"12345");
        assert_eq!(read(&file, 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read(&dir.path().join("none"), 4).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(read(dir.path(), 4).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[cfg(unix)]
    #[test]
    fn a_device_without_an_end_is_refused() {
        assert_eq!(read(Path::new("/dev/zero"), 4).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
