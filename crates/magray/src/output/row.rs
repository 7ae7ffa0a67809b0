//! One row of an output, and what rows hold.
//! Writes nothing.

use super::Origin;

pub(crate) struct Row<'a> {
    pub(crate) index: u64,
    pub(crate) text: &'a str,
    pub(crate) id: Option<&'a serde_json::Value>,
    /// Where the text was read, if that is to be written.
    pub(crate) place: Option<Place<'a>>,
    pub(crate) vector: &'a [f32],
    pub(crate) is_truncated: bool,
    pub(crate) origin: &'a Origin,
}

#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) file: Option<&'a str>,
    pub(crate) line: u64,
}

/// What rows hold beside index, id and vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) with_file: bool,
    pub(crate) with_line: bool,
    pub(crate) with_text: bool,
}
