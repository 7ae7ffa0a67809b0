//! Sums of random rows on the devices beside the same on the host, before a model relies on them: hardware that was never tried must not give
//! wrong answers. Decides nothing: it tells what differs.

use super::TensorOps;
use crate::tensor::RankError;
use crate::tensor::parts::TensorActs;
use crate::{DecoderOps, PAGE_TOKENS, SharedOps, StepBatch, SumsPlace};

/// Rows and columns that are tried: one row of 8 KB, and rows that fill no block of threads.
const SHAPES: [(usize, usize); 2] = [(1, 2048), (37, 200)];
/// Sums that follow each other without a wait: an even number, so that the rooms of parts have had their turns.
const SUMS: usize = 6;
/// In this one the last rank has no part.
const SUM_WITHOUT_A_PART: usize = 2;

impl<O: SharedOps> TensorOps<O> {
    /// Tries sums on the devices, which are used afterwards; or tells why they cannot be relied on.
    pub(super) fn try_sums(&mut self, acts: impl Fn(usize) -> TensorActs<O::Acts>) -> Result<(), String> {
        for (rows, columns) in SHAPES {
            let mut acts = acts(columns);
            self.place = SumsPlace::Host("it is being tried".to_owned());
            let on_host = self.summed(&mut acts, rows).map_err(failed)?;
            self.place = SumsPlace::Devices;
            let differ = |own: &[u32]| own.iter().zip(&on_host[0]).filter(|(own, host)| own != host).count();
            // Once as it comes, and once more as devices may have recorded it.
            for _ in 0..2 {
                let on_devices = self.summed(&mut acts, rows).map_err(failed)?;
                if let Some((rank, own)) = on_devices.iter().enumerate().find(|(_, own)| **own != on_host[0]) {
                    let (wrong, all) = (differ(own), own.len());
                    return Err(format!("rank {rank} added up {wrong} of {all} numbers otherwise than the host"));
                }
            }
        }
        Ok(())
    }

    /// The bits of the residual stream on every rank behind some sums.
    fn summed(&mut self, acts: &mut TensorActs<O::Acts>, rows: usize) -> Result<Vec<Vec<u32>>, RankError<O::Error>> {
        let (columns, count) = (acts.columns, self.ranks.len());
        let pages: Vec<u32> = (0..rows.div_ceil(PAGE_TOKENS) as u32).collect();
        let steps = StepBatch {
            ids: &vec![0; rows],
            offsets: &[0, rows],
            starts: &[0],
            pages: &pages,
            page_offsets: &[0, pages.len()],
            logit_rows: &[],
        };
        self.resize(acts, rows);
        self.write_hidden(&steps, &numbers(rows * columns, 0), acts);
        let on_host = self.place != SumsPlace::Devices;
        let part = |sum: usize, rank: usize| numbers(rows * columns, 1 + (sum % 2 * count + rank) as u32);
        let write = |ops: &mut Self, sum: usize, acts: &mut TensorActs<O::Acts>| {
            let room = if on_host { ops.turn } else { (ops.turn + sum) % 2 };
            for (rank, ops) in ops.ranks.iter_mut().enumerate() {
                ops.write_hidden(&steps, &part(sum, rank), &mut acts.sums[room][rank]);
            }
        };
        if !on_host {
            // Devices may put sums off, and nothing is written meanwhile.
            write(self, 0, acts);
            write(self, 1, acts);
        }
        for sum in 0..SUMS {
            if on_host {
                write(self, sum, acts);
            }
            let has_part: Vec<bool> = (1..=count).map(|end| end < count || sum != SUM_WITHOUT_A_PART).collect();
            self.add_up(acts, None, &has_part);
            // A sum on the host leaves itself where the parts were: the next ones are written there.
            if on_host || sum + 1 == SUMS {
                O::catch_up(&mut self.ranks);
                for (ops, hidden) in self.ranks.iter_mut().zip(acts.ranks.iter().flatten()) {
                    ops.send_rows(&steps, hidden);
                }
            }
        }
        let mut all = Vec::new();
        for (rank, (ops, hidden)) in self.ranks.iter_mut().zip(acts.ranks.iter().flatten()).enumerate() {
            match ops.take_rows(hidden) {
                Ok(rows) => all.push(rows.iter().map(|x| x.to_bits()).collect()),
                Err(error) => drop(self.failure.get_or_insert(RankError { rank, error })),
            }
        }
        self.check().map(|()| all)
    }
}

fn failed<E: std::fmt::Display>(error: RankError<E>) -> String {
    format!("it was tried, and failed on {error}")
}

/// Numbers of many sizes and both signs, so that their order shows in a sum. Some places have numbers that a device might take for zero, and
/// nothing that they are added to.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) ^ 0x2545_f491;
    let mut number = |at: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let mixed = (state ^ (state >> 15)).wrapping_mul(0x2c1b_3c6d);
        let (sign, fraction, size) = (mixed & 1 << 31, mixed >> 4 & 0x007f_ffff, 117 + mixed % 21);
        match at % 7 {
            0 if seed == 0 => 0.0,
            0 => f32::from_bits(sign | fraction),
            _ => f32::from_bits(sign | size << 23 | fraction),
        }
    };
    (0..count).map(&mut number).collect()
}
