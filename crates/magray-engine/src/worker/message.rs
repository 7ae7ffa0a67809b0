//! The messages between supervisor and worker, and their bytes.
//! Sends and receives nothing; bytes that make no sense are an error, never a panic.

use super::wire::{Fields, Garbled, frame, put_known, put_text, put_time, put_u32, put_u64};
use crate::executors::{NewTokens, SequenceStep};
use crate::gpu::MemoryStats;
use magray_core::Precision;
use magray_core::pool::PoolStats;
use magray_core::schedule::Failure;
use std::time::Duration;

/// What a supervisor says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ToWorker<'a> {
    /// Open this device and know these models: a [`super::WorkerSpec`] in JSON.
    Open(&'a [u8]),
    /// Say which GPUs there are, with the driver in these folders (a JSON list), and end.
    Survey(&'a [u8]),
    /// Try what the sandbox must refuse, on these targets (JSON), say what came of it, and end.
    Attempt(&'a [u8]),
    /// Here is the memory for batches and answers; its handle comes along.
    Memory(Layout),
    /// Compute what lies in a slot.
    Batch(Batch),
    /// Compute steps of sequences, whose tokens lie in a slot; the rest is in [`StepHead`]s.
    Turn { batch: Batch, heads: &'a [u8] },
    /// Let go of the state of a sequence.
    Free { sequence: u64 },
    /// Put a model's weights on the device. Where there is an image, its handle comes along.
    Load { model: u32, image: Image },
    /// Take a model's weights off the device.
    Offload { model: u32 },
    /// Let go of a model altogether.
    Forget { model: u32 },
    /// Free what can be freed.
    Trim,
    /// Answer what came before, then end.
    Stop,
}

/// What a worker says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ToSupervisor<'a> {
    /// It has started.
    Hello {
        /// Its process.
        pid: u32,
    },
    /// The device is open: its memory, and a [`super::spec::ReadyMessage`] in JSON.
    Ready { memory: MemoryStats, json: &'a [u8] },
    /// The GPUs that there are: a [`super::survey::Findings`] in JSON.
    Surveyed(&'a [u8]),
    /// What came of the attempts: a list of [`super::Attempt`] in JSON.
    Attempted(&'a [u8]),
    /// The device is not open, and it ends.
    NotReady(Trouble<'a>),
    /// A model's weights are on the device.
    Loaded(Arrival),
    /// They are not, and what was taken for them is free again.
    NotLoaded { model: u32, trouble: Trouble<'a> },
    /// A model's weights are not on the device any more.
    Offloaded { model: u32, took: Duration, memory: MemoryStats },
    /// An image holds all of a model's weights.
    ImageFilled { model: u32, image: u64, bytes: u64 },
    /// An image does not, and never will.
    ImageSpoilt { model: u32, image: u64, trouble: Trouble<'a> },
    /// The answers lie in the slot.
    Finished { batch: u64, slot: u32, compute: Duration },
    /// Steps were computed; what came of each is written by [`put_new_tokens`].
    Turned { batch: u64, slot: u32, compute: Duration, new: &'a [u8] },
    /// There are no answers.
    Failed { batch: u64, slot: u32, trouble: Trouble<'a> },
    /// It lives.
    Heartbeat(MemoryStats),
}

/// What a worker gets along with the order to load a model: memory that outlives it, for the weights as they lie on the
/// device. The number names the memory in what the worker says of it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Image {
    None,
    /// Nothing is in it yet; it has room for so many bytes.
    Empty {
        image: u64,
        bytes_max: u64,
    },
    /// The weights are in it and have so many bytes.
    Filled {
        image: u64,
        bytes: u64,
    },
}

/// A model whose weights are on the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Arrival {
    pub(super) model: u32,
    pub(super) precision: Precision,
    /// Numbers in a text's answer.
    pub(super) outputs: u32,
    /// What the weights take of the device's memory.
    pub(super) bytes: u64,
    pub(super) took: Duration,
    pub(super) origin: Origin,
    /// The device's memory now.
    pub(super) memory: MemoryStats,
}

/// Where a model's weights came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Its files.
    Files,
    /// Shared memory that another worker had filled.
    Image,
    /// Shared memory of this worker, which had them on the device before.
    Parked,
    /// They were there.
    Device,
}

impl Origin {
    /// One word for programs; it never changes its meaning.
    pub fn code(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Image => "image",
            Self::Parked => "parked",
            Self::Device => "device",
        }
    }
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trouble<'a> {
    pub(super) failure: Failure,
    /// For programs.
    pub(super) code: &'a str,
    /// For people.
    pub(super) message: &'a str,
}

/// How the shared memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) slots: u32,
    pub(super) tokens_max: u32,
    pub(super) texts_max: u32,
    /// Numbers in the longest answer of a text.
    pub(super) outputs_max: u32,
}

/// A batch that lies in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) batch: u64,
    pub(super) slot: u32,
    pub(super) model: u32,
    /// Leading tokens of each text that are not pooled.
    pub(super) skip: u32,
    pub(super) extent: Extent,
}

/// A step of a sequence, without its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepHead {
    pub(super) sequence: u64,
    pub(super) from: u32,
    pub(super) new_tokens_max: u32,
}

impl StepHead {
    pub(super) fn put(self, to: &mut Vec<u8>) {
        put_u64(to, self.sequence);
        put_u32(to, self.from);
        put_u32(to, self.new_tokens_max);
    }

    /// The step, with its tokens.
    pub(super) fn with(self, ids: &[u32]) -> SequenceStep<'_> {
        let Self { sequence, from, new_tokens_max } = self;
        SequenceStep { sequence, from, ids, new_tokens_max }
    }

    /// All that were put one after the other.
    pub(super) fn take_all(bytes: &[u8]) -> Result<Vec<Self>, Garbled> {
        let mut fields = Fields(bytes);
        let mut heads = Vec::new();
        while !fields.is_empty() {
            heads.push(Self { sequence: fields.u64()?, from: fields.u32()?, new_tokens_max: fields.u32()? });
        }
        Ok(heads)
    }
}

/// Writes what came of a step.
pub(super) fn put_new_tokens(to: &mut Vec<u8>, new: &NewTokens) {
    to.push(new.is_end.into());
    put_u32(to, new.tokens.len() as u32);
    new.tokens.iter().for_each(|token| put_u32(to, *token));
}

/// Reads what came of all steps.
pub(super) fn take_new_tokens(bytes: &[u8]) -> Result<Vec<NewTokens>, Garbled> {
    let mut fields = Fields(bytes);
    let mut all = Vec::new();
    while !fields.is_empty() {
        let (is_end, count) = (fields.flag()?, fields.u32()?);
        let tokens = (0..count).map(|_| fields.u32()).collect::<Result<Vec<u32>, Garbled>>()?;
        all.push(NewTokens { tokens, is_end });
    }
    Ok(all)
}

/// How much of a slot is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) texts: u32,
    pub(super) tokens: u32,
    pub(super) has_types: bool,
}

const OPEN: u8 = 1;
const MEMORY: u8 = 2;
const BATCH: u8 = 3;
const TRIM: u8 = 4;
const STOP: u8 = 5;
const SURVEY: u8 = 6;
const LOAD: u8 = 7;
const OFFLOAD: u8 = 8;
const FORGET: u8 = 9;
const ATTEMPT: u8 = 10;
const TURN: u8 = 11;
const FREE: u8 = 12;
const HELLO: u8 = 65;
const READY: u8 = 66;
const NOT_READY: u8 = 67;
const FINISHED: u8 = 68;
const FAILED: u8 = 69;
const HEARTBEAT: u8 = 70;
const SURVEYED: u8 = 71;
const LOADED: u8 = 72;
const NOT_LOADED: u8 = 73;
const OFFLOADED: u8 = 74;
const IMAGE_FILLED: u8 = 75;
const IMAGE_SPOILT: u8 = 76;
const ATTEMPTED: u8 = 77;
const TURNED: u8 = 78;

impl Batch {
    fn put(self, to: &mut Vec<u8>) {
        let Self { batch, slot, model, skip, extent } = self;
        put_u64(to, batch);
        [slot, model, skip, extent.texts, extent.tokens].into_iter().for_each(|number| put_u32(to, number));
        to.push(extent.has_types.into());
    }

    fn take(fields: &mut Fields<'_>) -> Result<Self, Garbled> {
        Ok(Self {
            batch: fields.u64()?,
            slot: fields.u32()?,
            model: fields.u32()?,
            skip: fields.u32()?,
            extent: Extent { texts: fields.u32()?, tokens: fields.u32()?, has_types: fields.flag()? },
        })
    }
}

impl<'a> ToWorker<'a> {
    /// Writes the whole message, header and all, over what the buffer held.
    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        frame(to, |to| match *self {
            Self::Open(json) => {
                to.extend_from_slice(json);
                OPEN
            }
            Self::Survey(json) => {
                to.extend_from_slice(json);
                SURVEY
            }
            Self::Attempt(json) => {
                to.extend_from_slice(json);
                ATTEMPT
            }
            Self::Memory(layout) => {
                let Layout { slots, tokens_max, texts_max, outputs_max } = layout;
                [slots, tokens_max, texts_max, outputs_max].into_iter().for_each(|number| put_u32(to, number));
                MEMORY
            }
            Self::Batch(batch) => {
                batch.put(to);
                BATCH
            }
            Self::Turn { batch, heads } => {
                batch.put(to);
                to.extend_from_slice(heads);
                TURN
            }
            Self::Free { sequence } => {
                put_u64(to, sequence);
                FREE
            }
            Self::Load { model, image } => {
                put_u32(to, model);
                image.put(to);
                LOAD
            }
            Self::Offload { model } => {
                put_u32(to, model);
                OFFLOAD
            }
            Self::Forget { model } => {
                put_u32(to, model);
                FORGET
            }
            Self::Trim => TRIM,
            Self::Stop => STOP,
        });
    }

    /// Reads what follows a header of this kind.
    pub(super) fn decode(kind: u8, payload: &'a [u8]) -> Result<Self, Garbled> {
        let mut fields = Fields(payload);
        let message = match kind {
            OPEN => Self::Open(fields.rest()),
            SURVEY => Self::Survey(fields.rest()),
            ATTEMPT => Self::Attempt(fields.rest()),
            MEMORY => Self::Memory(Layout {
                slots: fields.u32()?,
                tokens_max: fields.u32()?,
                texts_max: fields.u32()?,
                outputs_max: fields.u32()?,
            }),
            BATCH => Self::Batch(Batch::take(&mut fields)?),
            TURN => Self::Turn { batch: Batch::take(&mut fields)?, heads: fields.rest() },
            FREE => Self::Free { sequence: fields.u64()? },
            LOAD => Self::Load { model: fields.u32()?, image: Image::take(&mut fields)? },
            OFFLOAD => Self::Offload { model: fields.u32()? },
            FORGET => Self::Forget { model: fields.u32()? },
            TRIM => Self::Trim,
            STOP => Self::Stop,
            _ => return Err(Garbled("a kind of message that no supervisor sends")),
        };
        fields.end().map(|()| message)
    }
}

impl<'a> ToSupervisor<'a> {
    /// Writes the whole message, header and all, over what the buffer held.
    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        frame(to, |to| match *self {
            Self::Hello { pid } => {
                put_u32(to, pid);
                HELLO
            }
            Self::Ready { memory, json } => {
                put_memory(to, &memory);
                to.extend_from_slice(json);
                READY
            }
            Self::Surveyed(json) => {
                to.extend_from_slice(json);
                SURVEYED
            }
            Self::Attempted(json) => {
                to.extend_from_slice(json);
                ATTEMPTED
            }
            Self::NotReady(trouble) => {
                trouble.put(to);
                NOT_READY
            }
            Self::Loaded(arrival) => {
                arrival.put(to);
                LOADED
            }
            Self::NotLoaded { model, trouble } => {
                put_u32(to, model);
                trouble.put(to);
                NOT_LOADED
            }
            Self::Offloaded { model, took, memory } => {
                put_u32(to, model);
                put_time(to, took);
                put_memory(to, &memory);
                OFFLOADED
            }
            Self::ImageFilled { model, image, bytes } => {
                put_u32(to, model);
                [image, bytes].into_iter().for_each(|number| put_u64(to, number));
                IMAGE_FILLED
            }
            Self::ImageSpoilt { model, image, trouble } => {
                put_u32(to, model);
                put_u64(to, image);
                trouble.put(to);
                IMAGE_SPOILT
            }
            Self::Finished { batch, slot, compute } => {
                put_u64(to, batch);
                put_u32(to, slot);
                put_time(to, compute);
                FINISHED
            }
            Self::Turned { batch, slot, compute, new } => {
                put_u64(to, batch);
                put_u32(to, slot);
                put_time(to, compute);
                to.extend_from_slice(new);
                TURNED
            }
            Self::Failed { batch, slot, trouble } => {
                put_u64(to, batch);
                put_u32(to, slot);
                trouble.put(to);
                FAILED
            }
            Self::Heartbeat(memory) => {
                put_memory(to, &memory);
                HEARTBEAT
            }
        });
    }

    /// Reads what follows a header of this kind.
    pub(super) fn decode(kind: u8, payload: &'a [u8]) -> Result<Self, Garbled> {
        let mut fields = Fields(payload);
        let message = match kind {
            HELLO => Self::Hello { pid: fields.u32()? },
            READY => Self::Ready { memory: take_memory(&mut fields)?, json: fields.rest() },
            SURVEYED => Self::Surveyed(fields.rest()),
            ATTEMPTED => Self::Attempted(fields.rest()),
            NOT_READY => Self::NotReady(Trouble::take(&mut fields)?),
            LOADED => Self::Loaded(Arrival::take(&mut fields)?),
            NOT_LOADED => Self::NotLoaded { model: fields.u32()?, trouble: Trouble::take(&mut fields)? },
            OFFLOADED => {
                Self::Offloaded { model: fields.u32()?, took: fields.time()?, memory: take_memory(&mut fields)? }
            }
            IMAGE_FILLED => Self::ImageFilled { model: fields.u32()?, image: fields.u64()?, bytes: fields.u64()? },
            IMAGE_SPOILT => {
                let (model, image) = (fields.u32()?, fields.u64()?);
                Self::ImageSpoilt { model, image, trouble: Trouble::take(&mut fields)? }
            }
            FINISHED => Self::Finished { batch: fields.u64()?, slot: fields.u32()?, compute: fields.time()? },
            TURNED => {
                let (batch, slot, compute) = (fields.u64()?, fields.u32()?, fields.time()?);
                Self::Turned { batch, slot, compute, new: fields.rest() }
            }
            FAILED => {
                let (batch, slot) = (fields.u64()?, fields.u32()?);
                Self::Failed { batch, slot, trouble: Trouble::take(&mut fields)? }
            }
            HEARTBEAT => Self::Heartbeat(take_memory(&mut fields)?),
            _ => return Err(Garbled("a kind of message that no worker sends")),
        };
        fields.end().map(|()| message)
    }
}

/// The failures and their bytes.
const FAILURES: [Failure; 5] =
    [Failure::OutOfMemory, Failure::Transient, Failure::Sticky, Failure::WrongAnswer, Failure::Lost];

impl<'a> Trouble<'a> {
    fn put(&self, to: &mut Vec<u8>) {
        put_known(to, &FAILURES, &self.failure);
        put_text(to, self.code);
        put_text(to, self.message);
    }

    fn take(fields: &mut Fields<'a>) -> Result<Self, Garbled> {
        Ok(Self { failure: fields.known(&FAILURES)?, code: fields.text()?, message: fields.text()? })
    }
}

impl Image {
    fn put(self, to: &mut Vec<u8>) {
        let (kind, numbers) = match self {
            Self::None => (0, None),
            Self::Empty { image, bytes_max } => (1, Some([image, bytes_max])),
            Self::Filled { image, bytes } => (2, Some([image, bytes])),
        };
        to.push(kind);
        numbers.into_iter().flatten().for_each(|number| put_u64(to, number));
    }

    fn take(fields: &mut Fields<'_>) -> Result<Self, Garbled> {
        match fields.u8()? {
            0 => Ok(Self::None),
            1 => Ok(Self::Empty { image: fields.u64()?, bytes_max: fields.u64()? }),
            2 => Ok(Self::Filled { image: fields.u64()?, bytes: fields.u64()? }),
            _ => Err(Garbled("an image that is neither empty nor filled")),
        }
    }
}

/// The origins and their bytes.
const ORIGINS: [Origin; 4] = [Origin::Files, Origin::Image, Origin::Parked, Origin::Device];

impl Arrival {
    fn put(&self, to: &mut Vec<u8>) {
        let Self { model, precision, outputs, bytes, took, origin, memory } = self;
        put_u32(to, *model);
        put_known(to, &Precision::ALL, precision);
        put_u32(to, *outputs);
        put_u64(to, *bytes);
        put_time(to, *took);
        put_known(to, &ORIGINS, origin);
        put_memory(to, memory);
    }

    fn take(fields: &mut Fields<'_>) -> Result<Self, Garbled> {
        Ok(Self {
            model: fields.u32()?,
            precision: fields.known(&Precision::ALL)?,
            outputs: fields.u32()?,
            bytes: fields.u64()?,
            took: fields.time()?,
            origin: fields.known(&ORIGINS)?,
            memory: take_memory(fields)?,
        })
    }
}

fn put_memory(to: &mut Vec<u8>, memory: &MemoryStats) {
    let MemoryStats { allocated, reserved, spare, peak_allocated, free, total, pool } = *memory;
    [allocated, reserved, spare, peak_allocated, free, total].into_iter().for_each(|number| put_u64(to, number));
    let PoolStats { reserved, used, peak_reserved, peak_used, parked, largest_free, blocks, .. } = pool;
    let PoolStats { hits, misses, driver_calls, trims, stitches, predicted, .. } = pool;
    [reserved, used, peak_reserved, peak_used, parked, largest_free, blocks].iter().for_each(|n| put_u64(to, *n));
    [hits, misses, driver_calls, trims, stitches, predicted].into_iter().for_each(|number| put_u64(to, number));
}

fn take_memory(fields: &mut Fields<'_>) -> Result<MemoryStats, Garbled> {
    Ok(MemoryStats {
        allocated: fields.u64()?,
        reserved: fields.u64()?,
        spare: fields.u64()?,
        peak_allocated: fields.u64()?,
        free: fields.u64()?,
        total: fields.u64()?,
        pool: PoolStats {
            reserved: fields.u64()?,
            used: fields.u64()?,
            peak_reserved: fields.u64()?,
            peak_used: fields.u64()?,
            parked: fields.u64()?,
            largest_free: fields.u64()?,
            blocks: fields.u64()?,
            hits: fields.u64()?,
            misses: fields.u64()?,
            driver_calls: fields.u64()?,
            trims: fields.u64()?,
            stitches: fields.u64()?,
            predicted: fields.u64()?,
        },
    })
}

#[cfg(test)]
mod tests;
