//! What a device has computed of a sequence: a digest of its tokens, from which the next token follows.
//! Knows no device and no reader.

use magray_core::schedule::RequestId;

pub(crate) type Name = (RequestId, u32);

/// What a device has computed of a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) tokens: usize,
    pub(crate) digest: u64,
}

impl State {
    pub(crate) fn add(&mut self, id: u64) {
        self.tokens += 1;
        self.digest = mixed(self.digest ^ id);
    }

    pub(crate) fn next(self) -> u64 {
        mixed(self.digest.wrapping_add(1))
    }
}

pub(crate) fn mixed(bits: u64) -> u64 {
    let bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) ^ bits >> 31
}
