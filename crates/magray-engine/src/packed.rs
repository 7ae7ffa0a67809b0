//! Texts as token ids, and many of them end to end, as a device takes them.
//! Pads nothing.

use crate::tokenize::Encoded;
use magray_device::TokenBatch;

/// A text as token ids.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// The ids, special tokens included.
    pub ids: &'a [u32],
    /// Which text of a pair each token belongs to; empty for all zero.
    pub types: &'a [u32],
}

impl<'a> From<&'a Encoded> for Tokens<'a> {
    fn from(text: &'a Encoded) -> Self {
        let types = if text.type_ids.iter().all(|&kind| kind == 0) { &[] } else { &text.type_ids[..] };
        Self { ids: &text.ids, types }
    }
}

/// Texts end to end; its memory is used again.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    ids: Vec<u32>,
    types: Vec<u32>,
    offsets: Vec<usize>,
}

impl Packed {
    /// Takes these texts instead of those before.
    pub(crate) fn fill<'a>(&mut self, texts: impl Iterator<Item = Tokens<'a>>) {
        self.ids.clear();
        self.types.clear();
        self.offsets.clear();
        self.offsets.push(0);
        for text in texts {
            if !text.types.is_empty() {
                // The texts before had none: theirs are zero.
                self.types.resize(self.ids.len(), 0);
                self.types.extend_from_slice(text.types);
            }
            self.ids.extend_from_slice(text.ids);
            self.offsets.push(self.ids.len());
        }
        if !self.types.is_empty() {
            self.types.resize(self.ids.len(), 0);
        }
    }

    pub(crate) fn batch(&self) -> TokenBatch<'_> {
        TokenBatch { ids: &self.ids, types: &self.types, offsets: &self.offsets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_kept_where_one_text_has_some() {
        let plain = Tokens { ids: &[1, 2], types: &[] };
        let pair = Tokens { ids: &[3, 4, 5], types: &[0, 1, 1] };
        let mut packed = Packed::default();
        packed.fill([plain, pair, plain].into_iter());
        assert_eq!(packed.batch().types, [0, 0, 0, 1, 1, 0, 0]);
        assert_eq!(packed.batch().offsets, [0, 2, 5, 7]);
        packed.fill([plain].into_iter());
        assert_eq!((packed.batch().ids, packed.batch().types), (&[1, 2][..], &[][..]));
    }

    #[test]
    fn zeros_are_no_types() {
        let text = Encoded { ids: vec![7, 8], type_ids: vec![0, 0], truncated: false };
        assert!(Tokens::from(&text).types.is_empty());
    }
}
