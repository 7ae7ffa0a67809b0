//! The messages between supervisor and worker, and their bytes.
//! Sends and receives nothing; bytes that make no sense are an error, never a panic.

use crate::gpu::MemoryStats;
use magray_core::schedule::Failure;
use std::time::Duration;

/// Counts up with every change of the messages. Both sides are the same program, but its file may be replaced while it
/// runs.
pub(super) const PROTOCOL: u8 = 1;
/// Length of what follows the header, protocol, kind.
pub(super) const HEADER_BYTES: usize = 6;
/// No message is longer than this; the longest is the one that names models and folders.
pub(super) const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Texts for people are cut to this.
const TEXT_BYTES_MAX: usize = 2048;

/// What a supervisor says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ToWorker<'a> {
    /// Open this device and these models: a [`super::WorkerSpec`] in JSON.
    Open(&'a [u8]),
    /// Say which GPUs there are, with the driver in these folders (a JSON list), and end.
    Survey(&'a [u8]),
    /// Here is the memory for batches and answers; its handle comes along.
    Memory(Layout),
    /// Compute what lies in a slot.
    Batch(Batch),
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
    /// The models are loaded: a [`super::Ready`] in JSON.
    Ready(&'a [u8]),
    /// The GPUs that there are: a [`super::survey::Findings`] in JSON.
    Surveyed(&'a [u8]),
    /// The models are not loaded, and it ends.
    NotReady(Trouble<'a>),
    /// The answers lie in the slot.
    Finished { batch: u64, slot: u32, compute: Duration },
    /// There are no answers.
    Failed { batch: u64, slot: u32, trouble: Trouble<'a> },
    /// It lives.
    Heartbeat(MemoryStats),
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

/// How much of a slot is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) texts: u32,
    pub(super) tokens: u32,
    pub(super) has_types: bool,
}

/// Bytes that make no sense; says what is wrong with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Garbled(pub(super) &'static str);

const OPEN: u8 = 1;
const MEMORY: u8 = 2;
const BATCH: u8 = 3;
const TRIM: u8 = 4;
const STOP: u8 = 5;
const SURVEY: u8 = 6;
const HELLO: u8 = 65;
const READY: u8 = 66;
const NOT_READY: u8 = 67;
const FINISHED: u8 = 68;
const FAILED: u8 = 69;
const HEARTBEAT: u8 = 70;
const SURVEYED: u8 = 71;

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
            Self::Memory(layout) => {
                let Layout { slots, tokens_max, texts_max, outputs_max } = layout;
                [slots, tokens_max, texts_max, outputs_max].into_iter().for_each(|number| put_u32(to, number));
                MEMORY
            }
            Self::Batch(Batch { batch, slot, model, skip, extent }) => {
                put_u64(to, batch);
                [slot, model, skip, extent.texts, extent.tokens].into_iter().for_each(|number| put_u32(to, number));
                to.push(extent.has_types.into());
                BATCH
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
            MEMORY => Self::Memory(Layout {
                slots: fields.u32()?,
                tokens_max: fields.u32()?,
                texts_max: fields.u32()?,
                outputs_max: fields.u32()?,
            }),
            BATCH => Self::Batch(Batch {
                batch: fields.u64()?,
                slot: fields.u32()?,
                model: fields.u32()?,
                skip: fields.u32()?,
                extent: Extent { texts: fields.u32()?, tokens: fields.u32()?, has_types: fields.flag()? },
            }),
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
            Self::Ready(json) => {
                to.extend_from_slice(json);
                READY
            }
            Self::Surveyed(json) => {
                to.extend_from_slice(json);
                SURVEYED
            }
            Self::NotReady(trouble) => {
                trouble.put(to);
                NOT_READY
            }
            Self::Finished { batch, slot, compute } => {
                put_u64(to, batch);
                put_u32(to, slot);
                put_u64(to, u64::try_from(compute.as_nanos()).unwrap_or(u64::MAX));
                FINISHED
            }
            Self::Failed { batch, slot, trouble } => {
                put_u64(to, batch);
                put_u32(to, slot);
                trouble.put(to);
                FAILED
            }
            Self::Heartbeat(MemoryStats { allocated, reserved, peak_allocated, total }) => {
                [allocated, reserved, peak_allocated, total].into_iter().for_each(|number| put_u64(to, number));
                HEARTBEAT
            }
        });
    }

    /// Reads what follows a header of this kind.
    pub(super) fn decode(kind: u8, payload: &'a [u8]) -> Result<Self, Garbled> {
        let mut fields = Fields(payload);
        let message = match kind {
            HELLO => Self::Hello { pid: fields.u32()? },
            READY => Self::Ready(fields.rest()),
            SURVEYED => Self::Surveyed(fields.rest()),
            NOT_READY => Self::NotReady(Trouble::take(&mut fields)?),
            FINISHED => Self::Finished {
                batch: fields.u64()?,
                slot: fields.u32()?,
                compute: Duration::from_nanos(fields.u64()?),
            },
            FAILED => {
                let (batch, slot) = (fields.u64()?, fields.u32()?);
                Self::Failed { batch, slot, trouble: Trouble::take(&mut fields)? }
            }
            HEARTBEAT => Self::Heartbeat(MemoryStats {
                allocated: fields.u64()?,
                reserved: fields.u64()?,
                peak_allocated: fields.u64()?,
                total: fields.u64()?,
            }),
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
        let failure = FAILURES.iter().position(|known| *known == self.failure);
        to.push(failure.map_or(u8::MAX, |at| at as u8));
        put_text(to, self.code);
        put_text(to, self.message);
    }

    fn take(fields: &mut Fields<'a>) -> Result<Self, Garbled> {
        let failure = FAILURES.get(fields.u8()? as usize).copied().ok_or(Garbled("an unknown failure"))?;
        Ok(Self { failure, code: fields.text()?, message: fields.text()? })
    }
}

/// Puts a header before what `fill` writes; `fill` returns the kind.
fn frame(to: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>) -> u8) {
    to.clear();
    to.resize(HEADER_BYTES, 0);
    let kind = fill(to);
    let length = u32::try_from(to.len() - HEADER_BYTES).unwrap_or(u32::MAX);
    to[..4].copy_from_slice(&length.to_le_bytes());
    to[4..HEADER_BYTES].copy_from_slice(&[PROTOCOL, kind]);
}

fn put_u32(to: &mut Vec<u8>, number: u32) {
    to.extend_from_slice(&number.to_le_bytes());
}

fn put_u64(to: &mut Vec<u8>, number: u64) {
    to.extend_from_slice(&number.to_le_bytes());
}

fn put_text(to: &mut Vec<u8>, text: &str) {
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    put_u32(to, text.len() as u32);
    to.extend_from_slice(text.as_bytes());
}

/// What is left of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Garbled> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Garbled("a message that is cut short"))?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn u8(&mut self) -> Result<u8, Garbled> {
        self.bytes().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, Garbled> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Garbled> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Result<bool, Garbled> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Garbled("a yes or no that is neither")),
        }
    }

    fn text(&mut self) -> Result<&'a str, Garbled> {
        let length = self.u32()? as usize;
        let (text, rest) = self.0.split_at_checked(length).ok_or(Garbled("a text that is cut short"))?;
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| Garbled("a text that is not UTF-8"))
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn end(self) -> Result<(), Garbled> {
        if self.0.is_empty() { Ok(()) } else { Err(Garbled("a message with more in it than it should have")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STATS: MemoryStats = MemoryStats { allocated: 1, reserved: 2, peak_allocated: 3, total: u64::MAX };
    const TROUBLE: Trouble<'_> = Trouble { failure: Failure::Lost, code: "lost", message: "the GPU is gone \u{2713}" };
    const EXTENT: Extent = Extent { texts: 3, tokens: 70_000, has_types: true };

    fn to_worker() -> Vec<ToWorker<'static>> {
        vec![
            ToWorker::Open(b"{}"),
            ToWorker::Memory(Layout { slots: 1, tokens_max: 2, texts_max: 3, outputs_max: 4 }),
            ToWorker::Batch(Batch { batch: u64::MAX, slot: 1, model: 2, skip: 3, extent: EXTENT }),
            ToWorker::Trim,
            ToWorker::Stop,
        ]
    }

    fn to_supervisor() -> Vec<ToSupervisor<'static>> {
        let mut messages = vec![
            ToSupervisor::Hello { pid: 4711 },
            ToSupervisor::Ready(b"[1]"),
            ToSupervisor::NotReady(TROUBLE),
            ToSupervisor::Finished { batch: 9, slot: 1, compute: Duration::from_nanos(12_345) },
            ToSupervisor::Heartbeat(STATS),
        ];
        messages.extend(FAILURES.map(|failure| {
            let trouble = Trouble { failure, ..TROUBLE };
            ToSupervisor::Failed { batch: 9, slot: 1, trouble }
        }));
        messages
    }

    /// Kind and payload, as the channel hands them over.
    fn parts(bytes: &[u8]) -> (u8, &[u8]) {
        let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
        assert_eq!((length, bytes[4]), (bytes.len() - HEADER_BYTES, PROTOCOL));
        (bytes[5], &bytes[HEADER_BYTES..])
    }

    #[test]
    fn every_message_arrives_as_it_was_sent() {
        let mut bytes = vec![99; 10];
        for message in to_worker() {
            message.encode(&mut bytes);
            let (kind, payload) = parts(&bytes);
            assert_eq!(ToWorker::decode(kind, payload), Ok(message));
            assert!(ToSupervisor::decode(kind, payload).is_err(), "{message:?} taken for an answer");
        }
        for message in to_supervisor() {
            message.encode(&mut bytes);
            let (kind, payload) = parts(&bytes);
            assert_eq!(ToSupervisor::decode(kind, payload), Ok(message));
            assert!(ToWorker::decode(kind, payload).is_err(), "{message:?} taken for an order");
        }
    }

    #[test]
    fn a_message_cut_short_or_too_long_is_an_error() {
        let mut bytes = Vec::new();
        for message in to_supervisor() {
            message.encode(&mut bytes);
            let (kind, payload) = parts(&bytes);
            if !matches!(message, ToSupervisor::Ready(_)) {
                assert!(ToSupervisor::decode(kind, &payload[..payload.len() - 1]).is_err(), "{message:?}");
                assert!(ToSupervisor::decode(kind, &[payload, &[0]].concat()).is_err(), "{message:?}");
            }
        }
    }

    #[test]
    fn a_message_for_people_is_cut_between_letters() {
        let long = "\u{e9}".repeat(5000);
        let mut bytes = Vec::new();
        ToSupervisor::NotReady(Trouble { message: &long, ..TROUBLE }).encode(&mut bytes);
        let (kind, payload) = parts(&bytes);
        let Ok(ToSupervisor::NotReady(trouble)) = ToSupervisor::decode(kind, payload) else { panic!("{kind}") };
        assert_eq!(trouble.message, &long[..TEXT_BYTES_MAX]);
    }

    proptest! {
        #[test]
        fn garbage_is_never_a_panic(kind: u8, bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = ToWorker::decode(kind, &bytes);
            let _ = ToSupervisor::decode(kind, &bytes);
        }
    }
}
