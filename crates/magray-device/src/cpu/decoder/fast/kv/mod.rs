//! Pages of keys and values in either format, in the order that vectors and tiles read them.
//! Leaves to others which page belongs to which sequence.

mod bytes;
mod halves;

pub(super) use bytes::{BytePages, ByteView, KEY_OFFSET};
pub(super) use halves::{HalfPages, HalfView};

use crate::cpu::simd::Simd;
use crate::{KvFormat, KvShape, PAGE_TOKENS};

/// Tokens, or numbers, of a tile.
const TILE: usize = 16;
const _: () = assert!(PAGE_TOKENS == 2 * TILE, "a page is two tiles of keys");

/// Bytes of a cache line.
const LINE: usize = 64;

/// Numbers of a head with what fills it up to whole tiles.
pub(super) fn padded(head_size: usize) -> usize {
    head_size.next_multiple_of(2 * TILE)
}

/// Pages of keys and values of one model.
pub(in crate::cpu::decoder) enum PackedPages {
    Halves(HalfPages),
    Bytes(BytePages),
}

/// What threads read and write of the pages: each token and head by one thread.
#[derive(Clone, Copy)]
pub(super) enum PageView {
    Halves(HalfView),
    Bytes(ByteView),
}

impl PackedPages {
    pub(in crate::cpu::decoder) fn new(format: KvFormat, shape: KvShape, pages: usize) -> Self {
        match format {
            KvFormat::Halves => Self::Halves(HalfPages::new(shape, pages)),
            KvFormat::Bytes => Self::Bytes(BytePages::new(shape, pages)),
        }
    }

    pub(in crate::cpu::decoder) fn count(&self) -> usize {
        match self {
            Self::Halves(pages) => pages.count(),
            Self::Bytes(pages) => pages.count(),
        }
    }

    pub(super) fn view(&self) -> PageView {
        match self {
            Self::Halves(pages) => PageView::Halves(pages.view()),
            Self::Bytes(pages) => PageView::Bytes(pages.view()),
        }
    }

    pub(super) fn view_mut(&mut self) -> PageView {
        match self {
            Self::Halves(pages) => PageView::Halves(pages.view_mut()),
            Self::Bytes(pages) => PageView::Bytes(pages.view_mut()),
        }
    }
}

/// The place of a token's head.
#[derive(Clone, Copy)]
pub(super) struct TokenPlace {
    pub(super) page: u32,
    pub(super) layer: usize,
    pub(super) head: usize,
    /// Which of the page's.
    pub(super) token: usize,
}

impl PageView {
    pub(super) fn shape(&self) -> KvShape {
        match self {
            Self::Halves(view) => view.shape(),
            Self::Bytes(view) => view.shape(),
        }
    }

    /// Where a page's head begins: keys and then values.
    #[inline(always)]
    pub(super) fn head(&self, page: u32, layer: usize, head: usize) -> *const u8 {
        match self {
            Self::Halves(view) => view.keys(page, layer, head).cast_const().cast(),
            Self::Bytes(view) => view.keys(page, layer, head).cast_const(),
        }
    }

    /// Bytes of a page's head.
    pub(super) fn head_bytes(&self) -> usize {
        match self {
            Self::Halves(view) => view.head_bytes(),
            Self::Bytes(view) => view.head_bytes(),
        }
    }

    /// Fetches the lines that a token is written to.
    #[inline(always)]
    pub(super) fn fetch<S: Simd>(&self, at: TokenPlace) {
        let keys = self.head(at.page, at.layer, at.head);
        let half = self.head_bytes() / 2;
        // A tile has a line for this many numbers of 16 tokens; all keys of a tile, and a line of each tile of values.
        let tile = half / 2 / LINE * LINE;
        let lines = (0..tile).step_by(LINE).map(|line| keys.wrapping_add(at.token / TILE * tile + line));
        let values = keys.wrapping_add(half);
        let of_values = match self {
            Self::Halves(_) => (at.token / 2 * LINE, PAGE_TOKENS / 2 * LINE),
            Self::Bytes(_) => (at.token / 4 * LINE, PAGE_TOKENS / 4 * LINE),
        };
        let tiles = (of_values.0..half).step_by(of_values.1).map(|line| values.wrapping_add(line));
        for line in lines.chain(tiles) {
            // SAFETY: a hint.
            unsafe { S::fetch_near(line) };
        }
    }

    /// Writes key and value of a token.
    ///
    /// # Safety
    /// No other thread uses the token's head; the view is of pages that were borrowed mutably.
    #[inline(always)]
    pub(super) unsafe fn write(&self, at: TokenPlace, key: &[f32], value: &[f32]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Halves(view) => view.write(at, key, value),
                Self::Bytes(view) => view.write(at, key, value),
            }
        }
    }
}
