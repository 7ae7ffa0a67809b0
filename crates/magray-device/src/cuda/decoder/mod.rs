//! A decoder's operations on a GPU. They only note their kernels; a step is launched as a whole when its logits are asked for, as a
//! recording where the same step came before. What goes wrong is kept and told by `answer`.

mod arguments;
mod attention;
mod batch;
mod crossing;
mod draws;
mod launches;
mod masks;
mod memory;
mod packing;
mod plans;
mod products;
mod results;
mod shared;
mod together;
mod weights;

pub use memory::{DecoderActs, DecoderPages};
pub use weights::{DecoderLinear, DecoderNorm, DecoderRope, decoder_linear_bytes};

use super::decoder_kernels::DecoderKernel;
use super::device::Cuda;
use super::device_error::DeviceError;
use super::function::LaunchShape;
use super::memory::DeviceBuffer;
use super::stream::{Stream, Urgency};
use super::weights::{Ground, WeightsBlock};
use crate::{AttentionLayer, Choice, DecoderOps, Mask, StepBatch};
use arguments::{Argument, FINISH_ADD, FINISH_FLOATS, FINISH_GATED, FINISH_ROWS, Finish, int, int_of};
use batch::{Layout, Shape};
use crossing::Crossing;
use launches::{Launch, Recordings};
use magray_core::Activation;
use memory::Scratch;
use results::Results;
use shared::Joined;
use std::sync::Arc;

/// Parts of a row's sum of squares at most.
const PARTS_MOST: usize = 1024;

impl Cuda {
    /// A decoder's operations, with a stream of their own.
    pub fn decoder(self: &Arc<Self>) -> Result<CudaDecoderOps, DeviceError> {
        CudaDecoderOps::new(Arc::clone(self))
    }
}

/// A decoder's operations on a GPU.
#[derive(Debug)]
pub struct CudaDecoderOps {
    cuda: Arc<Cuda>,
    stream: Stream,
    /// The step that is put together.
    launches: Vec<Launch>,
    recordings: Recordings,
    shape: Shape,
    layout: Layout,
    /// The batch, where kernels read it.
    batch: DeviceBuffer,
    /// The residual stream times the gains of the norm that reads it next, and sums of its squares.
    shadow: Scratch,
    parts: Scratch,
    shadowed: Option<Shadowed>,
    /// The rows whose logits are wanted, as the shadow and the parts are.
    wanted: Scratch,
    wanted_parts: Scratch,
    /// Products that are normalised before they are added.
    sums: Scratch,
    /// Weights of 4 and 8 bits, as numbers.
    unpacked: Scratch,
    attention: attention::Room,
    /// How the next step draws tokens.
    choices: Vec<Choice>,
    /// Whether its tokens are chosen behind it.
    chooses_later: bool,
    results: Results,
    crossing: Crossing,
    /// What steps multiply with.
    weights: Option<Arc<Ground>>,
    /// Where it is one of several that read each other's parts of sums.
    joined: Option<Joined>,
    failure: Option<DeviceError>,
}

/// What the shadow is of.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shadowed {
    hidden: u64,
    /// The norm's gains; none while the next norm is not known, and the kernel that will write the shadow waits for them.
    gain: Option<u64>,
    /// The kernels that wrote it, which are the last ones up to `launch`.
    first_launch: usize,
    launch: usize,
    part_count: usize,
}

/// Rows of bf16 numbers that are multiplied.
#[derive(Clone, Copy, Debug)]
struct Operand {
    address: u64,
    columns: usize,
    stride: usize,
    rows: usize,
    /// Rows in memory, at least 64.
    room: usize,
}

impl CudaDecoderOps {
    fn new(cuda: Arc<Cuda>) -> Result<Self, DeviceError> {
        let stream = Stream::new(cuda.context(), Urgency::Usual)?;
        let context = cuda.context();
        let shape = Shape::of(&StepBatch {
            ids: &[],
            offsets: &[0],
            starts: &[],
            pages: &[],
            page_offsets: &[0],
            logit_rows: &[],
        });
        let scratch = || Scratch::new(context);
        Ok(Self {
            launches: Vec::new(),
            recordings: Recordings::default(),
            layout: shape.layout(),
            shape,
            batch: DeviceBuffer::empty(context),
            shadow: scratch(),
            parts: scratch(),
            shadowed: None,
            wanted: scratch(),
            wanted_parts: scratch(),
            sums: scratch(),
            unpacked: scratch(),
            attention: attention::Room::new(context),
            choices: Vec::new(),
            chooses_later: false,
            results: Results::new(context)?,
            crossing: Crossing::new(context)?,
            weights: None,
            joined: None,
            failure: None,
            stream,
            cuda,
        })
    }

    /// Steps will use these weights: one that is launched while they are on their way waits for them.
    pub fn rely_on(&mut self, weights: &WeightsBlock) {
        self.weights = Some(Arc::clone(weights.ground()));
    }

    /// How many steps have recordings.
    pub fn recorded(&self) -> usize {
        self.recordings.count() + self.joined.as_ref().map_or(0, |joined| joined.together.count())
    }

    /// Memory of the GPU that these operations hold beside activations.
    pub fn scratch_bytes(&self) -> u64 {
        let scratch = [&self.shadow, &self.parts, &self.wanted, &self.wanted_parts, &self.sums, &self.unpacked];
        let bytes: usize = scratch.iter().map(|scratch| scratch.bytes()).sum();
        (bytes + self.batch.bytes() + self.attention.bytes() + self.results.bytes()) as u64
    }

    fn fail(&mut self, error: impl Into<DeviceError>) {
        self.failure.get_or_insert(error.into());
    }

    /// Why the step has no answer, if it has none.
    fn end_failed(&mut self) -> Result<(), DeviceError> {
        let Some(error) = self.failure.take() else { return Ok(()) };
        self.results.forget();
        if self.joined.is_some() {
            // What was begun before may still read parts of other ranks, which may give them back now. A stream that cannot be waited
            // for reads nothing any more.
            let _ = self.stream.wait();
        }
        Err(error)
    }

    /// Grows scratch memory; 0 after a failure, when nothing is launched any more.
    fn room(&mut self, which: fn(&mut Self) -> &mut Scratch, bytes: usize) -> u64 {
        if self.failure.is_some() {
            return 0;
        }
        // Taken out for the time, because the stream is needed beside it.
        let none = Scratch::new(self.cuda.context());
        let mut scratch = std::mem::replace(which(self), none);
        let room = scratch.room(bytes, &self.stream);
        *which(self) = scratch;
        room.unwrap_or_else(|error| {
            self.fail(error);
            0
        })
    }

    /// Room for the shadow of a residual stream, and for the parts of its sums.
    fn make_shadow_room(&mut self, hidden: &DecoderActs) {
        let room = hidden.room();
        self.room(|ops| &mut ops.shadow, room * hidden.stride() * 2);
        self.room(|ops| &mut ops.parts, room * PARTS_MOST * 4);
    }

    fn launch(&mut self, kernel: DecoderKernel, shape: LaunchShape, arguments: Vec<Argument>) {
        self.launches.push(Launch { kernel, shape, arguments, is_strict: false });
    }

    /// Where a part of the batch lies on the GPU.
    fn part(&self, word: usize) -> u64 {
        self.batch.address() + 4 * word as u64
    }

    /// The rows of the residual stream times the norm's gains. Who wrote them last writes these too, if it is still waiting to be told
    /// the gains; else they are made.
    fn shadow_of(&mut self, hidden: &DecoderActs, norm: &DecoderNorm) -> Operand {
        assert_eq!(hidden.columns, norm.columns, "the norm is as wide");
        let (gain, stride) = (norm.address(), hidden.stride());
        let known = self.shadowed.filter(|known| known.hidden == hidden.address());
        match known {
            Some(Shadowed { gain: Some(known), .. }) if known == gain => {}
            Some(waiting @ Shadowed { gain: None, .. }) => {
                let (shadow, parts) = (self.shadow.address(), self.parts.address());
                let writers = self.launches.get_mut(waiting.first_launch..=waiting.launch).unwrap_or_default();
                for finish in writers.iter_mut().filter_map(Launch::finish_mut) {
                    let first = finish.first_row as u64;
                    finish.gain = gain;
                    finish.shadow = shadow + first * stride as u64 * 2;
                    finish.out_parts = parts + first * waiting.part_count as u64 * 4;
                    (finish.shadow_stride, finish.out_part_count) = (int_of(stride), int_of(waiting.part_count));
                }
                self.shadowed = Some(Shadowed { gain: Some(gain), ..waiting });
            }
            _ => {
                let launch = self.launches.len();
                let mut finish = Finish::new(FINISH_ADD);
                (finish.gain, finish.shadow, finish.out_parts) = (gain, self.shadow.address(), self.parts.address());
                (finish.shadow_stride, finish.out_part_count) = (int_of(stride), 1);
                self.launch_add(hidden, None, (0, batch::rounded_rows(hidden.rows)), finish);
                let (hidden, gain) = (hidden.address(), Some(gain));
                self.shadowed = Some(Shadowed { hidden, gain, first_launch: launch, launch, part_count: 1 });
            }
        }
        Operand {
            address: self.shadow.address(),
            columns: hidden.columns,
            stride,
            rows: batch::rounded_rows(hidden.rows),
            room: hidden.room(),
        }
    }

    /// The residual stream was changed by the kernels from `first_launch` on, which can also write the shadow.
    fn changed(&mut self, hidden: &DecoderActs, first_launch: usize, part_count: usize) {
        assert!(part_count <= PARTS_MOST, "{part_count} parts of a row");
        let launch = self.launches.len().saturating_sub(1);
        self.shadowed = Some(Shadowed { hidden: hidden.address(), gain: None, first_launch, launch, part_count });
    }

    /// What a product of the shadow is multiplied with.
    fn normalised(&self, finish: &mut Finish, norm: &DecoderNorm) {
        finish.parts = self.parts.address();
        finish.part_count = int_of(self.shadowed.map_or(1, |known| known.part_count));
        finish.inverse_inputs = 1.0 / norm.columns as f32;
        finish.epsilon = norm.epsilon;
    }

    /// Adds sums to the residual stream, normalised where there is a norm, and prepares the rows for a norm.
    fn launch_add(
        &mut self,
        hidden: &DecoderActs,
        sums: Option<(u64, Option<&DecoderNorm>)>,
        (rows, count): (u64, usize),
        finish: Finish,
    ) {
        let norm = sums.and_then(|(_, norm)| norm);
        let arguments = vec![
            Argument::Address(sums.map_or(0, |(sums, _)| sums)),
            int(hidden.stride()),
            Argument::Address(norm.map_or(0, DecoderNorm::address)),
            Argument::Float(norm.map_or(0.0, |norm| norm.epsilon)),
            Argument::Address(rows),
            Argument::Address(hidden.address()),
            int(hidden.stride()),
            int(hidden.columns),
            Argument::Finish(finish),
        ];
        self.launch(DecoderKernel::Add, LaunchShape::new([count as u32, 1, 1], [256, 1, 1]), arguments);
    }
}

impl DecoderOps for CudaDecoderOps {
    type Error = DeviceError;
    type Acts = DecoderActs;
    type Linear = DecoderLinear;
    type Norm = DecoderNorm;
    type Rope = DecoderRope;
    type Pages = DecoderPages;

    fn resize(&mut self, acts: &mut DecoderActs, rows: usize) {
        if let Err(error) = acts.resize(rows, &self.stream, &[]) {
            self.fail(error);
        }
    }

    fn embed(&mut self, steps: &StepBatch<'_>, table: &DecoderLinear, scale: f32, out: &mut DecoderActs) {
        assert_eq!((out.rows, out.columns), (steps.tokens(), table.inputs), "a row for each token");
        let known = table.outputs as u32;
        assert!(
            steps.ids.iter().all(|id| *id < known || id & crate::CHOSEN != 0),
            "an id in a table of {known}: ids are checked at the door"
        );
        self.begin(steps);
        self.make_shadow_room(out);
        let mut finish = Finish::new(FINISH_ADD);
        (finish.out, finish.out_stride) = (out.address(), int_of(out.stride()));
        (finish.tokens, finish.outputs) = (int_of(self.shape.rows), int_of(table.outputs));
        let arguments = vec![
            Argument::Address(self.part(self.layout.ids)),
            Argument::Address(self.results.chosen()),
            Argument::Address(table.address()),
            int(table.form.number()),
            int(table.stride()),
            int(table.units()),
            Argument::Float(scale),
            int(table.inputs),
            Argument::Finish(finish),
        ];
        let shape = LaunchShape::new([self.shape.rows as u32, 1, 1], [256, 1, 1]);
        self.launch(DecoderKernel::Embed, shape, arguments);
        self.changed(out, self.launches.len() - 1, 1);
    }

    fn read_hidden<'a>(&'a mut self, steps: &StepBatch<'_>, hidden: &'a DecoderActs) -> Result<&'a [f32], DeviceError> {
        assert_eq!(hidden.rows, steps.tokens(), "a row for each token");
        self.results.expect(0, 0);
        self.finish_step(0);
        self.take_hidden(hidden)
    }

    fn write_hidden(&mut self, steps: &StepBatch<'_>, rows: &[f32], hidden: &mut DecoderActs) {
        assert_eq!(rows.len(), steps.tokens() * hidden.columns, "a row for each token");
        assert_eq!(hidden.rows, steps.tokens(), "a row for each token");
        self.begin(steps);
        self.make_shadow_room(hidden);
        // What the first norm needs beside the stream is made of it by a kernel of its own.
        if self.failure.is_none()
            && let Err(error) = self.bring_hidden(rows, hidden)
        {
            self.fail(error);
        }
    }

    fn norm_linear(&mut self, x: &DecoderActs, norm: &DecoderNorm, weights: &DecoderLinear, out: &mut DecoderActs) {
        assert_eq!((out.rows, out.columns), (x.rows, weights.outputs), "room for the layer's outputs");
        let operand = self.shadow_of(x, norm);
        let mut finish = Finish::new(FINISH_ROWS);
        self.normalised(&mut finish, norm);
        (finish.out, finish.out_stride) = (out.address(), int_of(out.stride()));
        self.product(operand, weights, finish);
    }

    fn gated_linear(
        &mut self,
        x: &DecoderActs,
        norm: &DecoderNorm,
        weights: &DecoderLinear,
        activation: Activation,
        out: &mut DecoderActs,
    ) {
        assert_eq!((out.rows, 2 * out.columns), (x.rows, weights.outputs), "a gate for each output");
        assert!(weights.is_gated, "weights that were taken over as gates");
        let operand = self.shadow_of(x, norm);
        let mut finish = Finish::new(FINISH_GATED);
        self.normalised(&mut finish, norm);
        finish.activation = match activation {
            Activation::Silu => 4,
            Activation::GeluTanh => 2,
            other => panic!("{other:?} is no gate's function: descriptions are checked when they are read"),
        };
        (finish.out, finish.out_stride) = (out.address(), int_of(out.stride()));
        self.product(operand, weights, finish);
    }

    fn linear_add(
        &mut self,
        x: &DecoderActs,
        weights: &DecoderLinear,
        norm: Option<&DecoderNorm>,
        hidden: &mut DecoderActs,
    ) {
        assert_eq!((hidden.rows, hidden.columns), (x.rows, weights.outputs), "the layer gives what it adds to");
        let rows = batch::rounded_rows(x.rows);
        let operand = Operand { address: x.address(), columns: x.columns, stride: x.stride(), rows, room: x.room() };
        let Some(norm) = norm else {
            let mut finish = Finish::new(FINISH_ADD);
            (finish.out, finish.out_stride) = (hidden.address(), int_of(hidden.stride()));
            let first_launch = self.launches.len();
            let parts = self.product(operand, weights, finish);
            return self.changed(hidden, first_launch, parts);
        };
        let sums = self.room(|ops| &mut ops.sums, hidden.room() * hidden.stride() * 4);
        let mut finish = Finish::new(FINISH_FLOATS);
        (finish.out, finish.out_stride) = (sums, int_of(hidden.stride()));
        self.product(operand, weights, finish);
        self.launch_add(hidden, Some((sums, Some(norm))), (0, rows), Finish::new(FINISH_ADD));
        self.changed(hidden, self.launches.len() - 1, 1);
    }

    fn rope_append(
        &mut self,
        steps: &StepBatch<'_>,
        layer: &AttentionLayer<'_, DecoderNorm, DecoderRope>,
        qkv: &mut DecoderActs,
        pages: &mut DecoderPages,
    ) {
        assert_eq!(qkv.rows, steps.tokens(), "a row for each token");
        self.append(layer, qkv, pages);
    }

    fn attend(
        &mut self,
        steps: &StepBatch<'_>,
        layer: &AttentionLayer<'_, DecoderNorm, DecoderRope>,
        qkv: &DecoderActs,
        pages: &DecoderPages,
        out: &mut DecoderActs,
    ) {
        if layer.layer == 0 {
            steps.check(pages.count);
        }
        assert_eq!((qkv.rows, out.rows), (steps.tokens(), steps.tokens()), "a row for each token");
        self.attend_all(layer, qkv, pages, out);
    }

    fn logits(
        &mut self,
        steps: &StepBatch<'_>,
        hidden: &DecoderActs,
        norm: &DecoderNorm,
        head: &DecoderLinear,
        cap: Option<f32>,
    ) {
        self.results.expect(steps.logit_rows.len(), head.outputs);
        if !steps.logit_rows.is_empty() {
            self.logits_of(hidden, norm, head, cap);
        }
        self.finish_step(steps.logit_rows.len());
    }

    fn answer(&mut self) -> Result<&[f32], DeviceError> {
        self.end_failed()?;
        self.results.logits(&self.stream)
    }

    fn answer_rows(&mut self, rows: &[usize], columns: usize) -> Result<Vec<f32>, DeviceError> {
        self.end_failed()?;
        assert_eq!(columns, self.results.columns(), "as wide as the logits are");
        self.results.logits_of_rows(rows, &self.stream)
    }

    fn chosen(&mut self) -> Result<Vec<u32>, DeviceError> {
        self.end_failed()?;
        self.results.chosen_tokens()
    }

    fn draw_by(&mut self, choices: &[Choice]) -> bool {
        self.choices = choices.to_vec();
        true
    }

    fn choose_later(&mut self, later: bool) -> bool {
        self.chooses_later = later;
        true
    }

    fn choose_under(&mut self, masks: &[Mask<'_>]) {
        self.choose_step(masks);
    }

    fn feeds_back(&self) -> bool {
        true
    }

    /// Weights that were unpacked are as long as the largest matrix in 16 bits, and few recorded steps name them.
    fn rest(&mut self) -> Result<(), DeviceError> {
        self.stream.wait()?;
        self.results.forget();
        self.unpacked = Scratch::new(self.cuda.context());
        // With that of pages it lies idle in the pool now, where others want it.
        self.cuda.context().trim_device();
        Ok(())
    }

    fn trim(&mut self) {
        // A stream that cannot be waited for is lost with its context.
        let _ = self.stream.wait();
        self.results.trim();
        self.recordings.clear();
        self.joined.iter_mut().for_each(Joined::forget_recordings);
        self.batch = DeviceBuffer::empty(self.cuda.context());
        let [shadow, parts, wanted, wanted_parts, sums, unpacked] =
            std::array::from_fn(|_| Scratch::new(self.cuda.context()));
        (self.shadow, self.parts, self.wanted, self.wanted_parts) = (shadow, parts, wanted, wanted_parts);
        (self.sums, self.unpacked) = (sums, unpacked);
        self.attention = attention::Room::new(self.cuda.context());
        self.cuda.context().trim();
    }

    fn held_bytes(&self, acts: &[&DecoderActs]) -> u64 {
        self.scratch_bytes() + acts.iter().map(|acts| acts.bytes()).sum::<u64>()
    }
}
