//! Whatever happens, in whatever order: one answer for each request, and no bound exceeded.
//! Events are drawn without sense on purpose: processes race, and news can be of anything.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Something to do to a machine. Numbers choose among what is there.
#[derive(Clone, Debug)]
enum Deed {
    Submit { tokens: Vec<u32>, group: u32, allowed: u8, priority: u8, deadline_ms: Option<u64> },
    Cancel(usize),
    Finish(usize),
    Fail(usize, u8),
    Worker(u8, u8),
    Judge(u8, u8),
    Wait(u64),
}

fn deed() -> impl Strategy<Value = Deed> {
    let tokens = prop::collection::vec(1_u32..600, 1..40);
    let deadline = prop::option::weighted(0.2, 1_u64..3_000);
    prop_oneof![
        6 => (tokens, 0_u32..3, 0_u8..6, 0_u8..3, deadline).prop_map(
            |(tokens, group, allowed, priority, deadline_ms)| Deed::Submit { tokens, group, allowed, priority, deadline_ms }
        ),
        1 => any::<usize>().prop_map(Deed::Cancel),
        10 => any::<usize>().prop_map(Deed::Finish),
        2 => (any::<usize>(), 0_u8..5).prop_map(|(batch, failure)| Deed::Fail(batch, failure)),
        5 => (0_u8..3, 0_u8..12).prop_map(|(device, news)| Deed::Worker(device, news)),
        1 => (0_u8..3, 0_u8..4).prop_map(|(device, condition)| Deed::Judge(device, condition)),
        3 => (0_u64..2_000_000).prop_map(Deed::Wait),
    ]
}

/// What is known of a machine from outside.
#[derive(Default)]
struct Outside {
    open: BTreeMap<BatchId, Start>,
    tokens: BTreeMap<RequestId, (Group, Vec<u32>)>,
    unanswered: BTreeSet<RequestId>,
    cancelled: BTreeSet<RequestId>,
}

const LIMITS: Limits = Limits { requests_max: 20, tokens_max: 60_000, wait_max: None };
const TEXTS_MAX: usize = 32;

impl Outside {
    fn check(&mut self, bench: &Bench, actions: &[Action]) {
        for action in actions {
            match action {
                Action::Complete { request, .. } | Action::Refuse { request, .. } => {
                    assert!(self.unanswered.remove(request), "{request:?} is answered once, and only if it was asked");
                }
                Action::Kill { device, .. } => assert_ne!(*device, CPU, "it is this process"),
                _ => {}
            }
        }
        for start in starts(actions) {
            assert!(!self.open.contains_key(&start.batch), "a batch's name is used once");
            let sizes = || {
                start.steps.iter().flat_map(|step| {
                    let tokens = &self.tokens[&step.request].1;
                    step.sequences.clone().map(move |text| tokens[text as usize])
                })
            };
            let most = if start.device == CPU { 4_096 } else { 16_384 };
            assert!(start.texts() <= TEXTS_MAX && sizes().sum::<u32>() <= most, "{start:?}");
            let groups: BTreeSet<Group> = start.steps.iter().map(|step| self.tokens[&step.request].0).collect();
            assert_eq!(groups.len(), 1, "{start:?}");
            assert!(start.steps.iter().all(|step| !self.cancelled.contains(&step.request)));
            self.open.insert(start.batch, start);
        }
        let view = bench.machine.view();
        assert!(view.requests <= LIMITS.requests_max && view.tokens <= LIMITS.tokens_max);
        assert!(view.devices[0].batches <= 1 && view.devices[1].batches <= 2 && view.devices[2].batches <= 2);
        assert!(bench.machine.next_wake().is_none_or(|wake| wake > bench.now));
    }

    fn pick(&self, number: usize) -> Option<BatchId> {
        self.open.keys().nth(number % self.open.len().max(1)).copied()
    }
}

fn apply(bench: &mut Bench, outside: &mut Outside, deed: Deed) {
    let device = |number: u8| DeviceId(u16::from(number));
    let actions = match deed {
        Deed::Submit { tokens, group, allowed, priority, deadline_ms } => {
            let request = Request {
                group: Group { model: crate::schedule::ModelId(0), key: group },
                sequences: one_steps(&tokens),
                priority: [Priority::Low, Priority::Normal, Priority::High][usize::from(priority)],
                deadline: deadline_ms.map(|ms| bench.now + Duration::from_millis(ms)),
                allowed: [Allowed::Any, Allowed::Any, Allowed::Any, Allowed::Gpu, Allowed::Cpu, Allowed::Only(GPU2)]
                    [usize::from(allowed)],
                ..bench.request(0)
            };
            outside.tokens.insert(request.id, (request.group, tokens));
            outside.unanswered.insert(request.id);
            bench.submit(request).1
        }
        Deed::Cancel(number) => {
            let Some(&id) = outside.unanswered.iter().nth(number % outside.unanswered.len().max(1)) else { return };
            outside.unanswered.remove(&id);
            outside.cancelled.insert(id);
            bench.step(Event::Cancelled(id))
        }
        Deed::Finish(number) => {
            let Some(batch) = outside.pick(number) else { return };
            outside.open.remove(&batch);
            bench.finish(batch)
        }
        Deed::Fail(number, failure) => {
            let Some(batch) = outside.pick(number) else { return };
            let failure =
                [Failure::OutOfMemory, Failure::Transient, Failure::Sticky, Failure::WrongAnswer, Failure::Lost]
                    [usize::from(failure)];
            bench.fail(batch, failure)
        }
        Deed::Worker(number, news) => {
            let device = device(number);
            bench.step(match news {
                0 => Event::Down { device, ending: Ending::Crashed },
                1 => Event::Down { device, ending: Ending::Killed },
                2 => Event::Down { device, ending: Ending::NotStarted },
                3 => Event::Down { device, ending: Ending::Lost },
                4 | 5 => Event::Down { device, ending: Ending::Ordered },
                6 => Event::Probed { device, passed: news % 2 == 0 },
                7 => Event::Reset { device },
                8 => Event::Heartbeat { device },
                _ => Event::Up { device },
            })
        }
        Deed::Judge(number, condition) => bench.step(Event::Judged {
            device: device(number),
            condition: [
                Condition::Fine,
                Condition::Fine,
                Condition::Hot { weight: 0.3 },
                Condition::Bad(Fault::Overheated),
            ][usize::from(condition)],
        }),
        Deed::Wait(micros) => bench.pass(Duration::from_micros(micros)),
    };
    outside.check(bench, &actions);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_request_is_answered_once_whatever_happens(deeds in prop::collection::vec(deed(), 1..150), fixed in any::<bool>(), in_turn in any::<bool>()) {
        let sizing =
            if fixed { Sizing::Fixed { texts: 5, timeout: Duration::from_millis(3) } } else { Sizing::Adaptive };
        let texts_max = u32::try_from(TEXTS_MAX).unwrap();
        let mut bench = Bench::up(2, Options {
            limits: LIMITS,
            batching: Batching { sizing, texts_max, ..Batching::default() },
            placement: if in_turn { Placement::RoundRobin } else { Placement::Weighted },
            ..Options::default()
        });
        let mut outside = Outside::default();
        for deed in deeds {
            apply(&mut bench, &mut outside, deed);
        }
        // All trouble is over: workers come when they are asked for, probes pass, batches are computed.
        for device in [GPU, GPU2] {
            for event in [
                Event::Down { device, ending: Ending::Killed },
                Event::Judged { device, condition: Condition::Fine },
                Event::Reset { device },
                Event::Up { device },
                Event::Probed { device, passed: true },
            ] {
                let actions = bench.step(event);
                outside.check(&bench, &actions);
            }
        }
        for _ in 0..3_000 {
            while let Some(batch) = outside.pick(0) {
                apply(&mut bench, &mut outside, Deed::Finish(0));
                prop_assert!(!outside.open.contains_key(&batch));
            }
            if outside.unanswered.is_empty() {
                break;
            }
            apply(&mut bench, &mut outside, Deed::Wait(2_000));
            for number in [1, 2] {
                for news in [8, 9, 6] {
                    apply(&mut bench, &mut outside, Deed::Worker(number, news));
                }
            }
        }
        prop_assert!(outside.unanswered.is_empty(), "{:?} of {:?}", outside.unanswered, bench.machine.view());
        prop_assert_eq!((bench.machine.view().requests, bench.machine.view().tokens), (0, 0));
    }
}
