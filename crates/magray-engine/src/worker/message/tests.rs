//! Every message, there and back.

use super::super::wire::{Garbled, HEADER_BYTES, PROTOCOL, decode, encode};
use super::*;
use crate::decoder::{Constraint, TokenLogprobs};
use crate::executors::{FailureKind, Output};
use magray_core::pool::PoolStats;
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
const STATS: MemoryStats = MemoryStats {
    allocated: 1,
    reserved: 2,
    spare: 5,
    uneven: 6,
    peak_allocated: 3,
    free: 4,
    total: u64::MAX,
    pool: POOL,
};
const EXTENT: Extent = Extent { texts: 3, tokens: 70_000, has_types: true };
const TOOK: Duration = Duration::from_nanos(12_345_678_901);

fn problem() -> Failure {
    Failure::new(FailureKind::Lost, "lost", "the GPU is gone \u{2713}")
}

fn to_worker() -> Vec<ToWorker<'static>> {
    let batch = Batch { batch: u64::MAX, slot: 1, model: 2, skip: 3, output: Output::Tokens, extent: EXTENT };
    let search = VectorSearch { query: vec![1.0; 3], rows: 9, most: 4, is_filtered: true, is_exact: false };
    let steps = [(1, 0, 0), (u64::MAX, 7, 3)];
    let steps = steps.map(|(sequence, from, new_tokens_max)| TurnStep {
        sequence,
        from,
        new_tokens_max,
        passes_max: 3,
        goes_on: sequence % 2 == 0,
    });
    let sampling =
        |constraint| Sampling { logprobs: Some(20), logit_bias: vec![(3, -0.5)], constraint, ..Sampling::default() };
    let choices = Constraint::Choices(vec!["a".to_owned(), "\u{e9}".to_owned()]);
    vec![
        ToWorker::Open(b"{}"),
        ToWorker::Survey(b"[]"),
        ToWorker::Attempt(b""),
        ToWorker::Memory(Layout { slots: 1, tokens_max: 2, texts_max: 3, outputs_max: 4, token_numbers_max: 9 }),
        ToWorker::Batch(batch),
        ToWorker::Begin { sequence: 1, sampling: sampling(None) },
        ToWorker::Begin { sequence: u64::MAX, sampling: sampling(Some(choices)) },
        ToWorker::Begin { sequence: 2, sampling: sampling(Some(Constraint::JsonSchema("{}".to_owned()))) },
        ToWorker::Turn { batch, steps: steps.to_vec() },
        ToWorker::Free { sequence: u64::MAX },
        ToWorker::Load { model: 1, image: Image::None },
        ToWorker::Load { model: 2, image: Image::Empty { image: 3, bytes_max: 4 } },
        ToWorker::Load { model: 2, image: Image::Filled { image: u64::MAX, bytes: 4 } },
        ToWorker::Offload { model: 5 },
        ToWorker::Forget { model: u32::MAX },
        ToWorker::Vectors { call: 1, vectors: 2, order: VectorOrder::Hold(HeldShape { dims: 3, room: 4 }) },
        ToWorker::Vectors { call: 1, vectors: 2, order: VectorOrder::Put(5) },
        ToWorker::Vectors { call: 1, vectors: 2, order: VectorOrder::KeepSigns(vec![0.5, -1.0]) },
        ToWorker::Vectors { call: u64::MAX, vectors: u32::MAX, order: VectorOrder::Search(search) },
        ToWorker::Vectors { call: 1, vectors: 2, order: VectorOrder::Drop },
        ToWorker::Trim,
        ToWorker::Fault("hang"),
        ToWorker::Stop,
    ]
}

fn to_supervisor() -> Vec<ToSupervisor<'static>> {
    let logprobs = vec![TokenLogprobs { chosen: -0.5, top: vec![(u32::MAX, -0.25), (1, -9.0)] }];
    let new = vec![
        NewTokens::default(),
        NewTokens { tokens: vec![1, u32::MAX], is_end: true, ..NewTokens::default() },
        NewTokens {
            tokens: vec![1],
            is_end: true,
            logprobs,
            problem: Some("no".to_owned()),
            cached: 64,
            proposed: 7,
            accepted: 1,
        },
    ];
    let accounts =
        MemoryAccounts { context: 1, workspace: 2, cached: 3, weights: vec![4, u64::MAX], vectors: vec![(7, 8)] };
    let mut events = vec![
        FromWorker::Finished { batch: 9, slot: 1, compute: TOOK },
        FromWorker::Turned { batch: 9, slot: 1, compute: TOOK, new },
        FromWorker::Failed { batch: 9, slot: 1, problem: problem() },
        FromWorker::NotLoaded { model: 1, problem: problem() },
        FromWorker::Offloaded { model: 1, took: TOOK, memory: STATS },
        FromWorker::ImageFilled { model: 1, image: 2, bytes: 3 },
        FromWorker::ImageSpoilt { model: 1, image: 2, problem: problem() },
        FromWorker::Vectors { call: 1, vectors: 2, reply: VectorReply::Done },
        FromWorker::Vectors { call: 1, vectors: 2, reply: VectorReply::Found(vec![(1, 2), (3, u32::MAX)]) },
        FromWorker::Vectors { call: 1, vectors: 2, reply: VectorReply::Dropped },
        FromWorker::Vectors { call: 1, vectors: 2, reply: VectorReply::Failed(problem()) },
        FromWorker::Trimmed { freed: 3, memory: STATS },
        FromWorker::Heartbeat { memory: STATS, accounts: None },
        FromWorker::Heartbeat { memory: STATS, accounts: Some(accounts) },
    ];
    let arrived = |origin, precision| Arrived {
        precision,
        outputs: 384,
        bytes: 1 << 40,
        took: TOOK,
        origin,
        memory: STATS,
        provider: None,
        sums: Some(RankSums::Host("a reason".to_owned())),
    };
    for origin in [Origin::Files, Origin::Image, Origin::Parked, Origin::Device] {
        let of = |precision| FromWorker::Loaded { model: 3, arrived: arrived(origin, precision) };
        events.extend(Precision::ALL.map(of));
    }
    let mut messages = vec![
        ToSupervisor::Hello { pid: 4711 },
        ToSupervisor::Ready { memory: STATS, message: b"[1]" },
        ToSupervisor::Surveyed(b"[2]"),
        ToSupervisor::Attempted(b"[3]"),
        ToSupervisor::NotReady(problem()),
    ];
    messages.extend(events.into_iter().map(ToSupervisor::Event));
    messages
}

/// What follows the header, as the channel hands it over.
fn payload(bytes: &[u8]) -> &[u8] {
    let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
    assert_eq!((length, bytes[4]), (bytes.len() - HEADER_BYTES, PROTOCOL));
    &bytes[HEADER_BYTES..]
}

#[test]
fn every_message_arrives_as_it_was_sent() {
    let mut bytes = vec![99; 10];
    for message in to_worker() {
        encode(&message, &mut bytes);
        assert_eq!(decode(payload(&bytes)), Ok(message));
    }
    for message in to_supervisor() {
        encode(&message, &mut bytes);
        assert_eq!(decode(payload(&bytes)), Ok(message));
    }
}

#[test]
fn a_message_cut_short_or_too_long_is_an_error() {
    let mut bytes = Vec::new();
    for message in to_supervisor() {
        encode(&message, &mut bytes);
        let payload = payload(&bytes);
        let short = decode::<ToSupervisor<'_>>(&payload[..payload.len() - 1]);
        assert_eq!(short, Err(Garbled("a message that is cut short")), "{message:?}");
        let long = [payload, &[0]].concat();
        assert!(decode::<ToSupervisor<'_>>(&long).is_err_and(|Garbled(what)| what.contains("more")), "{message:?}");
    }
}

#[test]
fn the_message_of_a_batch_needs_no_new_memory() {
    let batch = ToWorker::Batch(Batch {
        batch: u64::MAX,
        slot: u32::MAX,
        model: 2,
        skip: 3,
        output: Output::Tokens,
        extent: EXTENT,
    });
    let mut bytes = Vec::with_capacity(64);
    let memory = bytes.as_ptr();
    encode(&batch, &mut bytes);
    encode(&batch, &mut bytes);
    assert_eq!(bytes.as_ptr(), memory);
}

proptest! {
    #[test]
    fn garbage_is_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = decode::<ToWorker<'_>>(&bytes);
        let _ = decode::<ToSupervisor<'_>>(&bytes);
    }
}
