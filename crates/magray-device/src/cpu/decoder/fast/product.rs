//! Products of rows with a layer's panels, on all threads: few rows as bytes, many on tiles where the machine has them.
//! Chooses what each thread takes; the arithmetic is in the kernels.

use super::fetch::{Fetch, WINDOW_BYTES};
use super::few::{Bytes, FewRows, ROWS};
use super::finish::{Columns, Ending, FinishRows, GateRow};
use super::form::{GROUP, PANEL};
use super::linear::{PanelLinear, Unit};
use super::rows::{FewInputs, PrepareRow};
use super::work::{Inputs, Team, pairs_with};
use crate::cpu::items::share;
use crate::cpu::simd::vectorize;
use crate::cpu::{Shares, ThreadPool};
use magray_core::{Activation, CpuPath};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Up to this many rows each thread prepares all of them for itself: that is less than to wait for each other.
const ROWS_PREPARED_TWICE: usize = 2;
/// From this many rows on a panel is unpacked for the tiles.
const ROWS_FOR_TILES: usize = 20;
/// What products need beside weights and rows.
pub(super) struct Products {
    pub(super) path: CpuPath,
    pub(super) bytes: Bytes,
    pub(super) shares: Shares,
    own: Vec<Mutex<FewInputs>>,
    inputs: FewInputs,
    /// Sums of gates that cannot be finished panel by panel.
    sums: Vec<f32>,
    /// The followers of the layer that was multiplied last.
    last: Option<Arc<[AtomicUsize]>>,
    #[cfg(target_arch = "x86_64")]
    tile_rows: super::many::TileRows,
    #[cfg(target_arch = "x86_64")]
    unpacked: Vec<Mutex<super::many::Unpacked>>,
}

/// Mutable slices that threads share by rows.
struct RowsOf<T> {
    start: *mut T,
    length: usize,
}

// SAFETY: each row is taken by one thread.
unsafe impl<T> Sync for RowsOf<T> {}

impl<T> RowsOf<T> {
    fn new(values: &mut [T], length: usize) -> Self {
        Self { start: values.as_mut_ptr(), length }
    }

    /// # Safety
    /// The row exists and no other borrow of it lives.
    unsafe fn row<'a>(&self, row: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.length), self.length) }
    }
}

impl Products {
    pub(super) fn new(path: CpuPath, bytes: Bytes, threads: usize) -> Self {
        Self {
            path,
            bytes,
            shares: Shares::new(threads),
            own: (0..threads).map(|_| Mutex::default()).collect(),
            inputs: FewInputs::default(),
            sums: Vec::new(),
            last: None,
            #[cfg(target_arch = "x86_64")]
            tile_rows: super::many::TileRows::default(),
            #[cfg(target_arch = "x86_64")]
            unpacked: (0..threads).map(|_| Mutex::default()).collect(),
        }
    }

    /// `out = x * weights + bias`, stored or added.
    pub(super) fn linear(&mut self, pool: &ThreadPool, x: Inputs<'_>, weights: &PanelLinear, out: Columns, add: bool) {
        let ending = if add { Ending::Add } else { Ending::Store };
        self.multiply(pool, x, weights, out, ending);
    }

    /// `out = activation(gate) * up`, the halves of `x * weights + bias`; `out` has rows of half the outputs.
    pub(super) fn gated(
        &mut self,
        pool: &ThreadPool,
        x: Inputs<'_>,
        weights: &PanelLinear,
        (activation, out): (Activation, &mut [f32]),
    ) {
        let width = weights.outputs() / 2;
        if weights.has_halves() && self.takes_whole_panels(x.rows, weights) {
            return self.multiply(pool, x, weights, Columns::of(out, width), Ending::Gate(activation));
        }
        let mut sums = std::mem::take(&mut self.sums);
        sums.resize(sums.len().max(x.rows * 2 * width), 0.0);
        self.multiply(pool, x, weights, Columns::of(&mut sums, 2 * width), Ending::Store);
        let (path, outputs) = (self.path, RowsOf::new(out, width));
        self.team(pool).each_row(x.rows, &|row| {
            let (gates, ups) = sums[row * 2 * width..(row + 1) * 2 * width].split_at(width);
            // SAFETY: a row is one thread's; the path is the machine's.
            unsafe { vectorize(path, GateRow { gates, ups, out: outputs.row(row), activation }) };
        });
        self.sums = sums;
    }

    /// Whether a panel is multiplied in one go, so that a gate can be applied to its sums.
    fn takes_whole_panels(&self, rows: usize, weights: &PanelLinear) -> bool {
        #[cfg(target_arch = "x86_64")]
        if self.uses_tiles(rows) {
            return super::many::groups_at_once(rows, weights.groups()) >= weights.groups();
        }
        let _ = (rows, weights);
        true
    }

    fn uses_tiles(&self, rows: usize) -> bool {
        self.path == CpuPath::Amx && rows >= ROWS_FOR_TILES
    }

    fn multiply(&mut self, pool: &ThreadPool, x: Inputs<'_>, weights: &PanelLinear, out: Columns, ending: Ending) {
        assert_eq!(x.values.len(), x.rows * weights.inputs(), "the layer takes rows of another length");
        if x.rows == 0 {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        if self.uses_tiles(x.rows) {
            let team = Team { path: self.path, pool, shares: &self.shares };
            let rooms = (&mut self.tile_rows, &self.unpacked[..]);
            return super::many::multiply(team, x, rooms, weights, (out, ending));
        }
        self.few(pool, x, weights, out, ending);
    }

    pub(super) fn team<'a>(&'a self, pool: &'a ThreadPool) -> Team<'a> {
        Team { path: self.path, pool, shares: &self.shares }
    }

    fn few(&mut self, pool: &ThreadPool, x: Inputs<'_>, weights: &PanelLinear, out: Columns, ending: Ending) {
        let groups = weights.groups();
        let each_alone = x.rows <= ROWS_PREPARED_TWICE;
        if !each_alone {
            self.prepare(pool, x, weights);
        }
        let others = pairs_with(weights, ending);
        let count = others.map_or(weights.units().len(), <[Unit]>::len);
        let at_once = WINDOW_BYTES / weights.panel_bytes().max(1);
        let at_once = at_once.min(count / (3 * pool.threads())).max(1);
        let items = count.div_ceil(at_once);
        self.shares.fill(items);
        let address = |units: &[Unit], item: usize| {
            units.get(item * at_once).map_or(0, |unit| weights.panel(*unit).1.as_ptr().addr())
        };
        if let Some(last) = &self.last {
            for (rank, follower) in last.iter().enumerate() {
                let first = address(weights.units(), share(items, pool.threads(), rank).start);
                follower.store(first, Ordering::Relaxed);
            }
        }
        self.last = Some(Arc::clone(&weights.followers));
        let this = &*self;
        pool.run(&|rank| {
            let mut own = this.own[rank].lock().unwrap_or_else(PoisonError::into_inner);
            if each_alone {
                own.resize(x.rows, groups, weights.has_bytes());
                for row in 0..x.rows {
                    own.prepare(this.path, &x, row, weights);
                }
            }
            let inputs = if each_alone { &*own } else { &this.inputs };
            let end = share(items, pool.threads(), rank).end;
            for item in this.shares.of(rank) {
                let follows = |units: &[Unit]| {
                    let own = address(units, item);
                    let next = match item + 1 == end {
                        true => weights.followers[rank].load(Ordering::Relaxed),
                        false => address(units, item + 1),
                    };
                    Fetch::new(if next == 0 { own } else { next }, at_once * weights.panel_bytes())
                };
                let mut fetches = [follows(weights.units()), others.map_or(Fetch::new(0, 0), &follows)];
                for at in item * at_once..count.min((item + 1) * at_once) {
                    let pair = [Some(weights.units()[at]), others.map(|others| others[at])];
                    // SAFETY: columns of different units are apart, and each item is taken once.
                    unsafe { this.unit(inputs, x.rows, weights, pair, &mut fetches, (out, ending)) };
                }
            }
        });
    }

    /// Multiplies all rows with one panel, or with a gate's and the other's.
    ///
    /// # Safety
    /// No other thread writes the unit's columns, which `out` has for all rows.
    unsafe fn unit(
        &self,
        inputs: &FewInputs,
        rows: usize,
        weights: &PanelLinear,
        pair: [Option<Unit>; 2],
        fetches: &mut [Fetch; 2],
        (out, ending): (Columns, Ending),
    ) {
        let groups = weights.groups();
        for first in (0..rows).step_by(ROWS) {
            let rows = ROWS.min(rows - first);
            let mut sums = [[0.0f32; ROWS * PANEL]; 2];
            for ((unit, sums), fetch) in pair.iter().zip(&mut sums).zip(fetches.iter_mut()) {
                let Some(unit) = *unit else { continue };
                let (form, panel) = weights.panel(unit);
                let block = FewRows {
                    rows,
                    groups,
                    floats: inputs.floats[first * groups * GROUP..].as_ptr(),
                    bytes: inputs.bytes.get(first * groups * GROUP..).unwrap_or_default().as_ptr(),
                    scales: inputs.scales.get(first * groups..).unwrap_or_default().as_ptr(),
                    panel: panel.as_ptr(),
                };
                // Later rows find the panel near, and what follows was fetched.
                let mut again = Fetch::new(panel.as_ptr().addr(), 1);
                let fetch = if first == 0 { fetch } else { &mut again };
                // SAFETY: inputs were prepared for all rows; the path and its bytes are the machine's.
                unsafe { block.multiply((self.bytes, self.path), form, fetch, sums) };
            }
            let [Some(unit), other] = pair else { return };
            let finish = FinishRows {
                sums: &sums[0][..rows * PANEL],
                others: &sums[1][..rows * PANEL],
                bias: weights.bias(unit),
                other_bias: other.map_or(&[], |other| weights.bias(other)),
                ending,
                out: out.at(first, unit.output as usize),
                stride: out.stride,
                columns: unit.columns as usize,
            };
            // SAFETY: the caller's promise.
            unsafe { vectorize(self.path, finish) };
        }
    }

    /// Prepares all rows, each by one thread.
    fn prepare(&mut self, pool: &ThreadPool, x: Inputs<'_>, weights: &PanelLinear) {
        let (groups, bytes, path) = (weights.groups(), weights.has_bytes(), self.path);
        self.inputs.resize(x.rows, groups, bytes);
        let floats = RowsOf::new(&mut self.inputs.floats, groups * GROUP);
        let integers = RowsOf::new(&mut self.inputs.bytes, groups * GROUP);
        let scales = RowsOf::new(&mut self.inputs.scales, groups);
        let team = Team { path, pool, shares: &self.shares };
        team.each_row(x.rows, &|row| {
            // SAFETY: there is room for all rows; a row is one thread's; the path is the machine's.
            unsafe {
                let bytes = bytes.then(|| (integers.row(row), scales.row(row)));
                vectorize(path, PrepareRow { x: x.row(row), norm: x.norm, floats: floats.row(row), bytes });
            }
        });
    }
}

impl FewInputs {
    fn prepare(&mut self, path: CpuPath, x: &Inputs<'_>, row: usize, weights: &PanelLinear) {
        let groups = weights.groups();
        let numbers = row * groups * GROUP..(row + 1) * groups * GROUP;
        let floats = &mut self.floats[numbers.clone()];
        let bytes = weights.has_bytes().then(|| {
            let scales = &mut self.scales[row * groups..(row + 1) * groups];
            (&mut self.bytes[numbers], scales)
        });
        // SAFETY: the path is the machine's.
        unsafe { vectorize(path, PrepareRow { x: x.row(row), norm: x.norm, floats, bytes }) };
    }
}
