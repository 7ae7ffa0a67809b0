//! The generator, the checker and the report, with engines that do everything wrong in turn.

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, TryRecvError, channel},
    },
    time::Duration,
};

use expect_test::expect;
use magray_engine::{DeviceName, Precision};

use magray_load::{
    DeviceNow, Done, Fault, Load, Outcome, Outcomes, Poison, Pool, Sending, Span, Target, Ticket, Tolerance, Vectors,
    drive,
};

use super::{
    measure,
    report::{Case, Report, table},
    watch::Seen,
};
use crate::terminal::Console;

const TEXTS: usize = 16;
const SIM: DeviceName = DeviceName::Simulated(0);

/// Texts whose vectors are the axes of space, of length 2.
fn axes(count: usize) -> Pool {
    let texts = (0..count).map(|text| vec![text as u32; 3]).collect();
    let vectors = axis_vectors(Span { first: 0, count }, count);
    Pool::checked(texts, &vectors, count, Tolerance::measured(0.9)).unwrap()
}

/// The vectors of some texts of [`axes`].
fn axis_vectors(Span { first, count }: Span, texts: usize) -> Vec<f32> {
    let row = |index: usize| (0..texts).map(move |axis| if axis == index % texts { 2.0 } else { 0.0 });
    (first..first + count).flat_map(row).collect()
}

/// A target that answers at once as the function says.
struct Fake<F>(F);

impl<F: Fn(Vec<Vec<u32>>, Ticket) + Sync> Target for Fake<F> {
    fn submit(&self, texts: Vec<Vec<u32>>, ticket: Ticket) {
        self.0(texts, ticket);
    }

    fn devices(&self) -> Vec<DeviceNow> {
        let device = |name, pid| DeviceNow { name, state: "in rotation".to_owned(), pid, done: Done::default() };
        vec![device(DeviceName::Cpu, None), device(SIM, Some(7))]
    }

    fn incidents(&self) -> Vec<Fault> {
        Vec::new()
    }
}

/// The right answer to these texts of [`axes`].
fn right(texts: &[Vec<u32>]) -> Outcome {
    let values = texts.iter().flat_map(|ids| axis_vectors(Span { first: ids[0] as usize, count: 1 }, TEXTS)).collect();
    Outcome::Vectors(Vectors {
        values,
        device: SIM,
        precision: Precision::Bf16,
        queued: Duration::from_micros(30),
        computed: Duration::from_micros(70),
        replays: 0,
        fallback: None,
    })
}

fn refused(code: &'static str) -> Outcome {
    Outcome::Refused { code, message: "made up".to_owned() }
}

/// Ends by the number of its requests: the time would end it after another number on each run.
fn load(sending: Sending) -> Load {
    Load {
        sending,
        texts: 2,
        warmup: Duration::ZERO,
        measured: HOUR,
        requests_max: REQUESTS,
        seed: 7,
        expected: vec!["full"],
        poison: None,
        lost_after: HOUR,
        stop: Arc::default(),
    }
}

/// Longer than any load of these tests: a test that waits for it hangs, which is seen.
const HOUR: Duration = Duration::from_secs(3600);
const REQUESTS: u64 = 200;
/// The requests that [`check_tenth`] treats differently.
const TENTHS: u64 = REQUESTS / 10;
const OPEN: Sending = Sending::Open { rate: 5000.0 };
/// More clients than requests are lost in any test: a client whose answer is lost never sends again.
const CLOSED: Sending = Sending::Closed { clients: TENTHS as usize + 1 };

fn run(load: &Load, pool: &Pool, answer: impl Fn(Vec<Vec<u32>>, Ticket) + Sync) -> Outcomes {
    drive(&Fake(answer), pool, load, |_, _: Receiver<()>| {})
}

/// Runs both loops with an engine that does something else with every tenth request.
fn check_tenth(what: impl Fn(&[Vec<u32>], Ticket) + Sync, expected: impl Fn(&Outcomes)) {
    for sending in [OPEN, CLOSED] {
        let outcomes = run(&load(sending), &axes(TEXTS), |texts, ticket| {
            if ticket.request.number % 10 == 3 {
                what(&texts, ticket);
            } else {
                ticket.answer(right(&texts));
            }
        });
        assert_eq!((outcomes.sent, outcomes.unsent), (REQUESTS, 0), "{sending:?}");
        expected(&outcomes);
    }
}

#[test]
fn an_engine_in_order_is_found_in_order() {
    for sending in [OPEN, CLOSED] {
        let outcomes = run(&load(sending), &axes(TEXTS), |texts, ticket| ticket.answer(right(&texts)));
        let counts = &outcomes.tally.counts;
        assert_eq!((outcomes.lost, counts.doubled, counts.wrong, counts.unexpected), (0, 0, 0, 0));
        assert_eq!((outcomes.sent, outcomes.unsent, counts.answered), (REQUESTS, 0, REQUESTS), "{sending:?}");
        assert_eq!(outcomes.tally.latency.count(), REQUESTS);
        assert_eq!(outcomes.tally.devices[0].1.texts, REQUESTS * 2);
        assert_eq!(report(&outcomes).fault(), None);
    }
}

#[test]
fn the_time_ends_a_load_too() {
    for sending in [OPEN, CLOSED] {
        let load = Load { requests_max: u64::MAX, measured: Duration::from_millis(20), ..load(sending) };
        let outcomes = run(&load, &axes(TEXTS), |texts, ticket| ticket.answer(right(&texts)));
        assert_eq!((outcomes.lost, outcomes.tally.counts.answered), (0, outcomes.sent), "{sending:?}");
    }
}

#[test]
fn a_load_that_is_stopped_sends_no_more_and_waits_for_what_it_sent() {
    for sending in [OPEN, CLOSED, Sending::Open { rate: 0.1 }] {
        let stop = Arc::new(AtomicBool::new(sending == Sending::Open { rate: 0.1 }));
        let load = Load { requests_max: u64::MAX, stop: Arc::clone(&stop), ..load(sending) };
        let outcomes = run(&load, &axes(TEXTS), |texts, ticket| {
            stop.store(ticket.request.number >= 50, Ordering::Relaxed);
            ticket.answer(right(&texts));
        });
        assert_eq!((outcomes.lost, outcomes.tally.counts.answered), (0, outcomes.sent), "{sending:?}");
        assert!(outcomes.sent <= 52, "{} with {sending:?}", outcomes.sent);
    }
}

#[test]
fn an_answer_from_another_thread_is_waited_for_after_the_end() {
    let (hold, held) = channel();
    let target = Fake(move |texts: Vec<Vec<u32>>, ticket: Ticket| hold.send((texts, ticket)).unwrap());
    let schedule = Mutex::new(Duration::ZERO);
    let told = &schedule;
    let outcomes = drive(&target, &axes(TEXTS), &load(OPEN), move |_, over: Receiver<()>| {
        // All answers come at once, when the last request was sent.
        let all: Vec<(Vec<Vec<u32>>, Ticket)> = held.iter().take(REQUESTS as usize).collect();
        assert_eq!(over.try_recv(), Err(TryRecvError::Empty));
        *told.lock().unwrap() = all[all.len() - 1].1.request.due - all[0].1.request.due;
        all.into_iter().for_each(|(texts, ticket)| ticket.answer(right(&texts)));
    });
    let waited = schedule.into_inner().unwrap();
    assert_eq!((outcomes.sent, outcomes.lost, outcomes.tally.counts.answered), (REQUESTS, 0, REQUESTS));
    assert!(waited > Duration::ZERO && outcomes.tally.latency.max() >= waited, "latency counts from the due moment");
}

#[test]
fn requests_that_are_never_answered_are_lost() {
    check_tenth(
        // The ticket is dropped without an answer.
        |_, _| {},
        |outcomes| {
            assert_eq!((outcomes.lost, outcomes.tally.counts.answered), (TENTHS, REQUESTS - TENTHS));
            assert!(report(outcomes).fault().unwrap().contains(&format!("{TENTHS} lost")));
        },
    );
}

#[test]
fn requests_whose_ticket_is_kept_for_ever_are_lost_and_do_not_hold_up_the_end() {
    let kept = Mutex::new(Vec::new());
    let load = Load { lost_after: Duration::from_millis(20), ..load(OPEN) };
    let outcomes = run(&load, &axes(TEXTS), |texts, ticket| {
        if ticket.request.number == 0 { kept.lock().unwrap().push(ticket) } else { ticket.answer(right(&texts)) }
    });
    assert_eq!((outcomes.sent, outcomes.lost, outcomes.tally.counts.answered), (REQUESTS, 1, REQUESTS - 1));
}

#[test]
fn a_second_answer_is_counted_and_makes_no_second_client() {
    check_tenth(
        |texts, ticket| {
            let again = ticket.clone();
            ticket.answer(right(texts));
            again.answer(right(texts));
        },
        |outcomes| {
            assert_eq!((outcomes.tally.counts.doubled, outcomes.lost), (TENTHS, 0));
            assert_eq!(outcomes.tally.counts.answered, REQUESTS);
            assert!(outcomes.tally.complaints[0].ends_with("was answered again"), "{:?}", outcomes.tally.complaints);
            assert!(outcomes.tally.complaints.len() <= 5);
        },
    );
}

#[test]
fn a_wrong_vector_is_counted_and_named() {
    check_tenth(
        |texts, ticket| {
            let others: Vec<Vec<u32>> = texts.iter().map(|ids| vec![(ids[0] + 1) % TEXTS as u32]).collect();
            ticket.answer(right(&others));
        },
        |outcomes| {
            assert_eq!((outcomes.tally.counts.wrong, outcomes.lost), (TENTHS, 0));
            let complaint = &outcomes.tally.complaints[0];
            assert!(complaint.contains("answered wrongly by sim:0"), "{complaint}");
            assert!(report(outcomes).fault().unwrap().contains("answered wrongly"));
        },
    );
}

#[test]
fn only_refusals_without_reason_are_a_fault() {
    check_tenth(
        |_, ticket| ticket.answer(refused("full")),
        |outcomes| {
            assert_eq!((outcomes.tally.counts.refused["full"], outcomes.tally.counts.unexpected), (TENTHS, 0));
            assert_eq!((outcomes.lost, report(outcomes).fault()), (0, None));
        },
    );
    check_tenth(
        |_, ticket| ticket.answer(refused("no_device")),
        |outcomes| {
            assert_eq!(outcomes.tally.counts.unexpected, TENTHS);
            assert!(report(outcomes).fault().unwrap().contains("refused without reason"));
        },
    );
}

#[test]
fn poison_is_sent_now_and_then_and_only_it_may_be_refused_for_it() {
    let every = Duration::from_millis(10);
    for sending in [OPEN, CLOSED, Sending::Open { rate: 50_000.0 }] {
        // Enough that the schedules take longer than the first poison does.
        let load = Load { poison: Some(Poison { token: 999, every }), requests_max: 2000, ..load(sending) };
        let (poisoned, dues) = (AtomicU64::new(0), Mutex::new(Vec::new()));
        let outcomes = run(&load, &axes(TEXTS), |texts, ticket| {
            let due = ticket.request.due;
            dues.lock().unwrap().push(due);
            // Clients have no schedule: their first answer comes when it is time for poison.
            while sending == CLOSED && ticket.request.number == 0 && due.elapsed() < every {
                std::thread::yield_now();
            }
            let is_poison = texts[0][0] == 999;
            assert_eq!(is_poison, ticket.request.is_poison);
            poisoned.fetch_add(u64::from(is_poison), Ordering::Relaxed);
            ticket.answer(if is_poison { refused("poison") } else { right(&texts) });
        });
        let poisoned = poisoned.into_inner();
        let time = dues.into_inner().unwrap().into_iter().max().expect("requests were sent") - outcomes.start;
        let most = (time.as_nanos() / every.as_nanos()) as u64;
        assert!((1..=most).contains(&poisoned), "{poisoned} of {most} with {sending:?}");
        assert_eq!((outcomes.sent, outcomes.tally.counts.refused["poison"]), (2000, poisoned));
        assert_eq!(report(&outcomes).fault(), None);
    }
    check_tenth(
        |_, ticket| ticket.answer(refused("poison")),
        |outcomes| assert_eq!(outcomes.tally.counts.unexpected, TENTHS),
    );
}

#[test]
fn clients_that_are_refused_come_back() {
    let turns = AtomicU64::new(0);
    let outcomes = run(&load(Sending::Closed { clients: 2 }), &axes(TEXTS), |texts, ticket| {
        // The first request of both clients.
        let outcome = if turns.fetch_add(1, Ordering::Relaxed) < 2 { refused("full") } else { right(&texts) };
        ticket.answer(outcome);
    });
    let counts = &outcomes.tally.counts;
    assert_eq!((outcomes.sent, counts.refused["full"], counts.answered), (REQUESTS, 2, REQUESTS - 2));
}

#[test]
fn what_warms_up_is_checked_and_not_measured() {
    let load = Load { warmup: HOUR, ..load(OPEN) };
    let outcomes = run(&load, &axes(TEXTS), |_, ticket| ticket.answer(right(&[vec![0], vec![0]])));
    let counts = &outcomes.tally.counts;
    assert_eq!((outcomes.tally.latency.count(), counts.in_time.requests), (0, 0));
    assert_eq!((counts.wrong, outcomes.lost), (REQUESTS, 0));
    assert_eq!(
        (outcomes.warmed_up, outcomes.sent, counts.answered),
        (REQUESTS, 0, 0),
        "totals are of what is measured"
    );
    assert!(
        report(&outcomes).fault().unwrap().contains(&format!("of {REQUESTS} requests, {REQUESTS} answered wrongly"))
    );
}

#[test]
fn the_same_seed_sends_the_same_texts() {
    let texts_of = |seed| {
        let sent = Mutex::new(Vec::new());
        let load = Load { seed, ..load(OPEN) };
        run(&load, &axes(TEXTS), |texts, ticket| {
            sent.lock().unwrap().push((ticket.request.number, texts.clone()));
            ticket.answer(right(&texts));
        });
        let mut sent = sent.into_inner().unwrap();
        assert_eq!(sent.len() as u64, REQUESTS);
        sent.sort();
        sent
    };
    assert_eq!(texts_of(1), texts_of(1));
    assert_ne!(texts_of(1), texts_of(2));
}

#[test]
fn workers_that_were_replaced_are_seen() {
    /// Looks at the devices so far; another worker, and another batch of four texts, at each.
    struct Restarting(Mutex<u32>, Condvar);
    impl Target for Restarting {
        fn submit(&self, texts: Vec<Vec<u32>>, ticket: Ticket) {
            // The load goes on until the devices were looked at three times.
            drop(self.1.wait_while(self.0.lock().unwrap(), |looks| *looks < 3).unwrap());
            ticket.answer(right(&texts));
        }

        fn devices(&self) -> Vec<DeviceNow> {
            let mut looks = self.0.lock().unwrap();
            let batches = u64::from(*looks);
            let done = Done { batches, texts: 4 * batches, busy: Duration::from_millis(batches) };
            let pid = Some(100 + *looks);
            *looks += 1;
            self.1.notify_all();
            vec![DeviceNow { name: SIM, state: "in rotation".to_owned(), pid, done }]
        }

        fn incidents(&self) -> Vec<Fault> {
            Vec::new()
        }
    }
    let target = Restarting(Mutex::new(0), Condvar::new());
    let report = measure(&target, &axes(TEXTS), &load(CLOSED), case(), Console::new(true));
    let pids: Vec<u32> = report.workers.iter().map(|worker| worker.pid).collect();
    assert_eq!(pids[..3], [100, 101, 102]);
    assert!(report.devices[0].busy > 0.0, "{report:?}");
    assert_eq!(report.batch_texts_mean, 4.0);
    assert_eq!(report.fault(), None);
}

fn case() -> Case {
    Case {
        model: "synthetic:tiny".to_owned(),
        rate: Some(5000.0),
        clients: None,
        batching: "adaptive".to_owned(),
        placement: "weighted".to_owned(),
        texts: 2,
        seed: 7,
        checked: true,
        seconds: 0.1,
    }
}

fn report(outcomes: &Outcomes) -> Report {
    Report::new(case(), outcomes, &Seen::default(), &[])
}

#[test]
fn an_incident_tells_how_long_it_took_and_the_longest_latency_after_it() {
    let load = Load { sending: Sending::Open { rate: 1000.0 }, ..load(OPEN) };
    let outcomes = run(&load, &axes(TEXTS), |texts, mut ticket| {
        if ticket.request.number == 0 {
            ticket.request.due -= Duration::from_secs(2);
        }
        ticket.answer(right(&texts));
    });
    let fault = |noticed, back| Fault { device: SIM, code: "killed", noticed, back };
    let start = outcomes.start;
    let faults = [
        fault(start, Some(start + Duration::from_millis(250))),
        fault(start + Duration::from_secs(5), None),
        fault(start - Duration::from_secs(1), Some(start)),
    ];
    let report = Report::new(case(), &outcomes, &Seen::default(), &faults);
    let [early, first, late] = report.incidents.as_slice() else { panic!("{:?}", report.incidents) };
    assert_eq!((first.at_s, first.back_after_s), (0.0, Some(0.25)));
    assert!(first.longest_ms.unwrap() >= 2000.0, "{first:?}");
    assert_eq!((late.back_after_s, late.longest_ms), (None, None));
    assert_eq!((early.at_s, early.back_after_s), (-1.0, Some(1.0)));
}

#[test]
fn two_faults_within_a_second_told_the_same_latency() {
    let mut outcomes = run(&load(OPEN), &axes(TEXTS), |texts, ticket| ticket.answer(right(&texts)));
    let at = Duration::from_millis;
    // One that was stuck with the first fault, one that the second one met, and one that met none.
    for (due, latency) in [(2_100, 1_000), (3_100, 400), (3_150, 20), (9_000, 700)] {
        outcomes.tally.timeline.record(at(due), at(latency));
    }
    let fault = |device, noticed| Fault { device, code: "overdue", noticed: outcomes.start + at(noticed), back: None };
    let faults = [fault(SIM, 3_000), fault(DeviceName::Simulated(1), 3_400)];
    let report = Report::new(case(), &outcomes, &Seen::default(), &faults);
    let told: Vec<_> =
        report.incidents.iter().map(|incident| (incident.device.as_str(), incident.longest_ms)).collect();
    assert_eq!(told, [("sim:0", Some(1_000.0)), ("sim:1", Some(400.0))]);
    let at_once = Report::new(case(), &outcomes, &Seen::default(), &[fault(SIM, 3_000), fault(SIM, 3_001)]);
    assert!(at_once.incidents.iter().all(|incident| incident.longest_ms == Some(1_000.0)), "{:?}", at_once.incidents);
}

#[test]
fn the_report_reads_well() {
    use super::report::{DeviceShare, Incident, Latency, Part, Worker};
    let part = Part { p50: 0.25, p99: 2.0, mean: 0.5 };
    let good = Report {
        case: case(),
        pid: 4711,
        warmed_up: 120,
        sent: 1000,
        unsent: 0,
        answered: 1000,
        refused: Default::default(),
        unexpected: 0,
        lost: 0,
        doubled: 0,
        wrong: 0,
        replays: 0,
        fallbacks: Default::default(),
        requests_per_s: 4999.5,
        texts_per_s: 9999.0,
        tokens_per_s: 1_279_872.0,
        latency_ms: Latency { mean: 0.75, p50: 0.5, p90: 1.0, p99: 2.5, p999: 12.0, max: 150.0 },
        queue_ms: part,
        compute_ms: part,
        batch_texts_mean: 3.25,
        late_p99_ms: 0.05,
        devices: vec![DeviceShare { device: "sim:0".to_owned(), requests: 1000, share: 1.0, busy: 0.5 }],
        workers: vec![Worker { device: "sim:0".to_owned(), pid: 4712, since_s: 0.0 }],
        incidents: Vec::new(),
        complaints: Vec::new(),
    };
    let incident = |at_s, back_after_s, longest_ms| Incident {
        device: "sim:0".to_owned(),
        kind: "killed",
        at_s,
        back_after_s,
        longest_ms,
    };
    let bad = Report {
        case: Case { rate: None, clients: Some(64), checked: false, batching: "32:5".to_owned(), ..case() },
        unsent: 3,
        answered: 990,
        refused: [("full", 5), ("poison", 1)].into(),
        unexpected: 1,
        lost: 4,
        fallbacks: [("lost", 2), ("unhealthy", 7)].into(),
        workers: vec![
            Worker { device: "sim:0".to_owned(), pid: 4712, since_s: 0.0 },
            Worker { device: "sim:1".to_owned(), pid: 4713, since_s: 0.0 },
            Worker { device: "sim:0".to_owned(), pid: 4720, since_s: 3.25 },
        ],
        incidents: vec![incident(3.0, Some(0.25), Some(260.0)), incident(9.5, None, None)],
        complaints: vec!["request 7 (due at 0.125 s) was refused (poison): made up".to_owned()],
        ..good.clone()
    };
    assert_eq!(
        (good.fault(), bad.fault().as_deref()),
        (None, Some("clients: 64, 32:5, weighted: of 1120 requests, 4 lost, 1 refused without reason"))
    );
    expect![[r#"
        synthetic:tiny, texts of a request: 2, 0.1 s a case, seed 7, pid 4711

        load         batching  placement  req/s   texts/s  tokens/s  p50 ms  p90    p99    p99.9  max    queue p50  queue mean  compute p50  batch  refused  late p99
        5000/s       adaptive  weighted   4999.5  9999.0   1279872   0.500   1.000  2.500  12.0   150.0  0.250      0.500       0.250        3.2    0        0.050
        clients: 64  32:5      weighted   4999.5  9999.0   1279872   0.500   1.000  2.500  12.0   150.0  0.250      0.500       0.250        3.2    6        0.050

        5000/s, adaptive, weighted:
          sent 1000, answered 1000, lost 0, answered twice 0, wrong 0, replays 0
          warmed up with 120 requests more, which were checked alone
          sim:0: 1000 requests, 100.0 % of the texts, computed 50.0 % of the time
          sim:0: restarts 0, pids: 4712 from 0.0 s

        clients: 64, 32:5, weighted:
          sent 1000, answered 990, lost 4, answered twice 0, not checked, replays 0
          warmed up with 120 requests more, which were checked alone
          unsent 3: this machine could not send them in time
          refused: full 5, poison 1 (without reason: 1)
          on the CPU in place of a GPU: lost 2, unhealthy 7
          sim:0: 1000 requests, 100.0 % of the texts, computed 50.0 % of the time
          sim:0: restarts 1, pids: 4712 from 0.0 s, 4720 from 3.2 s
          sim:1: restarts 0, pids: 4713 from 0.0 s
          sim:0: killed at 3.000 s, served again after 0.250 s, longest latency 260.0 ms
          sim:0: killed at 9.500 s, has not served again
          request 7 (due at 0.125 s) was refused (poison): made up
    "#]].assert_eq(&table(&[good.clone(), bad]));
    let json = serde_json::to_string(&good).unwrap();
    expect![[r#"{"model":"synthetic:tiny","rate":5000.0,"batching":"adaptive","placement":"weighted","texts":2,"seed":7,"checked":true,"seconds":0.1,"pid":4711,"warmed_up":120,"sent":1000,"unsent":0,"answered":1000,"refused":{},"unexpected":0,"lost":0,"doubled":0,"wrong":0,"replays":0,"fallbacks":{},"requests_per_s":4999.5,"texts_per_s":9999.0,"tokens_per_s":1279872.0,"latency_ms":{"mean":0.75,"p50":0.5,"p90":1.0,"p99":2.5,"p999":12.0,"max":150.0},"queue_ms":{"p50":0.25,"p99":2.0,"mean":0.5},"compute_ms":{"p50":0.25,"p99":2.0,"mean":0.5},"batch_texts_mean":3.25,"late_p99_ms":0.05,"devices":[{"device":"sim:0","requests":1000,"share":1.0,"busy":0.5}],"workers":[{"device":"sim:0","pid":4712,"since_s":0.0}],"incidents":[],"complaints":[]}"#]].assert_eq(&json);
}
