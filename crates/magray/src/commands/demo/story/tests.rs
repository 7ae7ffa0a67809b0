//! Faults and what became of their requests, of made-up engines.

use super::*;

const SIM: DeviceName = DeviceName::Simulated(0);
const OTHER: DeviceName = DeviceName::Simulated(1);

fn at(ms: u64) -> Moment {
    Moment::START + Duration::from_millis(ms)
}

fn seen(device: DeviceName, code: &'static str, noticed: u64, back: Option<u64>) -> Seen {
    Seen { device, code, noticed: at(noticed), served_again: back.map(at) }
}

/// What is told when a story looks at these faults at this time.
fn told(story: &mut Story, now: u64, faults: &[Seen], replayed: &[(u64, DeviceName, u64)]) -> Vec<String> {
    let origin = Instant::now();
    let answer = |(at, device, latency): &(u64, DeviceName, u64)| Replayed {
        at: origin + Duration::from_millis(*at),
        device: *device,
        latency: Duration::from_millis(*latency),
    };
    let replayed: Vec<Replayed> = replayed.iter().map(answer).collect();
    let look = Look {
        now: at(now),
        at_s: now as f64 / 1e3,
        origin,
        faults,
        replayed: &replayed,
        refused: u64::from(now > 8_000),
    };
    story.look(&look).iter().map(Event::text).collect()
}

#[test]
fn a_fault_is_told_at_once_and_what_became_of_its_requests_when_the_device_is_back() {
    let mut story = Story::default();
    let killed = |back| [seen(SIM, "killed", 1_000, back)];
    assert_eq!(told(&mut story, 1_050, &killed(None), &[]), ["    1.1 s  sim:0: its worker was killed"]);
    assert!(told(&mut story, 1_200, &killed(None), &[]).is_empty());
    let replayed = [(900, OTHER, 700), (1_020, OTHER, 31), (1_030, DeviceName::Cpu, 44), (1_040, OTHER, 20)];
    assert!(told(&mut story, 1_600, &killed(Some(1_310)), &replayed).is_empty(), "answers may still come");
    assert_eq!(
        told(&mut story, 1_800, &killed(Some(1_310)), &replayed),
        [
            "    1.8 s  sim:0: 3 requests computed again (cpu 1, sim:1 2), the slowest answered after 44.0 ms; it serves again after \
          0.31 s"
        ]
    );
    assert!(told(&mut story, 2_000, &killed(Some(1_310)), &replayed).is_empty());
    assert_eq!(story.faults, BTreeMap::from([("killed", 1)]));
}

#[test]
fn a_device_that_stays_away_is_told_of_and_answers_belong_to_the_last_fault_before_them() {
    let mut story = Story::default();
    let faults = [seen(SIM, "overdue", 3_000, None), seen(OTHER, "out_of_memory", 3_500, Some(3_520))];
    assert_eq!(told(&mut story, 3_600, &faults, &[]).len(), 2);
    let replayed = [(3_100, OTHER, 1_100), (3_510, DeviceName::Cpu, 12)];
    let text = told(&mut story, 4_000, &faults, &replayed);
    assert_eq!(
        text,
        [
            "    4.0 s  sim:1: 1 request computed again (cpu 1), the slowest answered after 12.0 ms; it serves again after 0.02 s"
        ]
    );
    let text = told(&mut story, 8_100, &faults, &replayed);
    assert_eq!(
        text,
        [
            "    8.1 s  sim:0: 1 request computed again (sim:1 1), the slowest answered after 1100.0 ms, 1 refused; it is not back yet"
        ]
    );
}

#[test]
fn a_summary_fails_for_what_must_not_be() {
    let good = Summary {
        seconds: 60.2,
        sent: 1200,
        answered: 1200,
        lost: 0,
        refused: 0,
        wrong: 0,
        answered_twice: 0,
        computed_again: 9,
        faults: BTreeMap::from([("killed", 2), ("overdue", 1)]),
        p50_ms: 4.25,
        p99_ms: 61.0,
        max_ms: 1100.0,
        devices: BTreeMap::from([("cpu".to_owned(), 20), ("sim:0".to_owned(), 1180)]),
        complaints: Vec::new(),
    };
    assert_eq!(good.fault(), None);
    expect_test::expect![[r#"

        sent 1200, answered 1200, lost 0, refused 0, wrong 0, in 60.2 s
        computed again after a failure: 9
        faults: killed 2, overdue 1
        answered by: cpu 20, sim:0 1180
        latency: p50 4.250 ms, p99 61.0 ms, longest 1100.0 ms
    "#]]
    .assert_eq(&good.text());
    let bad = Summary { lost: 1, wrong: 2, complaints: vec!["request 7 was not right".to_owned()], ..good };
    assert_eq!(bad.fault().unwrap(), "of 1200 requests, 1 lost, 2 answered wrongly: request 7 was not right");
    assert_eq!(serde_json::to_value(Event::Summary(Box::new(bad))).unwrap()["event"], "summary");
}
