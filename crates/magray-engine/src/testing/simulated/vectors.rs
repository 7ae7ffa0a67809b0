//! Vectors of a simulated GPU: scored one by one, in numbers of 16 bits as a real one would.
//! Keeps no signs: every scan is exact.

use super::Shared;
use crate::executors::{Failure, HeldVectors};
use crate::gpu::GpuError;
use half::f16;
use magray_device::cuda::{Near, Scan};
use magray_device::scan::is_set;
use std::sync::Arc;

pub(super) struct SimulatedVectors {
    device: Arc<Shared>,
    dims: usize,
    rows: Vec<f32>,
    offsets: Vec<f32>,
}

impl SimulatedVectors {
    pub(super) fn new(device: &Arc<Shared>, dims: usize, room: usize) -> Result<Self, Failure> {
        device.check()?;
        device.memory.take(bytes_of(dims, room)).map_err(GpuError::from)?;
        Ok(Self { device: Arc::clone(device), dims, rows: vec![0.0; dims * room], offsets: vec![0.0; room] })
    }
}

impl HeldVectors for SimulatedVectors {
    fn bytes(&self) -> u64 {
        bytes_of(self.dims, self.offsets.len())
    }

    fn put(&mut self, slots: &[u32], vectors: &[f32], offsets: &[f32]) -> Result<(), Failure> {
        self.device.check()?;
        for ((slot, vector), offset) in slots.iter().zip(vectors.chunks_exact(self.dims)).zip(offsets) {
            let slot = *slot as usize;
            let row = &mut self.rows[slot * self.dims..][..self.dims];
            row.iter_mut().zip(vector).for_each(|(to, from)| *to = short(*from));
            self.offsets[slot] = *offset;
        }
        Ok(())
    }

    fn keep_signs(&mut self, _: Vec<f32>) -> Result<(), Failure> {
        Ok(())
    }

    fn best(&mut self, scan: &Scan<'_>) -> Result<Vec<Vec<Near>>, Failure> {
        self.device.check()?;
        let is_allowed = |slot: usize| scan.allowed.is_none_or(|bits| is_set(bits, slot as u32));
        let of_query = |query: &[f32]| {
            let query: Vec<f32> = query.iter().copied().map(short).collect();
            let score = |slot: usize| {
                let row = &self.rows[slot * self.dims..][..self.dims];
                row.iter().zip(&query).map(|(a, b)| a * b).sum::<f32>() + self.offsets[slot]
            };
            let slots = (0..scan.rows).filter(|slot| is_allowed(*slot));
            let near = slots.map(|slot| Near { slot: slot as u32, score: score(slot) });
            let mut near: Vec<Near> = near.filter(|near| near.score > f32::NEG_INFINITY).collect();
            near.sort_by(|one, other| other.score.total_cmp(&one.score).then(one.slot.cmp(&other.slot)));
            near.truncate(scan.most);
            near
        };
        Ok(scan.queries.chunks_exact(self.dims).map(of_query).collect())
    }
}

impl Drop for SimulatedVectors {
    fn drop(&mut self) {
        self.device.memory.give_back(self.bytes());
    }
}

fn bytes_of(dims: usize, room: usize) -> u64 {
    (room * (dims * 2 + 4)) as u64
}

fn short(number: f32) -> f32 {
    f16::from_f32(number).to_f32()
}
