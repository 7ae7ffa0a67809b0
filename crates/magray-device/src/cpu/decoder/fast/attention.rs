//! Attention of a batch: divides tokens and heads between threads, long contexts into parts, and joins the parts.
//! The arithmetic is in the kernels: for a few new tokens of a sequence by vectors, for many on tiles where the machine has them.

use super::attend::{AttendHalves, HalfRoom};
use super::attend_bytes::{AttendBytes, ByteRoom};
#[cfg(target_arch = "x86_64")]
use super::attend_tiles;
use super::attended::{Attended, Scores};
use super::fetch::{Address, HeadFetch};
use super::few::Bytes;
use super::kv::{HalfPages, PackedPages, PageView};
use super::work::Team;
use super::{Layer, SharedRows};
use crate::cpu::decoder::rows::RowActs;
use crate::cpu::simd::{Kernel, Simd, vectorize};
use crate::{KvShape, PAGE_TOKENS, Step, StepBatch};
#[cfg(target_arch = "x86_64")]
use magray_core::CpuPath;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Pages that a thread takes at once, at least: fewer are not worth what it costs to join them.
const PAGES_LEAST: usize = 24;
/// Pieces of a long context for each thread, so that a fast one can help a slow one.
const PIECES: usize = 4;

/// The buffers of attention.
pub(super) struct Attention {
    own: Vec<Mutex<Room>>,
    /// Attention to parts of long sequences.
    parts: Vec<Mutex<Attended>>,
    #[cfg(target_arch = "x86_64")]
    tile_rooms: Vec<Mutex<attend_tiles::TileRoom>>,
    /// One layer's pages of the sequences that tiles attend to, where they are kept as bytes.
    unpacked: Option<HalfPages>,
}

/// Buffers of one thread.
#[derive(Default)]
struct Room {
    attended: Attended,
    halves: HalfRoom,
    bytes: ByteRoom,
}

/// A new token: its row, its position and its sequence's pages.
struct Token<'a> {
    row: usize,
    position: usize,
    pages: &'a [u32],
}

/// The tokens that one thread attends to for one new token and head.
struct Run<'a> {
    row: usize,
    head: usize,
    /// Their pages.
    pages: &'a [u32],
    /// They themselves, from the first of those pages on.
    tokens: Range<usize>,
    /// Whether they are all that the token attends to.
    is_whole: bool,
    /// The first page's place among all runs' pages.
    first: usize,
}

/// All runs, and what a thread takes at once.
struct Division<'a> {
    runs: Vec<Run<'a>>,
    pieces: Vec<Range<usize>>,
}

impl Attention {
    pub(super) fn new(threads: usize) -> Self {
        Self {
            own: (0..threads).map(|_| Mutex::default()).collect(),
            parts: Vec::new(),
            #[cfg(target_arch = "x86_64")]
            tile_rooms: (0..threads).map(|_| Mutex::default()).collect(),
            unpacked: None,
        }
    }

    pub(super) fn attend(
        &mut self,
        (team, bytes): (Team<'_>, Bytes),
        (steps, layer): (&StepBatch<'_>, &Layer<'_>),
        (qkv, pages): (&RowActs, &PackedPages),
        out: &mut RowActs,
    ) {
        let view = pages.view();
        let KvShape { head_size: size, kv_heads, .. } = view.shape();
        let heads = layer.heads;
        assert!(heads.is_multiple_of(kv_heads), "as many queries for each key");
        assert_eq!((out.columns, qkv.columns), (heads * size, (heads + 2 * kv_heads) * size), "room for all heads");
        let (many, few): (Vec<Step<'_>>, Vec<Step<'_>>) =
            steps.steps().partition(|step| uses_tiles(&team, step.rows.len(), heads / kv_heads));
        #[cfg(target_arch = "x86_64")]
        if !many.is_empty() {
            self.on_tiles(team, (many, layer), (qkv, view), out);
        }
        #[cfg(not(target_arch = "x86_64"))]
        assert!(many.is_empty(), "tiles are chosen on x86-64 alone");
        if !few.is_empty() {
            self.by_vectors((team, bytes), (&few, layer), (qkv, view), out);
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn on_tiles(
        &mut self,
        team: Team<'_>,
        (mut steps, layer): (Vec<Step<'_>>, &Layer<'_>),
        (qkv, view): (&RowActs, PageView),
        out: &mut RowActs,
    ) {
        let table: Vec<u32>;
        let (pages, kept_layer) = match view {
            PageView::Halves(pages) => (pages, layer.layer),
            PageView::Bytes(_) => {
                let count: usize = steps.iter().map(|step| pages_of(step).len()).sum();
                table = (0..count as u32).collect();
                self.unpack(team, (&steps, layer), view, count);
                let mut rest = &table[..];
                for step in &mut steps {
                    (step.pages, rest) = rest.split_at(pages_of(step).len());
                }
                let unpacked = self.unpacked.as_ref().map(HalfPages::view);
                (unpacked.expect("pages were unpacked just now"), 0)
            }
        };
        let columns = out.columns;
        let out = super::Columns::of(out.values_mut(), columns);
        attend_tiles::attend(
            (team.pool, team.shares),
            &self.tile_rooms,
            (&steps, layer),
            (qkv, pages, kept_layer),
            out,
        );
    }

    /// Puts a layer's pages of some sequences into pages of floats, one sequence after the other.
    #[cfg(target_arch = "x86_64")]
    fn unpack(&mut self, team: Team<'_>, (steps, layer): (&[Step<'_>], &Layer<'_>), view: PageView, count: usize) {
        let PageView::Bytes(from) = view else { return };
        let shape = KvShape { layers: 1, ..view.shape() };
        let fits = |pages: &&mut HalfPages| pages.count() >= count && pages.view().shape() == shape;
        if self.unpacked.as_mut().filter(fits).is_none() {
            self.unpacked = Some(HalfPages::new(shape, count.next_power_of_two()));
        }
        let Some(to) = self.unpacked.as_mut().map(HalfPages::view_mut) else { return };
        let mut wanted = Vec::with_capacity(count);
        let mut first = 0;
        for step in steps {
            let (pages, end) = (pages_of(step), step.start + step.rows.len());
            let seen = first_seen(layer, step.start) / PAGE_TOKENS;
            for (at, page) in pages.iter().enumerate().skip(seen) {
                wanted.push((*page, (end - at * PAGE_TOKENS).min(PAGE_TOKENS), (first + at) as u32));
            }
            first += pages.len();
        }
        team.each_row(wanted.len(), &|item| {
            let (page, tokens, to_page) = wanted[item];
            for head in 0..shape.kv_heads {
                let unpacked = Unpacked { from, at: (page, layer.layer, head), tokens, to: (to, to_page) };
                // SAFETY: a page is one thread's; the path is the machine's.
                unsafe { vectorize(team.path, unpacked) };
            }
        });
    }

    fn by_vectors(
        &mut self,
        (team, bytes): (Team<'_>, Bytes),
        (steps, layer): (&[Step<'_>], &Layer<'_>),
        (qkv, view): (&RowActs, PageView),
        out: &mut RowActs,
    ) {
        let KvShape { head_size: size, kv_heads, .. } = view.shape();
        let shared = layer.heads / kv_heads * size;
        let tokens: Vec<Token<'_>> = steps
            .iter()
            .flat_map(|step| {
                let token = move |i| Token { row: step.rows.start + i, position: step.start + i, pages: step.pages };
                (0..step.rows.len()).map(token)
            })
            .collect();
        let seen = |item: usize| {
            let token = &tokens[item / kv_heads];
            let first = first_seen(layer, token.position);
            let pages = &token.pages[first / PAGE_TOKENS..token.position / PAGE_TOKENS + 1];
            let start = first / PAGE_TOKENS * PAGE_TOKENS;
            let tokens = first - start..token.position + 1 - start;
            Run { row: token.row, head: item % kv_heads, pages, tokens, is_whole: true, first: 0 }
        };
        let Division { runs, pieces } = divide((0..tokens.len() * kv_heads).map(seen), team.pool.threads());
        if self.parts.len() < runs.len() {
            self.parts.resize_with(runs.len(), Mutex::default);
        }
        let heads: Vec<Address> = runs
            .iter()
            .flat_map(|run| run.pages.iter().map(|page| Address(view.head(*page, layer.layer, run.head))))
            .collect();
        let (this, columns, heads) = (&*self, out.columns, &heads[..]);
        let rows = SharedRows { start: out.values_mut().as_mut_ptr(), columns };
        // SAFETY: a head of a row is one thread's, and behind the run the caller's.
        let place = |run: &Run<'_>| unsafe { rows.part(run.row, run.head * shared..(run.head + 1) * shared) };
        team.shares.fill(pieces.len());
        team.pool.run(&|rank| {
            let mut room = this.own[rank].lock().unwrap_or_else(PoisonError::into_inner);
            let mut fetch = HeadFetch::new(heads, view.head_bytes());
            for item in team.shares.of(rank).flat_map(|piece| pieces[piece].clone()) {
                let run = &runs[item];
                fetch.read(run.first, run.pages.len());
                let first = run.row * qkv.columns + run.head * shared;
                let queries = &qkv.values()[first..first + shared];
                room.attend((team, bytes), (view, layer), &mut fetch, queries, run);
                if run.is_whole {
                    room.attended.write(size, place(run));
                } else {
                    let mut part = this.parts[item].lock().unwrap_or_else(PoisonError::into_inner);
                    std::mem::swap(&mut *part, &mut room.attended);
                }
            }
        });
        let part = |item: usize| this.parts[item].lock().unwrap_or_else(PoisonError::into_inner);
        let is_next = |run: &Run<'_>, item: usize| {
            runs.get(item).is_some_and(|next| (next.row, next.head) == (run.row, run.head))
        };
        let mut item = 0;
        while item < runs.len() {
            let run = &runs[item];
            if run.is_whole {
                item += 1;
                continue;
            }
            let mut whole = part(item);
            item += 1;
            while is_next(run, item) {
                whole.join(&part(item));
                item += 1;
            }
            whole.write(size, place(run));
        }
    }
}

impl Room {
    fn attend(
        &mut self,
        (team, bytes): (Team<'_>, Bytes),
        (view, layer): (PageView, &Layer<'_>),
        fetch: &mut HeadFetch<'_>,
        queries: &[f32],
        run: &Run<'_>,
    ) {
        let scores = Scores { scale: layer.scale, cap: layer.cap };
        let (attended, layer) = (&mut self.attended, layer.layer);
        let Run { head, pages: table, .. } = *run;
        let tokens = run.tokens.clone();
        // SAFETY: the pages have these tokens; the path and its bytes are the machine's.
        unsafe {
            match view {
                PageView::Halves(pages) => {
                    let room = &mut self.halves;
                    let run =
                        AttendHalves { room, attended, pages, fetch, layer, head, table, queries, scores, tokens };
                    vectorize(team.path, run);
                }
                PageView::Bytes(pages) => {
                    let room = &mut self.bytes;
                    let run = AttendBytes {
                        bytes,
                        room,
                        attended,
                        pages,
                        fetch,
                        layer,
                        head,
                        table,
                        queries,
                        scores,
                        tokens,
                    };
                    vectorize(team.path, run);
                }
            }
        }
    }
}

/// Whether this many new tokens of a sequence are worth tiles, and as many queries for each key fit one.
#[cfg(target_arch = "x86_64")]
fn uses_tiles(team: &Team<'_>, rows: usize, shared: usize) -> bool {
    team.path == CpuPath::Amx && rows >= attend_tiles::ROWS_LEAST && shared <= attend_tiles::BLOCK_ROWS
}

#[cfg(not(target_arch = "x86_64"))]
fn uses_tiles(_: &Team<'_>, _: usize, _: usize) -> bool {
    false
}

/// The first token that the one at a position attends to.
fn first_seen(layer: &Layer<'_>, position: usize) -> usize {
    layer.window.map_or(0, |window| (position + 1).saturating_sub(window))
}

/// The pages of a sequence that hold tokens, the new ones included.
#[cfg(target_arch = "x86_64")]
fn pages_of<'a>(step: &Step<'a>) -> &'a [u32] {
    &step.pages[..(step.start + step.rows.len()).div_ceil(PAGE_TOKENS)]
}

/// Divides what is attended to into pieces of as many pages, at borders of pages. Where there is a lot of it each run is a piece.
fn divide<'a>(whole: impl Iterator<Item = Run<'a>>, threads: usize) -> Division<'a> {
    let mut runs: Vec<Run<'_>> = whole.collect();
    let all: usize = runs.iter().map(|run| run.pages.len()).sum();
    let each = match all.div_ceil(threads) {
        _ if threads == 1 || runs.len() >= 8 * threads => usize::MAX,
        few if few < PIECES * PAGES_LEAST => few.max(1),
        _ => all.div_ceil(PIECES * threads),
    };
    if each == usize::MAX {
        let mut first = 0;
        for run in &mut runs {
            run.first = first;
            first += run.pages.len();
        }
        let pieces = (0..runs.len()).map(|run| run..run + 1).collect();
        return Division { runs, pieces };
    }
    let (mut parts, mut pieces): (Vec<Run<'_>>, Vec<Range<usize>>) = (Vec::new(), Vec::new());
    let (mut first, mut piece) = (0, 0);
    for run in runs {
        let mut at = 0;
        while at < run.pages.len() {
            // Up to the piece's end.
            let count = (run.pages.len() - at).min((first / each + 1) * each - first);
            let start = at * PAGE_TOKENS;
            let tokens = run.tokens.start.saturating_sub(start)..(run.tokens.end - start).min(count * PAGE_TOKENS);
            let is_whole = count == run.pages.len();
            parts.push(Run { pages: &run.pages[at..at + count], tokens, is_whole, first, ..run });
            (at, first) = (at + count, first + count);
            if first.is_multiple_of(each) {
                pieces.push(piece..parts.len());
                piece = parts.len();
            }
        }
    }
    if piece < parts.len() {
        pieces.push(piece..parts.len());
    }
    Division { runs: parts, pieces }
}

/// A page's head of bytes on its way to floats.
#[cfg(target_arch = "x86_64")]
struct Unpacked {
    from: super::kv::ByteView,
    at: (u32, usize, usize),
    tokens: usize,
    to: (super::kv::HalfView, u32),
}

#[cfg(target_arch = "x86_64")]
impl Kernel for Unpacked {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: as the caller's.
        unsafe { self.from.unpack(self.at, self.tokens, self.to) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divided_runs_are_all_tokens_once() {
        let table: Vec<u32> = (0..300).collect();
        for (first, end, threads) in
            [(0, 1, 2), (5, 70, 2), (31, 9_000, 2), (0, 640, 4), (40, 8_001, 16), (0, 3_000, 1)]
        {
            let start = first / PAGE_TOKENS * PAGE_TOKENS;
            let pages = &table[first / PAGE_TOKENS..(end - 1) / PAGE_TOKENS + 1];
            let tokens = first - start..end - start;
            let whole = |head| Run { row: 0, head, pages, tokens: tokens.clone(), is_whole: true, first: 0 };
            let Division { runs, pieces } = divide((0..3).map(whole), threads);
            assert!(pieces.iter().cloned().flatten().eq(0..runs.len()), "every run is in one piece");
            let mut seen: Vec<(usize, usize)> = Vec::new();
            let mut before = 0;
            for run in &runs {
                assert!(run.tokens.end <= run.pages.len() * PAGE_TOKENS);
                assert_eq!((run.first, run.is_whole), (before, run.pages.len() == pages.len()));
                before += run.pages.len();
                seen.extend(run.tokens.clone().map(|token| (run.head, run.pages[0] as usize * PAGE_TOKENS + token)));
            }
            let wanted = (0..3).flat_map(|head| (first..end).map(move |token| (head, token)));
            assert!(seen.into_iter().eq(wanted), "{first}..{end} on {threads}");
            let sizes: Vec<usize> =
                pieces.iter().map(|piece| runs[piece.clone()].iter().map(|run| run.pages.len()).sum()).collect();
            assert!(sizes.iter().rev().skip(1).all(|size| *size == sizes[0]), "pieces are alike: {sizes:?}");
        }
    }
}
