//! Token ids to measure with, from a file.
//! Runs nothing.

use std::{
    fs::File,
    io::{BufReader, ErrorKind},
    path::Path,
};

use crate::{
    exit::Failure,
    input::{InputError, InputName},
};

pub(super) fn read_ids(path: &Path) -> Result<Vec<Vec<u32>>, Failure> {
    let file = File::open(path).map_err(|reason| match reason.kind() {
        ErrorKind::NotFound => InputError::NotFound { path: path.to_owned() },
        _ => InputError::Unreadable { input: InputName::File(path.to_owned()), reason },
    })?;
    let ids: Vec<Vec<u32>> = serde_json::from_reader(BufReader::new(file)).map_err(|error| InputError::NotJson {
        input: InputName::File(path.to_owned()),
        line: error.line() as u64,
        message: format!("{error}; write token ids as [[101, 102], [101, 7592, 102]]"),
    })?;
    match ids.is_empty() {
        true => Err(InputError::NoTexts { input: path.display().to_string(), skipped: 0 }.into()),
        false => Ok(ids),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_ids_is_read_and_a_bad_one_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ids.json");
        let read = |content: &str| {
            std::fs::write(&path, content).unwrap();
            read_ids(&path).map_err(|failure| failure.to_string())
        };
        assert_eq!(read("[[1, 2], [3]]"), Ok(vec![vec![1, 2], vec![3]]));
        assert!(read("[[1, -2]]").unwrap_err().contains("[[101, 102]"));
        assert!(read("[]").unwrap_err().contains("holds no text"));
    }
}
