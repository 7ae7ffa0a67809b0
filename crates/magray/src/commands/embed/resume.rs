//! Continues what an earlier run has begun: finds the place in the input, and says what must be the same.
//! Trusts neither names nor times of files: texts are compared by their digest.

use sha2::{Digest, Sha256};

use crate::{
    exit::Failure,
    input::{InputError, Text, Texts},
    output::{Record, hex},
};

/// Of all texts so far, with their ids.
#[derive(Clone, Default)]
pub(super) struct InputDigest(Sha256);

impl InputDigest {
    pub(super) fn add(&mut self, texts: &[Text]) {
        for text in texts {
            let id = text.id.as_ref().map(ToString::to_string).unwrap_or_default();
            for part in [text.text.as_bytes(), id.as_bytes(), &text.line.to_le_bytes()] {
                self.0.update((part.len() as u64).to_le_bytes());
                self.0.update(part);
            }
        }
    }

    pub(super) fn hex(&self) -> String {
        hex(self.0.clone())
    }
}

/// Where this run starts.
pub(super) struct Start {
    /// The first texts that have no vectors yet; none if all have.
    pub(super) first: Vec<Text>,
    /// Of all texts up to and with the first ones.
    pub(super) digest: InputDigest,
    pub(super) texts_before: u64,
    pub(super) bytes_before: u64,
}

impl Start {
    /// Reads the first window, after the texts that an earlier run has embedded.
    pub(super) fn find(texts: &mut Texts, last: Option<&Record>) -> Result<Self, InputError> {
        let mut digest = InputDigest::default();
        let mut texts_before = 0;
        while let Some(last) = last
            && texts_before < last.texts
        {
            // Windows are the same in every run, so that an earlier one ended where a window does.
            let window = texts.next_window()?;
            texts_before += window.len() as u64;
            digest.add(&window);
            let is_same = match texts_before < last.texts {
                true => !window.is_empty(),
                false => texts_before == last.texts && digest.hex() == last.input_digest,
            };
            if !is_same {
                return Err(texts.changed(last.texts));
            }
        }
        let bytes_before = texts.bytes_read();
        let first = texts.next_window()?;
        if first.is_empty() && last.is_none() {
            return Err(texts.nothing());
        }
        digest.add(&first);
        Ok(Self { first, digest, texts_before, bytes_before })
    }
}

/// `--resume` without a file has nothing to go on with.
pub(super) fn no_file() -> Failure {
    Failure::Usage("--resume continues a file: name it with --output".to_owned())
}
