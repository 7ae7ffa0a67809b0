//! The arithmetic of the ledger: examples, and properties over random histories.

use super::*;
use crate::moment::Moment;
use proptest::prelude::*;
use std::time::Duration;

const NOW: Moment = Moment::START;
const A: Owner = Owner::Weights(ModelId(0));
const B: Owner = Owner::Weights(ModelId(1));
const KV: Owner = Owner::Kv(ModelId(0));
const VECTORS: Owner = Owner::Vectors(CollectionId(0));

/// 1,600 bytes, of which 100 are kept for passes, 40 for the driver and 260 for the state of sequences.
fn ledger() -> Ledger {
    Ledger::new(Budget { memory_max: 1_600, context: 40, kv_max: 260 })
}

fn report(free: u64, held: &[(Owner, u64)]) -> MemoryReport {
    MemoryReport { free, cached: 0, held: held.to_vec() }
}

#[test]
fn a_grant_is_refused_with_what_is_missing() {
    let mut ledger = ledger();
    assert_eq!(ledger.room(), 1_200);
    assert_eq!(ledger.grant(A, 1_000, NOW), Ok(()));
    assert_eq!(ledger.grant(B, 250, NOW), Err(Missing(50)));
    assert_eq!(ledger.grant(VECTORS, 200, NOW), Ok(()));
    assert_eq!((ledger.grant(KV, 261, NOW), ledger.grant(KV, 260, NOW)), (Err(Missing(1)), Ok(())));
    assert_eq!((ledger.balance(B), ledger.room_used(), ledger.kv_free()), (0, 1_200, 0));
    assert_eq!(ledger.close(A), 1_000);
    assert_eq!(ledger.grant(B, 250, NOW), Ok(()));
}

#[test]
fn what_is_promised_is_taken_and_what_leaves_is_not() {
    let mut ledger = ledger();
    ledger.grant(A, 1_000, NOW).unwrap();
    let missing = |bytes, promised, leaving| ledger.missing(Need { bytes, promised, leaving }, NOW);
    assert_eq!((missing(200, 0, 0), missing(200, 30, 0), missing(1_200, 30, 1_000)), (0, 30, 30));
}

#[test]
fn a_report_says_how_much_there_is_and_nobody_leaves_for_the_sake_of_passes() {
    let mut ledger = ledger();
    ledger.grant(A, 900, NOW).unwrap();
    assert!(ledger.reconcile(&report(200, &[(Owner::Context, 40), (Owner::Workspace, 160), (A, 900)])));
    assert_eq!((ledger.capacity(), ledger.room(), ledger.overdrawn()), (1_300, 840, 0));
    assert!(!ledger.reconcile(&report(200, &[(Owner::Context, 40), (Owner::Workspace, 160), (A, 900)])));
    assert_eq!(ledger.grant(B, 1, NOW), Err(Missing(61)));
    let cached = MemoryReport { free: 100, cached: 260, held: vec![(Owner::Context, 40), (A, 900)] };
    ledger.reconcile(&cached);
    assert_eq!((ledger.capacity(), ledger.room()), (1_300, 1_000 - 1_300 / 16), "what is cached counts as free");
    ledger.reconcile(&report(100, &[(Owner::Context, 40), (A, 900)]));
    assert_eq!(ledger.overdrawn(), 160, "another process has taken the share of sequences");
}

#[test]
fn a_report_never_lifts_the_capacity_over_the_limit() {
    let mut ledger = ledger();
    ledger.reconcile(&report(5_000, &[]));
    assert_eq!(ledger.capacity(), 1_600);
    ledger.reconcile(&report(u64::MAX, &[(A, u64::MAX)]));
    assert_eq!((ledger.capacity(), ledger.balance(A)), (1_600, 0), "what was not granted has no account");
}

#[test]
fn a_report_corrects_weights_that_take_more_than_was_granted() {
    let mut ledger = ledger();
    ledger.grant(A, 500, NOW).unwrap();
    ledger.reconcile(&report(1_000, &[(A, 600)]));
    assert_eq!(ledger.balance(A), 600);
    ledger.reconcile(&report(1_000, &[(A, 20)]));
    assert_eq!(ledger.balance(A), 600, "they may be on their way");
}

#[test]
fn after_a_full_memory_less_is_believed_to_be_there_but_one_alone_is_tried() {
    let mut ledger = ledger();
    ledger.grant(A, 300, NOW).unwrap();
    let until = NOW + Duration::from_secs(1);
    ledger.out_of_memory(until);
    let need = |bytes, leaving| Need { bytes, promised: 0, leaving };
    assert_eq!((ledger.missing(need(50, 0), NOW), ledger.missing(need(50, 0), until)), (50, 0));
    assert_eq!((ledger.missing(need(900, 300), NOW), ledger.missing(need(1_201, 300), NOW)), (0, 1));
    ledger.reconcile(&report(1_255, &[(Owner::Context, 40), (A, 300)]));
    assert_eq!(ledger.missing(need(50, 0), NOW), 50, "a report of about the same says nothing new");
    ledger.reconcile(&report(1_200, &[(Owner::Context, 40), (A, 300)]));
    assert_eq!(ledger.missing(need(50, 0), NOW), 0);
}

#[test]
fn with_the_worker_everything_goes_but_what_the_driver_will_take() {
    let mut ledger = ledger();
    ledger.grant(A, 300, NOW).unwrap();
    ledger.grant(KV, 100, NOW).unwrap();
    ledger.reconcile(&report(10, &[(Owner::Context, 70), (Owner::Workspace, 20), (A, 300), (KV, 100)]));
    ledger.out_of_memory(NOW + Duration::from_secs(1));
    ledger.clear();
    assert_eq!(ledger.accounts().collect::<Vec<_>>(), [(Owner::Context, 40)]);
    assert_eq!((ledger.capacity(), ledger.room(), ledger.believed_until()), (1_600, 1_200, None));
}

#[test]
#[should_panic(expected = "returns 6 of 5")]
fn more_than_was_granted_cannot_be_returned() {
    let mut ledger = ledger();
    ledger.grant(KV, 5, NOW).unwrap();
    ledger.give_back(KV, 6);
}

#[test]
#[should_panic(expected = "is reported, not granted")]
fn passes_are_granted_nothing() {
    let _ = ledger().grant(Owner::Workspace, 1, NOW);
}

fn candidate(who: u32, rank: Rank, priority: u8, score: f64) -> Candidate<u32, u8> {
    Candidate { who, bytes: 10, rank, priority, score }
}

#[test]
fn weights_go_before_vectors_before_sequences_and_the_least_important_first() {
    let candidates = || {
        vec![
            candidate(7, Rank::BusyWeights, 0, 9.0),
            candidate(6, Rank::WaitingSequence, 0, 1.0),
            candidate(5, Rank::PausedSequence, 2, 1.0),
            candidate(4, Rank::IdleVectors, 0, 1.0),
            candidate(3, Rank::IdleWeights, 2, 9.0),
            candidate(2, Rank::IdleWeights, 1, 3.0),
            candidate(1, Rank::IdleWeights, 1, 4.0),
        ]
    };
    let choose_for = |bytes: u64| choose(candidates(), |freed| bytes.saturating_sub(freed));
    assert_eq!(choose_for(70), (vec![1, 2, 3, 4, 5, 6, 7], 0));
    assert_eq!(choose_for(11), (vec![1, 2], 0));
    assert_eq!(choose_for(0), (vec![], 0));
    assert_eq!(choose_for(75).1, 5, "all of them would not do");
    assert_eq!(first(candidates()), Some(1));
    let alike = [candidate(8, Rank::IdleVectors, 0, 1.0), candidate(9, Rank::IdleVectors, 0, 1.0)];
    assert_eq!(first(alike), Some(8));
}

#[derive(Clone, Debug)]
enum Step {
    Grant(Owner, u64),
    GiveBack(Owner, u64),
    Close(Owner),
    Report { free: u64, workspace: u64 },
    OutOfMemory,
    Clear,
}

fn owners() -> impl Strategy<Value = Owner> {
    prop_oneof![
        (0_u32..3).prop_map(|id| Owner::Weights(ModelId(id))),
        (0_u32..3).prop_map(|id| Owner::Kv(ModelId(id))),
        (0_u32..2).prop_map(|id| Owner::Vectors(CollectionId(id))),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (owners(), 0_u64..700).prop_map(|(owner, bytes)| Step::Grant(owner, bytes)),
        3 => (owners(), 0_u64..700).prop_map(|(owner, bytes)| Step::GiveBack(owner, bytes)),
        2 => owners().prop_map(Step::Close),
        2 => (0_u64..3_000, 0_u64..400).prop_map(|(free, workspace)| Step::Report { free, workspace }),
        1 => Just(Step::OutOfMemory),
        1 => Just(Step::Clear),
    ];
    prop::collection::vec(step, 1..60)
}

/// What everybody has.
fn sum(ledger: &Ledger) -> u64 {
    ledger.accounts().map(|(_, bytes)| bytes).sum()
}

proptest! {
    #[test]
    fn no_grant_makes_more_than_there_is(steps in steps(), memory_max in 0_u64..4_000, kv_max in 0_u64..500) {
        let mut ledger = Ledger::new(Budget { memory_max, context: memory_max / 20, kv_max });
        for step in steps {
            match step {
                Step::Grant(owner, bytes) => {
                    let (before, was_overdrawn) = (ledger.clone(), ledger.overdrawn() > 0);
                    if ledger.grant(owner, bytes, NOW).is_ok() {
                        prop_assert_eq!(ledger.balance(owner), before.balance(owner) + bytes);
                        let is_kv = matches!(owner, Owner::Kv(_));
                        prop_assert!(is_kv || bytes == 0 || ledger.room_used() <= ledger.room());
                        prop_assert!(ledger.kv_used() <= kv_max);
                        let is_within = sum(&ledger) - ledger.balance(Owner::Workspace) <= ledger.capacity();
                        prop_assert!(was_overdrawn || bytes == 0 || is_within, "passes alone give way by themselves");
                    } else {
                        prop_assert_eq!(sum(&ledger), sum(&before), "a refusal changes nothing");
                    }
                }
                Step::GiveBack(owner, bytes) => ledger.give_back(owner, bytes.min(ledger.balance(owner))),
                Step::Close(owner) => {
                    ledger.close(owner);
                    prop_assert_eq!(ledger.balance(owner), 0);
                }
                Step::Report { free, workspace } => {
                    let mut held: Vec<(Owner, u64)> = ledger.accounts().collect();
                    held.retain(|(owner, _)| *owner != Owner::Workspace);
                    held.push((Owner::Workspace, workspace));
                    ledger.reconcile(&report(free, &held));
                    prop_assert!(ledger.capacity() <= memory_max);
                    // What is measured fits, where the limit is not what is short.
                    prop_assert!(ledger.capacity() == memory_max || sum(&ledger) <= ledger.capacity());
                }
                Step::OutOfMemory => ledger.out_of_memory(NOW + Duration::from_secs(1)),
                Step::Clear => ledger.clear(),
            }
            // The totals are those of the accounts.
            let of = |is_counted: fn(&Owner) -> bool| -> u64 {
                ledger.accounts().filter(|(owner, _)| is_counted(owner)).map(|(_, bytes)| bytes).sum()
            };
            prop_assert_eq!(ledger.room_used(), of(|owner| matches!(owner, Owner::Weights(_) | Owner::Vectors(_))));
            prop_assert_eq!(ledger.kv_used(), of(|owner| matches!(owner, Owner::Kv(_))));
        }
    }

    #[test]
    fn what_is_granted_and_returned_leaves_no_trace(before in steps(), owner in owners(), bytes in 0_u64..500) {
        let mut ledger = ledger();
        for step in before {
            if let Step::Grant(owner, bytes) = step {
                let _ = ledger.grant(owner, bytes, NOW);
            }
        }
        let accounts: Vec<(Owner, u64)> = ledger.accounts().collect();
        if ledger.grant(owner, bytes, NOW).is_ok() {
            ledger.give_back(owner, bytes);
        }
        prop_assert_eq!(ledger.accounts().collect::<Vec<_>>(), accounts);
    }

    #[test]
    fn no_more_leave_than_are_needed_and_in_order(
        candidates in prop::collection::vec((0_usize..5, 0_u8..3, 0_u64..100), 0..12),
        missing in 0_u64..600,
    ) {
        let ranks = [
            Rank::IdleWeights, Rank::IdleVectors, Rank::PausedSequence, Rank::WaitingSequence, Rank::BusyWeights,
        ];
        let all: Vec<Candidate<usize, u8>> = candidates.iter().enumerate().map(|(who, &(rank, priority, bytes))| {
            Candidate { who, bytes, rank: ranks[rank], priority, score: 0.0 }
        }).collect();
        let (chosen, left) = choose(all.clone(), |freed| missing.saturating_sub(freed));
        let bytes = |who: &[usize]| -> u64 { who.iter().map(|&who| all[who].bytes).sum() };
        prop_assert_eq!(left, missing.saturating_sub(bytes(&chosen)));
        if let Some((_, but_last)) = chosen.split_last() {
            prop_assert!(bytes(but_last) < missing);
        }
        let key = |who: usize| (all[who].rank, all[who].priority);
        let last = chosen.iter().map(|&who| key(who)).max();
        let stays = (0..all.len()).filter(|who| !chosen.contains(who)).map(key).min();
        prop_assert!(last.is_none() || stays.is_none() || last <= stays);
        prop_assert!(left == 0 || chosen.len() == all.len());
    }
}
