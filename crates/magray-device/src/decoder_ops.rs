//! The fused operations a decoder is made of, and what they take. Says nothing of how a device does them.
//! Leaves to its callers which tokens are computed together and which pages they have.

use crate::BlockMatrix;
use magray_core::Activation;
use std::ops::Range;

pub use magray_core::schedule::PAGE_TOKENS;

/// An id with this bit is the token that the step before chose in the row of its logits that the other bits name. Only for devices
/// that feed tokens back ([`DecoderOps::feeds_back`]).
pub const CHOSEN: u32 = 1 << 31;

/// New tokens of several sequences, end to end, prompts in parts and single tokens side by side, and the pages of each sequence.
#[derive(Clone, Copy, Debug)]
pub struct StepBatch<'a> {
    /// The new tokens of all sequences.
    pub ids: &'a [u32],
    /// Where each sequence's new tokens start, and the end of the last: one more than there are sequences.
    pub offsets: &'a [usize],
    /// The position of each sequence's first new token: how many tokens of it its pages hold already.
    pub starts: &'a [usize],
    /// The pages of all sequences, in the order of their tokens: token `i` of a sequence is in its page `i / PAGE_TOKENS`.
    pub pages: &'a [u32],
    /// Where each sequence's pages start, and the end of the last.
    pub page_offsets: &'a [usize],
    /// The new tokens whose logits are wanted, by their index in `ids`.
    pub logit_rows: &'a [usize],
}

/// The new tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Step<'a> {
    /// Their rows in the batch.
    pub rows: Range<usize>,
    /// The position of the first.
    pub start: usize,
    /// All pages of the sequence.
    pub pages: &'a [u32],
}

impl<'a> StepBatch<'a> {
    /// How many tokens there are.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// The sequences.
    pub fn steps(&self) -> impl Iterator<Item = Step<'a>> {
        let (offsets, starts, pages, page_offsets) = (self.offsets, self.starts, self.pages, self.page_offsets);
        (0..starts.len()).map(move |i| Step {
            rows: offsets[i]..offsets[i + 1],
            start: starts[i],
            pages: &pages[page_offsets[i]..page_offsets[i + 1]],
        })
    }

    /// Panics unless the batch is one that the pages can hold: a caller's bug.
    pub fn check(&self, pages: usize) {
        assert_eq!(self.offsets.len(), self.starts.len() + 1, "an offset more than sequences");
        assert_eq!(self.page_offsets.len(), self.offsets.len(), "pages of each sequence");
        assert_eq!((self.offsets.first(), self.page_offsets.first()), (Some(&0), Some(&0)), "offsets start at 0");
        assert_eq!(self.offsets.last(), Some(&self.ids.len()), "offsets end at the last id");
        assert_eq!(self.page_offsets.last(), Some(&self.pages.len()), "offsets end at the last page");
        assert!(self.offsets.is_sorted() && self.page_offsets.is_sorted(), "offsets rise");
        assert!(self.pages.iter().all(|page| (*page as usize) < pages), "pages that exist");
        assert!(self.logit_rows.iter().all(|row| *row < self.ids.len()), "rows of the batch");
        for step in self.steps() {
            assert!(step.start + step.rows.len() <= step.pages.len() * PAGE_TOKENS, "pages for all tokens");
        }
    }
}

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvFormat {
    /// Floats of 16 bits; of 32 where the operations are portable.
    #[default]
    Halves,
    /// 8 bits and a scale for each head of a token.
    Bytes,
}

/// What keys and values of a model take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Layers.
    pub layers: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_size: usize,
}

impl KvShape {
    /// Numbers of a page of all layers.
    pub fn page_numbers(&self) -> usize {
        self.layers * 2 * self.kv_heads * PAGE_TOKENS * self.head_size
    }

    /// Bytes of a token in all layers: numbers of 16 bits, or bytes with a scale of 16 bits for each head.
    pub fn token_bytes(&self, format: KvFormat) -> usize {
        let head = match format {
            KvFormat::Halves => self.head_size * 2,
            KvFormat::Bytes => self.head_size + 2,
        };
        self.layers * 2 * self.kv_heads * head
    }
}

/// How a token is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Logits are divided by it; 0: the most likely token is taken.
    pub temperature: f32,
    /// Only this many of the likeliest may be drawn; 0: all.
    pub top_k: u32,
    /// Only the likeliest that together have this probability may be drawn.
    pub top_p: f32,
    /// Only tokens with at least this part of the highest probability may be drawn.
    pub min_p: f32,
    /// Which of them, in the order of their ids: a part of their probability, of 2^64.
    pub draw: u64,
}

/// A layer's attention: what it does with queries, keys and values.
pub struct AttentionLayer<'a, Norm, Rope> {
    /// The layer.
    pub layer: usize,
    /// Heads of queries.
    pub heads: usize,
    /// A token attends to this many tokens, itself included.
    pub window: Option<usize>,
    /// What scores are multiplied with.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub cap: Option<f32>,
    /// How positions turn queries and keys.
    pub rope: &'a Rope,
    /// The norm of each head of queries.
    pub query_norm: Option<&'a Norm>,
    /// The norm of each head of keys.
    pub key_norm: Option<&'a Norm>,
}

/// Where a part of a decoder belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It begins the pass: the table of tokens.
    Table,
    /// This layer.
    Layer(usize),
    /// It ends the pass: the last norm and the head.
    Head,
    /// Both ends: a table that is the head too.
    TiedTable,
}

/// The heads of a decoder's attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadShape {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values; each serves `heads / kv_heads` heads of queries.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_size: usize,
}

/// What a linear layer of a decoder is: a device that is made of several cuts it accordingly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The table of tokens, the head, or both: an output for each token.
    Vocabulary,
    /// Queries, keys and values side by side.
    Qkv(HeadShape),
    /// Adds what the heads attended to.
    Attended(HeadShape),
    /// Gates and what they gate, in two halves: for [`DecoderOps::gated_linear`] alone.
    Gates,
    /// Adds what the gates let through.
    Gated,
}

/// What activations of a decoder hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActsRole {
    /// The residual stream.
    Hidden,
    /// Queries, keys and values.
    Qkv(HeadShape),
    /// What the heads attended to.
    Attended(HeadShape),
    /// What the gates let through.
    Gated,
}

/// A linear layer whose weights stay as they are stored.
#[derive(Clone, Debug)]
pub struct BlockLinear {
    /// Matrices of equal columns whose rows stand side by side as outputs, as query, key and value do. Each has a format of its own.
    pub parts: Vec<BlockMatrix>,
    /// One for each output, or empty for none.
    pub bias: Vec<f32>,
}

impl BlockLinear {
    /// Rows of all matrices.
    pub fn outputs(&self) -> usize {
        self.parts.iter().map(BlockMatrix::rows).sum()
    }

    /// Columns of each matrix.
    pub fn inputs(&self) -> usize {
        self.parts.first().map_or(0, BlockMatrix::columns)
    }
}

/// How positions turn the heads of queries and keys.
#[derive(Clone, Debug)]
pub struct RopeSource {
    /// Radians a position, for each pair; numbers of a head beyond the pairs are not turned.
    pub radians: Vec<f32>,
    /// What the turned numbers are multiplied with.
    pub scale: f32,
    /// Whether neighbours make a pair; otherwise a number of the first half with one of the second.
    pub neighbours: bool,
}

/// A device's operations on the new tokens of sequences. Sizes that do not fit are a bug and panic. A device may go on working
/// after an operation has returned: its failures are reported once, by [`DecoderOps::answer`].
pub trait DecoderOps {
    /// Why there is no answer.
    type Error: std::error::Error;
    /// A matrix of activations: a row for each token.
    type Acts;
    /// Weights and bias of a linear layer, in the device's form.
    type Linear;
    /// The gains of a root mean square norm.
    type Norm;
    /// How positions turn heads.
    type Rope;
    /// Keys and values of all layers, in pages.
    type Pages;

    /// Sets how many rows are in use, making room where there is too little.
    fn resize(&mut self, acts: &mut Self::Acts, rows: usize);

    /// `out = scale * table[id]`.
    fn embed(&mut self, steps: &StepBatch<'_>, table: &Self::Linear, scale: f32, out: &mut Self::Acts);

    /// Layer `layer` is next. Where another device has it than the one before it, the residual stream moves there.
    fn enter(&mut self, _: &StepBatch<'_>, _layer: usize, _hidden: &mut Self::Acts) {}

    /// Ends a step behind the last of this device's layers, in place of [`DecoderOps::logits`]: the rows of the residual stream, end to end.
    /// Waits until they are there.
    fn read_hidden<'a>(&'a mut self, steps: &StepBatch<'_>, hidden: &'a Self::Acts) -> Result<&'a [f32], Self::Error>;

    /// Begins a step with the residual stream of another device, in place of [`DecoderOps::embed`].
    fn write_hidden(&mut self, steps: &StepBatch<'_>, rows: &[f32], hidden: &mut Self::Acts);

    /// `out = norm(x) * weights + bias`.
    fn norm_linear(&mut self, x: &Self::Acts, norm: &Self::Norm, weights: &Self::Linear, out: &mut Self::Acts);

    /// `out = activation(gate) * up`, where `gate` and `up` are the halves of `norm(x) * weights + bias`.
    fn gated_linear(
        &mut self,
        x: &Self::Acts,
        norm: &Self::Norm,
        weights: &Self::Linear,
        activation: Activation,
        out: &mut Self::Acts,
    );

    /// `hidden += x * weights + bias`, normalised before it is added where there is a norm.
    fn linear_add(
        &mut self,
        x: &Self::Acts,
        weights: &Self::Linear,
        norm: Option<&Self::Norm>,
        hidden: &mut Self::Acts,
    );

    /// Normalises and turns queries and keys, and puts keys and values into the sequences' pages. A row of `qkv` holds queries,
    /// keys and values of all heads.
    fn rope_append(
        &mut self,
        steps: &StepBatch<'_>,
        layer: &AttentionLayer<'_, Self::Norm, Self::Rope>,
        qkv: &mut Self::Acts,
        pages: &mut Self::Pages,
    );

    /// Each new token attends to the tokens of its sequence up to itself.
    fn attend(
        &mut self,
        steps: &StepBatch<'_>,
        layer: &AttentionLayer<'_, Self::Norm, Self::Rope>,
        qkv: &Self::Acts,
        pages: &Self::Pages,
        out: &mut Self::Acts,
    );

    /// Makes the logits of the wanted rows the answer: `norm(hidden) * head`, capped where there is a cap.
    fn logits(
        &mut self,
        steps: &StepBatch<'_>,
        hidden: &Self::Acts,
        norm: &Self::Norm,
        head: &Self::Linear,
        cap: Option<f32>,
    );

    /// The rows of the last [`DecoderOps::logits`], end to end; waits until they are there.
    fn answer(&mut self) -> Result<&[f32], Self::Error>;

    /// The most likely token of each wanted row, of the oldest step whose tokens were not asked for; `u32::MAX` for a row that is not
    /// finite. Waits until they are there, and for no later step. Devices that do not feed tokens back know their last step alone.
    fn chosen(&mut self) -> Result<Vec<u32>, Self::Error>;

    /// Whether the next step draws its tokens like this, a choice for each wanted row: what [`DecoderOps::chosen`] tells then. Where not,
    /// nothing changes.
    fn draw_by(&mut self, _: &[Choice]) -> bool {
        false
    }

    /// Whether the tokens of steps can be chosen behind them, by [`DecoderOps::choose_under`]. With `later` the next step waits for that:
    /// no token of it is known before.
    fn choose_later(&mut self, _later: bool) -> bool {
        false
    }

    /// Chooses the tokens of the last step, which was told to wait for this, of those that the mask of each wanted row allows.
    fn choose_under(&mut self, _masks: &[Mask<'_>]) {}

    /// The logits of some of the wanted rows of the last step, by their places among these.
    fn answer_rows(&mut self, rows: &[usize], columns: usize) -> Result<Vec<f32>, Self::Error> {
        let answer = self.answer()?;
        Ok(rows.iter().flat_map(|row| &answer[row * columns..][..columns]).copied().collect())
    }

    /// Whether the keys and values of all new tokens are in the pages before one of them attends, also where each is a step of its own: tokens
    /// of one sequence that follow each other may then be steps beside each other.
    fn appends_first(&self) -> bool {
        false
    }

    /// Whether ids may name tokens of the step before ([`CHOSEN`]), and a step may begin before the tokens of the last were asked for.
    /// Two steps may be ahead of the one that is asked for.
    fn feeds_back(&self) -> bool {
        false
    }

    /// The weights are about to leave: waits until nothing runs, and gives back what steps soon have again. Recordings stay. Pages that are
    /// let go of before this are given back with it.
    fn rest(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Gives back all memory that steps have taken; the next ones take what they need.
    fn trim(&mut self) {}

    /// Memory of the device that steps have taken, these activations included.
    fn held_bytes(&self, _acts: &[&Self::Acts]) -> u64 {
        0
    }
}

/// The tokens that may be chosen for a row: a bit for each, from the lowest of the first word on. `None`: any.
pub type Mask<'a> = Option<&'a [u32]>;

/// What a device makes of the logits of tokens that a mask rules out. It is finite: logits that are no numbers stay visible as such.
pub const RULED_OUT: f32 = f32::MIN;

/// Rules out what a mask does not allow. What is no finite number stays.
pub fn rule_out(logits: &mut [f32], mask: &[u32]) {
    for (at, logits) in logits.chunks_mut(32).enumerate() {
        let allowed = mask.get(at).copied().unwrap_or(0);
        for (bit, logit) in logits.iter_mut().enumerate() {
            if allowed >> bit & 1 == 0 && logit.is_finite() {
                *logit = RULED_OUT;
            }
        }
    }
}

/// The index of the largest of some logits, the first of equal ones; `u32::MAX` where one is not finite.
pub fn most_likely(logits: &[f32]) -> u32 {
    // Many lanes, so that compilers make vectors of them.
    const LANES: usize = 32;
    let (mut largest, mut poison) = ([f32::NEG_INFINITY; LANES], [0.0f32; LANES]);
    for logits in logits.chunks(LANES) {
        for ((largest, poison), logit) in largest.iter_mut().zip(&mut poison).zip(logits) {
            *largest = if logit > largest { *logit } else { *largest };
            // Zero times what is not finite is no number.
            *poison += logit * 0.0;
        }
    }
    if !poison.iter().all(|sum| sum.is_finite()) {
        return u32::MAX;
    }
    let largest = largest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|logit| *logit == largest).map_or(u32::MAX, |index| index as u32)
}

/// A device that takes over a decoder's layers.
pub trait DecoderDevice {
    /// Why a layer could not be taken over.
    type Error: std::error::Error;
    /// Its operations.
    type Ops: DecoderOps<Error = Self::Error>;

    /// Takes over a linear layer, or the table of tokens.
    fn block_linear(&self, source: BlockLinear) -> Result<<Self::Ops as DecoderOps>::Linear, Self::Error>;

    /// Takes over a linear layer whose outputs are gates and what they gate, in two halves: for [`DecoderOps::gated_linear`] alone.
    fn block_gates(&self, source: BlockLinear) -> Result<<Self::Ops as DecoderOps>::Linear, Self::Error> {
        self.block_linear(source)
    }

    /// Takes over the gains of a root mean square norm.
    fn rms_norm(&self, gain: Vec<f32>, epsilon: f32) -> Result<<Self::Ops as DecoderOps>::Norm, Self::Error>;

    /// Takes over a linear layer, told where in the decoder it belongs and what it is: a device that is made of several puts it there, whole
    /// or cut.
    fn linear_at(
        &self,
        _: Place,
        role: Role,
        source: BlockLinear,
    ) -> Result<<Self::Ops as DecoderOps>::Linear, Self::Error> {
        match role {
            Role::Gates => self.block_gates(source),
            _ => self.block_linear(source),
        }
    }

    /// As [`DecoderDevice::rms_norm`], told where it belongs.
    fn norm_at(&self, _: Place, gain: Vec<f32>, epsilon: f32) -> Result<<Self::Ops as DecoderOps>::Norm, Self::Error> {
        self.rms_norm(gain, epsilon)
    }

    /// Takes over frequencies.
    fn rope(&self, source: RopeSource) -> Result<<Self::Ops as DecoderOps>::Rope, Self::Error>;

    /// Pages of keys and values, up to this many; how many of them have memory is the device's choice.
    fn pages(&self, shape: KvShape, most: usize) -> Result<<Self::Ops as DecoderOps>::Pages, Self::Error>;

    /// Sees to it that the first `count` pages have memory. No step is under way. Where there is too little memory, all stays as it was.
    fn grow_pages(&self, _: &mut <Self::Ops as DecoderOps>::Pages, _count: usize) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Whether the first `count` pages have memory: then [`DecoderDevice::grow_pages`] moves nothing, and steps may be under way.
    fn has_pages(&self, _: &<Self::Ops as DecoderOps>::Pages, _count: usize) -> bool {
        true
    }

    /// As [`DecoderDevice::pages`], in a format. A device that lacks it keeps them as it always does: callers do not ask it for another.
    fn pages_in(
        &self,
        format: KvFormat,
        shape: KvShape,
        pages: usize,
    ) -> Result<<Self::Ops as DecoderOps>::Pages, Self::Error> {
        let _ = format;
        self.pages(shape, pages)
    }

    /// Activations, with no rows yet.
    fn decoder_acts(&self, columns: usize) -> <Self::Ops as DecoderOps>::Acts;

    /// As [`DecoderDevice::decoder_acts`], told what they hold; `columns` are those of the whole model.
    fn acts_for(&self, _: ActsRole, columns: usize) -> <Self::Ops as DecoderOps>::Acts {
        self.decoder_acts(columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_of_8_bits_takes_its_numbers_and_a_scale_for_each_head() {
        // SmolLM2-135M.
        let shape = KvShape { layers: 30, kv_heads: 3, head_size: 64 };
        assert_eq!((shape.token_bytes(KvFormat::Halves), shape.token_bytes(KvFormat::Bytes)), (23_040, 11_880));
        assert_eq!(shape.token_bytes(KvFormat::Halves) * PAGE_TOKENS, shape.page_numbers() * 2);
    }

    #[test]
    fn what_a_mask_rules_out_is_never_the_most_likely_and_hides_no_fault() {
        let logits: Vec<f32> = (0..70).map(|i| i as f32).collect();
        let under = |mask: &[u32]| {
            let mut logits = logits.clone();
            rule_out(&mut logits, mask);
            most_likely(&logits)
        };
        assert_eq!((under(&[!0, !0, !0]), under(&[1 << 7 | 1 << 9, 0, 0]), under(&[1])), (69, 9, 0));
        assert_eq!(under(&[0, 1 << 31, 1 << 5]), 69);
        assert_eq!(under(&[0, 1 << 31, 1 << 6]), 63, "a bit behind the last token");
        for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut poisoned = logits.clone();
            poisoned[33] = poison;
            rule_out(&mut poisoned, &[1, 0, 0]);
            assert_eq!(most_likely(&poisoned), u32::MAX);
        }
    }

    #[test]
    fn the_most_likely_is_the_first_of_equals_and_finite() {
        assert_eq!(most_likely(&[-3.0, 2.0, 2.0, 1.0]), 1);
        assert_eq!(most_likely(&[-3.0, f32::NAN]), u32::MAX);
        assert_eq!(most_likely(&[f32::INFINITY, 0.0]), u32::MAX);
        assert_eq!(most_likely(&[]), u32::MAX);
        let mut many: Vec<f32> = (0..1000).map(|i| -((i * 37 % 101) as f32)).collect();
        assert_eq!(most_likely(&many), 0);
        many[777] = 0.5;
        many[900] = 0.5;
        assert_eq!(most_likely(&many), 777);
        many[999] = f32::NEG_INFINITY;
        assert_eq!(most_likely(&many), u32::MAX);
    }
}
