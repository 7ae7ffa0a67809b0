//! The fixture's models, made as files, and a decoder that runs on the CPU.

use std::{path::Path, sync::Arc};

use magray_core::CpuPath;
use magray_device::{DecoderDevice, DecoderOps, PAGE_TOKENS, StepBatch, cpu::Cpu};
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde::Deserialize;
use tempfile::TempDir;

use crate::decoder::{Decoder, DecoderFiles, DecoderRoom};

#[derive(Deserialize)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) config: serde_json::Value,
    pub(super) tensors: Vec<Tensor>,
    pub(super) ids: Vec<u32>,
    pub(super) rows: Vec<usize>,
    pub(super) logits: Vec<Vec<f32>>,
}

#[derive(Deserialize)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    scale: f64,
    offset: f64,
}

pub(super) fn cases() -> Vec<Case> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/decoders.json");
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

impl Tensor {
    /// The numbers that the fixture's script made of the name too.
    pub(super) fn values(&self) -> Vec<f32> {
        let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        let seed = self.name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
        let number = |i: u64| {
            let x = seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let unit = ((x ^ (x >> 31)) >> 40) as f64 / 8388608.0 - 1.0;
            (self.offset + self.scale * unit) as f32
        };
        (1..=self.shape.iter().product::<usize>() as u64).map(number).collect()
    }
}

pub(super) fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

impl Case {
    /// A folder as transformers saves it.
    pub(super) fn folder(&self) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), self.config.to_string()).unwrap();
        let data: Vec<_> = self.tensors.iter().map(|tensor| bytes_of(&tensor.values())).collect();
        let views = self.tensors.iter().zip(&data).map(|(tensor, bytes)| {
            (tensor.name.clone(), TensorView::new(Dtype::F32, tensor.shape.clone(), bytes).unwrap())
        });
        std::fs::write(dir.path().join("model.safetensors"), serialize(views, None).unwrap()).unwrap();
        dir
    }
}

/// A decoder on a device.
pub(super) struct Running<D: DecoderDevice = Cpu> {
    pub(super) decoder: Decoder<D>,
    ops: D::Ops,
    pub(super) pages: <D::Ops as DecoderOps>::Pages,
    room: DecoderRoom<D>,
}

/// The pages of [`Running`].
pub(super) const PAGES: usize = 32;

impl Running {
    /// In 32-bit floats.
    pub(super) fn new(files: &DecoderFiles, context: usize) -> Self {
        Self::on(CpuPath::Portable, files, context)
    }

    pub(super) fn on(path: CpuPath, files: &DecoderFiles, context: usize) -> Self {
        let cpu = Arc::new(Cpu::new(Some(path), Some(2)).unwrap());
        let ops = cpu.decoder();
        Self::on_device(&*cpu, ops, files, context)
    }
}

impl<D: DecoderDevice> Running<D> {
    pub(super) fn on_device(device: &D, ops: D::Ops, files: &DecoderFiles, context: usize) -> Self {
        let decoder = Decoder::load(device, files, context).unwrap();
        let pages = device.pages(decoder.kv_shape(), PAGES).unwrap();
        let room = decoder.room(device);
        Self { ops, decoder, pages, room }
    }

    /// The logits of a batch's wanted rows.
    pub(super) fn step(&mut self, steps: &StepBatch<'_>) -> Vec<Vec<f32>> {
        self.decoder.forward(&mut self.ops, steps, &mut self.pages, &mut self.room);
        let vocab = self.decoder.spec().vocab;
        self.ops.answer().unwrap().chunks_exact(vocab).map(<[f32]>::to_vec).collect()
    }

    /// The logits of some tokens of one sequence, computed at once.
    pub(super) fn logits_at(&mut self, ids: &[u32], rows: &[usize]) -> Vec<Vec<f32>> {
        let pages: Vec<u32> = (0..ids.len().div_ceil(PAGE_TOKENS) as u32).collect();
        self.step(&StepBatch {
            ids,
            offsets: &[0, ids.len()],
            starts: &[0],
            pages: &pages,
            page_offsets: &[0, pages.len()],
            logit_rows: rows,
        })
    }
}

/// How alike two rows of logits are: 1 for the same direction.
pub(super) fn cosine(one: &[f32], other: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(one, other) / (dot(one, one) * dot(other, other)).sqrt()
}
