//! A matrix in panels, packed once when a model is loaded, and read again by rows where it is a table of tokens.
//! Gives the pages of a mapped file back as it goes: a weight is resident once.

use super::form::{
    EIGHT_BYTES, EIGHT_OFFSET, FOUR_BYTES, FOUR_OFFSET, Form, GROUP, PANEL, SCALE_BYTES, SIX_BYTES, SIX_OFFSET,
    bf16_at, eight_at, four_at, upper_at,
};
use crate::blocks::{BlockMatrix, q4_k_parts, q6_k_parts};
use crate::cpu::sched_slice::yield_core;
use crate::cpu::{Aligned, Region, ThreadPool};
use half::{bf16, f16};
use magray_core::BlockFormat;
use std::sync::{Mutex, PoisonError};

/// Panels that are packed before their pages are given back.
const PANELS_AT_ONCE: usize = 64;

/// The panels of one matrix.
pub(super) struct Panels {
    form: Form,
    bytes: Aligned<u8>,
    outputs: usize,
    /// Groups of inputs, the last filled with zeros.
    groups: usize,
}

impl Panels {
    /// Bytes of a matrix in panels.
    pub(super) fn bytes_of(source: &BlockMatrix) -> usize {
        let groups = source.columns().div_ceil(GROUP);
        source.rows().div_ceil(PANEL) * groups * Form::of(source.format()).group_bytes()
    }

    pub(super) fn pack(source: &BlockMatrix, pool: &ThreadPool, region: &Region) -> Self {
        let form = Form::of(source.format());
        let (outputs, groups) = (source.rows(), source.columns().div_ceil(GROUP));
        let panel_bytes = groups * form.group_bytes();
        let mut bytes = region.zeroed::<u8>(Self::bytes_of(source));
        for (part, packed) in bytes.chunks_mut(PANELS_AT_ONCE * panel_bytes).enumerate() {
            let from = part * PANELS_AT_ONCE * PANEL;
            let rows = from..outputs.min(from + PANELS_AT_ONCE * PANEL);
            let queue = Mutex::new(packed.chunks_exact_mut(panel_bytes).enumerate());
            let source = source.rows_of(rows.clone());
            pool.run(&|_| {
                let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                let mut floats = vec![0.0; groups * GROUP];
                while let Some((panel, packed)) = next() {
                    let first = panel * PANEL;
                    for row in first..rows.len().min(first + PANEL) {
                        pack_row(&source, row, form, &mut floats, (packed, row - first));
                    }
                    yield_core();
                }
            });
            source.release_pages();
        }
        Self { form, bytes, outputs, groups }
    }

    pub(super) fn form(&self) -> Form {
        self.form
    }

    pub(super) fn outputs(&self) -> usize {
        self.outputs
    }

    pub(super) fn groups(&self) -> usize {
        self.groups
    }

    /// How many panels there are; the last may have fewer outputs.
    pub(super) fn count(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    pub(super) fn panel_bytes(&self) -> usize {
        self.groups * self.form.group_bytes()
    }

    pub(super) fn panel(&self, panel: usize) -> &[u8] {
        &self.bytes[panel * self.panel_bytes()..(panel + 1) * self.panel_bytes()]
    }

    /// Writes the weights of an output to `out`.
    pub(super) fn read(&self, output: usize, out: &mut [f32]) {
        let (panel, at) = (self.panel(output / PANEL), output % PANEL);
        for (group, out) in panel.chunks_exact(self.form.group_bytes()).zip(out.chunks_mut(GROUP)) {
            let half = |first: usize| f16::from_le_bytes([group[first + 2 * at], group[first + 2 * at + 1]]).to_f32();
            match self.form {
                Form::Four | Form::FourMin => {
                    let (scale, least) = match self.form {
                        Form::Four => (half(FOUR_BYTES), 0.0),
                        _ => (half(FOUR_BYTES), half(FOUR_BYTES + SCALE_BYTES)),
                    };
                    let offset = if self.form == Form::Four { FOUR_OFFSET } else { 0 };
                    for (input, out) in out.iter_mut().enumerate() {
                        let (byte, high) = four_at(at, input);
                        let q = if high { group[byte] >> 4 } else { group[byte] & 15 };
                        *out = scale * (i32::from(q) - offset) as f32 + least;
                    }
                }
                Form::Six => {
                    for (input, out) in out.iter_mut().enumerate() {
                        let scale = half(SIX_BYTES + input / 16 * SCALE_BYTES);
                        let ((byte, high), (upper, shift)) = (four_at(at, input), upper_at(at, input));
                        let low = if high { group[byte] >> 4 } else { group[byte] & 15 };
                        let q = low | (group[upper] >> shift & 3) << 4;
                        *out = scale * (i32::from(q) - SIX_OFFSET) as f32;
                    }
                }
                Form::Eight => {
                    let scale = half(EIGHT_BYTES);
                    for (input, out) in out.iter_mut().enumerate() {
                        *out = scale * (i32::from(group[eight_at(at, input)]) - EIGHT_OFFSET) as f32;
                    }
                }
                Form::Bf16 => {
                    for (input, out) in out.iter_mut().enumerate() {
                        let byte = bf16_at(at, input);
                        *out = bf16::from_le_bytes([group[byte], group[byte + 1]]).to_f32();
                    }
                }
            }
        }
    }
}

/// Puts a row into its panel, as the output at this place of it.
fn pack_row(source: &BlockMatrix, row: usize, form: Form, floats: &mut [f32], (panel, at): (&mut [u8], usize)) {
    let groups = panel.chunks_exact_mut(form.group_bytes());
    let bytes = || source.row(row);
    match source.format() {
        BlockFormat::Q4_0 => {
            for (block, group) in bytes().as_chunks::<18>().0.iter().zip(groups) {
                put_fours(group, at, |i| halves(&block[2..], i));
                put_half(group, FOUR_BYTES, at, [block[0], block[1]]);
            }
        }
        BlockFormat::Q4_1 => {
            for (block, group) in bytes().as_chunks::<20>().0.iter().zip(groups) {
                put_fours(group, at, |i| halves(&block[4..], i));
                put_half(group, FOUR_BYTES, at, [block[0], block[1]]);
                put_half(group, FOUR_BYTES + SCALE_BYTES, at, [block[2], block[3]]);
            }
        }
        BlockFormat::Q4K => {
            let bytes = bytes();
            let parts = bytes.as_chunks::<144>().0.iter().flat_map(|block| (0..8).map(move |part| (block, part)));
            for ((block, part), group) in parts.zip(groups) {
                let (step, least, fours) = q4_k_parts(block, part);
                put_fours(group, at, |i| fours[i] >> (part % 2 * 4) & 15);
                put_half(group, FOUR_BYTES, at, f16::from_f32(step).to_le_bytes());
                put_half(group, FOUR_BYTES + SCALE_BYTES, at, f16::from_f32(-least).to_le_bytes());
            }
        }
        BlockFormat::Q6K => {
            let bytes = bytes();
            let parts = bytes.as_chunks::<210>().0.iter().flat_map(|block| (0..8).map(move |part| (block, part)));
            for ((block, part), group) in parts.zip(groups) {
                let (steps, sixes) = q6_k_parts(block, part);
                put_fours(group, at, |i| sixes[i] & 15);
                for (input, six) in sixes.iter().enumerate() {
                    let (byte, shift) = upper_at(at, input);
                    group[byte] |= (six >> 4) << shift;
                }
                for (half, step) in steps.into_iter().enumerate() {
                    put_half(group, SIX_BYTES + half * SCALE_BYTES, at, f16::from_f32(step).to_le_bytes());
                }
            }
        }
        BlockFormat::Q8_0 => {
            for (block, group) in bytes().as_chunks::<34>().0.iter().zip(groups) {
                put_eights(group, at, |i| block[2 + i] ^ 0x80);
                put_half(group, EIGHT_BYTES, at, [block[0], block[1]]);
            }
        }
        _ => {
            floats.fill(0.0);
            source.read_row(row, &mut floats[..source.columns()]);
            for (numbers, group) in floats.as_chunks::<GROUP>().0.iter().zip(groups) {
                match form {
                    Form::Bf16 => {
                        for (input, number) in numbers.iter().enumerate() {
                            let byte = bf16_at(at, input);
                            group[byte..byte + 2].copy_from_slice(&bf16::from_f32(*number).to_le_bytes());
                        }
                    }
                    _ => round_to_eight(numbers, group, at),
                }
            }
        }
    }
}

/// Numbers of any kind as bytes and a scale.
fn round_to_eight(numbers: &[f32; GROUP], group: &mut [u8], at: usize) {
    let largest = numbers.iter().fold(0.0f32, |largest, number| largest.max(number.abs()));
    let scale = f16::from_f32(largest / 127.0);
    let inverse = if scale.to_f32() > 0.0 { 1.0 / scale.to_f32() } else { 0.0 };
    put_eights(group, at, |i| ((numbers[i] * inverse).round().clamp(-127.0, 127.0) as i32 + EIGHT_OFFSET) as u8);
    put_half(group, EIGHT_BYTES, at, scale.to_le_bytes());
}

fn halves(bytes: &[u8], i: usize) -> u8 {
    if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 }
}

fn put_fours(group: &mut [u8], output: usize, number: impl Fn(usize) -> u8) {
    for input in 0..GROUP {
        let (byte, high) = four_at(output, input);
        group[byte] |= number(input) << if high { 4 } else { 0 };
    }
}

fn put_eights(group: &mut [u8], output: usize, number: impl Fn(usize) -> u8) {
    for input in 0..GROUP {
        group[eight_at(output, input)] = number(input);
    }
}

fn put_half(group: &mut [u8], first: usize, output: usize, half: [u8; 2]) {
    group[first + 2 * output..first + 2 * output + 2].copy_from_slice(&half);
}
