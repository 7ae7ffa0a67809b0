//! Decoders whose weights leave the GPU and come back: the same logits bit by bit, and recorded steps that stay.
//! A GPU alone has such weights.

use crate::cuda::each_set;
use crate::decoder_model::{Kind, Model, PLAIN, Sequences};
use crate::residency::{tell, with_gpu};
use magray_core::BlockFormat;
use magray_device::cuda::{Cuda, CudaDecoderOps, DeviceError, Site, WeightsBlock};
use magray_device::{BlockLinear, BlockMatrix, DecoderDevice, DecoderOps, SharedMemory};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

const PAGES: usize = 40;

/// A decoder whose weights are one block.
struct Placed {
    model: Model<Cuda>,
    ops: CudaDecoderOps,
    weights: WeightsBlock,
}

impl Placed {
    /// Of the numbers of this seed, or of an image in their place.
    fn new(cuda: &Arc<Cuda>, kind: Kind, seed: u64, image: Option<(SharedMemory, u64)>) -> Self {
        let measured = Site::measuring(cuda);
        Model::packed(&**cuda, &measured, kind, PAGES, 0);
        let site = Site::of_bytes(cuda, measured.bytes()).expect("room for the weights");
        let model = Model::packed(&**cuda, &site, kind, PAGES, seed);
        let weights = match image {
            None => site.fill().expect("weights are brought"),
            Some((memory, bytes)) => site.fill_from(memory, bytes).expect("an image is taken"),
        };
        let mut ops = cuda.decoder().expect("the GPU gives a stream");
        ops.rely_on(&weights);
        Self { model, ops, weights }
    }

    /// The logits of prompts and of the tokens that follow them, and how many steps were recorded for it.
    fn run(&mut self) -> Result<(Vec<u32>, usize), DeviceError> {
        let before = self.ops.recorded();
        let logits = run(&mut self.model, &mut self.ops)?;
        Ok((logits, self.ops.recorded() - before))
    }

    fn offload(&mut self) {
        self.ops.rest().expect("nothing runs any more");
        self.weights.offload().expect("the weights leave");
        assert!(!self.weights.is_resident());
    }

    fn fill_image(&mut self) -> (SharedMemory, u64) {
        fill_image(&mut self.weights)
    }
}

fn fill_image(weights: &mut WeightsBlock) -> (SharedMemory, u64) {
    let memory = SharedMemory::of_bytes(weights.bytes()).expect("memory to share");
    let other = memory.fd().try_clone_to_owned().and_then(SharedMemory::from_fd_whole).expect("the same memory");
    let (told, hears) = channel();
    weights.keep_image(other, Box::new(move |filled| told.send(filled).expect("the test waits for it")));
    let bytes = hears.recv().expect("it is told").expect("the image is filled");
    assert!(weights.image_is_filled() && bytes == weights.bytes());
    (memory, bytes)
}

fn run(model: &mut Model<Cuda>, ops: &mut CudaDecoderOps) -> Result<Vec<u32>, DeviceError> {
    let (mut sequences, mut bits) = (Sequences::new(3, PAGES), Vec::new());
    for (new, seed) in [([70, 5, 33], 1), ([1, 1, 1], 2), ([0, 1, 0], 3), ([1, 9, 1], 4), ([1, 1, 1], 5)] {
        let batch = sequences.advance(&new, model.kind.vocab, seed);
        model.forward(ops, &batch.steps());
        bits.extend(ops.answer()?.iter().map(|logit| logit.to_bits()));
    }
    Ok(bits)
}

#[test]
fn logits_and_recordings_survive_offload_and_wake_on_cuda() {
    each_set(|cuda, name| {
        for format in [BlockFormat::Bf16, BlockFormat::Q8_0, BlockFormat::Q4_0, BlockFormat::Q4_1] {
            let kind = Kind { format, biases: true, head_norms: true, norms_after: true, ..PLAIN };
            let what = format!("{name}, {format}");
            let mut apart = Model::new(&**cuda, kind, PAGES, 1);
            let expected = run(&mut apart, &mut cuda.decoder().expect("the GPU gives a stream")).expect("logits");
            let mut placed = Placed::new(cuda, kind, 1, None);
            let (first, recorded) = placed.run().expect("logits");
            assert!(first == expected && recorded > 0, "{what}: one block, or each layer for itself");
            // What has grown in the middle of the first was recorded anew.
            placed.run().expect("logits");
            assert!(placed.run().expect("logits") == (expected.clone(), 0), "{what}: all is recorded");
            let mut image = None;
            for round in 0..3 {
                placed.offload();
                placed.weights.wake().expect("the weights come back");
                // Perhaps before they are all there.
                assert!(placed.run().expect("logits") == (expected.clone(), 0), "{what}, round {round}");
                placed.weights.wait().expect("the weights are there");
                image.get_or_insert_with(|| placed.fill_image());
            }
            placed.offload();
            assert_eq!(placed.run().err(), Some(DeviceError::Away), "{what}");
            placed.weights.wake().expect("the weights come back");
            assert!(placed.run().expect("logits").0 == expected, "{what}: after a step without weights");
            placed.ops.trim();
            assert!(placed.run().expect("logits").0 == expected, "{what}: after all memory was given back");
            drop(placed);
            // Other numbers, which are not read.
            let mut loaded = Placed::new(cuda, kind, 2, image);
            assert!(loaded.run().expect("logits").0 == expected, "{what}: loaded from an image");
        }
    });
}

#[test]
fn an_image_is_made_of_the_files_while_the_weights_are_away_on_cuda() {
    each_set(|cuda, name| {
        let kind = Kind { format: BlockFormat::Q4_0, hidden: 1024, ffn: 4096, ..PLAIN };
        let mut placed = Placed::new(cuda, kind, 1, None);
        let expected = placed.run().expect("logits").0;
        placed.offload();
        let image = placed.fill_image();
        drop(placed);
        let mut loaded = Placed::new(cuda, kind, 2, Some(image));
        assert!(loaded.run().expect("logits").0 == expected, "{name}");
    });
}

/// The layers of a model of 8B in 16 bits, made of few numbers: how they come and go does not depend on them.
fn put_8b(site: &Site<'_>) {
    let matrix = |columns: usize| {
        let bytes: Vec<u8> =
            (0..1024 * columns * 2).map(|i| ((i as u32).wrapping_mul(2654435761) >> 13) as u8).collect();
        BlockMatrix::new(bytes, BlockFormat::Bf16, columns)
    };
    let (narrow, wide) = (matrix(4096), matrix(14336));
    let linear = |of: &BlockMatrix, thousands| BlockLinear { parts: vec![of.clone(); thousands], bias: Vec::new() };
    let put = |of, thousands| site.block_linear(linear(of, thousands)).map(drop).expect("a layer has its place");
    (0..2).for_each(|_| put(&narrow, 125));
    for _ in 0..32 {
        put(&narrow, 6);
        put(&narrow, 4);
        site.block_gates(linear(&narrow, 28)).map(drop).expect("a layer has its place");
        put(&wide, 4);
    }
}

#[test]
#[ignore = "takes 16 GB of the GPU and 32 of the host: for figures"]
fn a_decoder_of_16_gb_comes_and_goes_on_cuda() {
    with_gpu(
        |options| options,
        |cuda| {
            let measured = Site::measuring(cuda);
            put_8b(&measured);
            let began = Instant::now();
            let site = Site::of_bytes(cuda, measured.bytes()).expect("room for the weights");
            put_8b(&site);
            let mut weights = site.fill().expect("weights are brought");
            let bytes = weights.bytes();
            tell("decoder, load: made and copied", bytes, began);
            let began = Instant::now();
            let (first, _) = fill_image(&mut weights);
            tell("decoder, fill the image", bytes, began);
            for _ in 0..3 {
                let began = Instant::now();
                weights.offload().expect("the weights leave");
                tell("decoder, offload", bytes, began);
                let began = Instant::now();
                weights.wake().expect("the weights come back");
                weights.wait().expect("the weights are there");
                tell("decoder, wake: all there", bytes, began);
            }
            // Taken from the GPU, since the weights are there.
            let (second, _) = fill_image(&mut weights);
            let words_at = |memory: &SharedMemory, at| {
                let mut words = [0; 64];
                memory.read(at, &mut words);
                words
            };
            let last = (bytes / 4) as usize - 64;
            for at in (0..=last).step_by(999_983).chain([last]) {
                assert_eq!(words_at(&first, at), words_at(&second, at), "from word {at}");
            }
        },
    );
}
