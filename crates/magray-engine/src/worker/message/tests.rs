//! Every message, there and back.

use super::super::wire::{HEADER_BYTES, PROTOCOL, TEXT_BYTES_MAX};
use super::*;
use proptest::prelude::*;

const POOL: PoolStats = PoolStats {
    reserved: 11,
    used: 12,
    peak_reserved: 13,
    peak_used: 14,
    parked: 15,
    largest_free: 16,
    blocks: 17,
    hits: 18,
    misses: 19,
    driver_calls: 20,
    trims: 21,
    stitches: 22,
    predicted: 23,
};
const STATS: MemoryStats =
    MemoryStats { allocated: 1, reserved: 2, spare: 5, peak_allocated: 3, free: 4, total: u64::MAX, pool: POOL };
const ARRIVAL: Arrival = Arrival {
    model: 3,
    precision: Precision::Int8,
    outputs: 384,
    bytes: 1 << 40,
    took: Duration::from_nanos(77),
    origin: Origin::Parked,
    memory: STATS,
};
const TROUBLE: Trouble<'_> = Trouble { failure: Failure::Lost, code: "lost", message: "the GPU is gone \u{2713}" };
const EXTENT: Extent = Extent { texts: 3, tokens: 70_000, has_types: true };

fn to_worker() -> Vec<ToWorker<'static>> {
    vec![
        ToWorker::Open(b"{}"),
        ToWorker::Survey(b"[]"),
        ToWorker::Attempt(b"{}"),
        ToWorker::Memory(Layout { slots: 1, tokens_max: 2, texts_max: 3, outputs_max: 4 }),
        ToWorker::Batch(Batch { batch: u64::MAX, slot: 1, model: 2, skip: 3, extent: EXTENT }),
        ToWorker::Turn { batch: Batch { batch: 1, slot: 0, model: 2, skip: 0, extent: EXTENT }, heads: &[7; 16] },
        ToWorker::Free { sequence: u64::MAX },
        ToWorker::Load { model: 1, image: Image::None },
        ToWorker::Load { model: 2, image: Image::Empty { image: 3, bytes_max: 4 } },
        ToWorker::Load { model: 2, image: Image::Filled { image: u64::MAX, bytes: 4 } },
        ToWorker::Offload { model: 5 },
        ToWorker::Forget { model: u32::MAX },
        ToWorker::Trim,
        ToWorker::Stop,
    ]
}

fn to_supervisor() -> Vec<ToSupervisor<'static>> {
    let mut messages = vec![
        ToSupervisor::Hello { pid: 4711 },
        ToSupervisor::Ready { memory: STATS, json: b"[1]" },
        ToSupervisor::Surveyed(b"[2]"),
        ToSupervisor::Attempted(b"[3]"),
        ToSupervisor::NotLoaded { model: 1, trouble: TROUBLE },
        ToSupervisor::Offloaded { model: 1, took: Duration::from_micros(5), memory: STATS },
        ToSupervisor::ImageFilled { model: 1, image: 2, bytes: 3 },
        ToSupervisor::ImageSpoilt { model: 1, image: 2, trouble: TROUBLE },
        ToSupervisor::NotReady(TROUBLE),
        ToSupervisor::Turned { batch: 9, slot: 1, compute: Duration::from_nanos(5), new: &[0; 5] },
        ToSupervisor::Finished { batch: 9, slot: 1, compute: Duration::from_nanos(12_345) },
        ToSupervisor::Heartbeat(STATS),
    ];
    messages.extend(ORIGINS.map(|origin| ToSupervisor::Loaded(Arrival { origin, ..ARRIVAL })));
    messages.extend(Precision::ALL.map(|precision| ToSupervisor::Loaded(Arrival { precision, ..ARRIVAL })));
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
        let ends_in_bytes = matches!(
            message,
            ToSupervisor::Ready { .. }
                | ToSupervisor::Surveyed(_)
                | ToSupervisor::Attempted(_)
                | ToSupervisor::Turned { .. }
        );
        if !ends_in_bytes {
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

#[test]
fn steps_and_what_comes_of_them_are_read_as_they_were_written() {
    let heads = [(1, 0, 0), (u64::MAX, 7, 3)];
    let heads = heads.map(|(sequence, from, new_tokens_max)| StepHead { sequence, from, new_tokens_max });
    let mut bytes = Vec::new();
    heads.iter().for_each(|head| head.put(&mut bytes));
    assert_eq!(StepHead::take_all(&bytes).unwrap(), heads);
    assert!(StepHead::take_all(&bytes[..17]).is_err());
    let new = [NewTokens::default(), NewTokens { tokens: vec![1, u32::MAX], is_end: true }];
    let mut bytes = Vec::new();
    new.iter().for_each(|new| put_new_tokens(&mut bytes, new));
    assert_eq!(take_new_tokens(&bytes).unwrap(), new);
    assert!(take_new_tokens(&bytes[..bytes.len() - 1]).is_err());
}
