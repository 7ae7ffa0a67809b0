//! Token ids to measure with: random ones that are the same in every run, or those of a file.
//! Runs nothing.

use std::{
    fs::File,
    io::{BufReader, ErrorKind},
    path::Path,
};

use super::chance::Chance;
use crate::{
    exit::Failure,
    input::{InputError, Place},
};

/// What limits the ids of a model.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) struct Vocabulary {
    pub(in crate::commands) size: usize,
    /// Tokens of a text at most.
    pub(in crate::commands) tokens_max: usize,
}

/// How long the texts of a batch are.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) enum Lengths {
    Equal(usize),
    /// Log-normal, like sentences that people write.
    Ragged,
}

/// The ids that real words of the common vocabularies have; below are special and rare ones.
const WORD_IDS: std::ops::Range<u64> = 1000..29000;

/// Makes a batch. The same arguments make the same batch.
pub(in crate::commands) fn make(texts: usize, lengths: Lengths, vocabulary: &Vocabulary) -> Vec<Vec<u32>> {
    let mut chance = Chance::new(texts as u64);
    let end = WORD_IDS.end.min(vocabulary.size as u64);
    let start = if WORD_IDS.start < end { WORD_IDS.start } else { 0 };
    let mut text = || {
        let tokens = match lengths {
            Lengths::Equal(tokens) => tokens,
            Lengths::Ragged => ragged_length(&mut chance),
        };
        let tokens = tokens.min(vocabulary.tokens_max);
        (0..tokens).map(|_| (start + chance.next() % (end - start)) as u32).collect()
    };
    (0..texts).map(|_| text()).collect()
}

/// Reads a batch from a JSON array of arrays.
pub(in crate::commands) fn read_ids(path: &Path) -> Result<Vec<Vec<u32>>, Failure> {
    let file = File::open(path).map_err(|reason| match reason.kind() {
        ErrorKind::NotFound => InputError::NotFound { path: path.to_owned() },
        _ => InputError::Unreadable { place: Place::File(path.to_owned()), reason },
    })?;
    let ids: Vec<Vec<u32>> = serde_json::from_reader(BufReader::new(file)).map_err(|error| InputError::NotJson {
        place: Place::File(path.to_owned()),
        line: error.line() as u64,
        message: format!("{error}; write token ids as [[101, 102], [101, 7592, 102]]"),
    })?;
    match ids.is_empty() {
        true => Err(InputError::NoTexts { place: Place::File(path.to_owned()) }.into()),
        false => Ok(ids),
    }
}

fn ragged_length(chance: &mut Chance) -> usize {
    // Exp of a normal value of mean 3.0 and deviation 0.8, and 3 more for the special tokens.
    let length = (3.0 + 0.8 * chance.normal()).exp() as usize + 3;
    length.clamp(5, 256)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BERT: Vocabulary = Vocabulary { size: 30522, tokens_max: 512 };

    #[test]
    fn batches_repeat_and_stay_in_the_vocabulary() {
        let batch = make(32, Lengths::Equal(128), &BERT);
        assert_eq!(batch, make(32, Lengths::Equal(128), &BERT));
        assert!(batch.iter().all(|text| text.len() == 128));
        assert!(batch.iter().flatten().all(|id| (1000..29000).contains(id)));
        let tiny = Vocabulary { size: 120, tokens_max: 16 };
        let batch = make(8, Lengths::Equal(128), &tiny);
        assert!(batch.iter().all(|text| text.len() == 16 && text.iter().all(|id| *id < 120)));
    }

    #[test]
    fn ragged_lengths_follow_their_law() {
        let batch = make(20_000, Lengths::Ragged, &BERT);
        let lengths: Vec<usize> = batch.iter().map(Vec::len).collect();
        assert!(lengths.iter().all(|length| (5..=256).contains(length)));
        let mean = lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
        // exp(3 + 0.8^2 / 2) is 27.7; plus 3, less half a token for cutting down to whole ones.
        assert!((mean - 30.2).abs() < 1.0, "{mean}");
    }

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
