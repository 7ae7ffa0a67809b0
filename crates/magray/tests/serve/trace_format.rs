//! The format of Chrome's traces, as strictly as Perfetto's reader takes it: what that reader would count as an error, drop, or put on
//! a wrong track is refused here.
//! Knows nothing of what a profile should have in it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// How many events there are of each name and phase.
pub(crate) type Counts = BTreeMap<(String, String), usize>;

/// Times have three digits behind the point: a start and an end that were rounded differ by as much.
const ROUNDING_US: f64 = 0.002;

/// Checks a whole trace; the message names the first event that is wrong.
pub(crate) fn check(events: &[Value]) -> Result<Counts, String> {
    let mut seen = Seen::default();
    for event in events {
        seen.take(event).map_err(|reason| format!("{reason}: {event}"))?;
    }
    seen.finish()
}

#[derive(Default)]
struct Seen {
    counts: Counts,
    /// By category, id and name: when it began.
    open: BTreeMap<(String, String, String), f64>,
    /// By track: start and end of its slices.
    slices: BTreeMap<u64, Vec<(f64, f64)>>,
    used: BTreeSet<u64>,
    named: BTreeSet<u64>,
    processes: BTreeSet<u64>,
}

impl Seen {
    fn take(&mut self, event: &Value) -> Result<(), String> {
        let (name, phase) = (text(event, "name")?, text(event, "ph")?);
        let pid = whole(event, "pid")?;
        match phase.as_str() {
            "M" => self.name(event, &name, pid)?,
            "X" => {
                let (track, start, lasts) = (whole(event, "tid")?, time(event, "ts")?, time(event, "dur")?);
                text(event, "cat")?;
                self.used.insert(track);
                self.slices.entry(track).or_default().push((start, start + lasts));
            }
            // Readers tell these apart by category, id and name together.
            "b" | "e" => {
                let key = (text(event, "cat")?, text(event, "id")?, name.clone());
                let ts = time(event, "ts")?;
                self.used.insert(whole(event, "tid")?);
                match (phase.as_str(), self.open.remove(&key)) {
                    ("b", None) => drop(self.open.insert(key, ts)),
                    ("b", Some(_)) => return Err("it has begun already".to_owned()),
                    (_, None) => return Err("it has not begun".to_owned()),
                    (_, Some(start)) if start > ts => return Err("it ends before it begins".to_owned()),
                    _ => {}
                }
            }
            "C" => {
                time(event, "ts")?;
                let values = event["args"].as_object().filter(|values| !values.is_empty());
                let values = values.ok_or("a counter has its values in args")?;
                if !values.values().all(|value| value.as_f64().is_some_and(f64::is_finite)) {
                    return Err("a value of a counter is a number".to_owned());
                }
            }
            "i" => {
                time(event, "ts")?;
                match text(event, "s")?.as_str() {
                    "t" => drop(self.used.insert(whole(event, "tid")?)),
                    "p" | "g" => {}
                    _ => return Err("the scope of an instant is t, p or g".to_owned()),
                }
            }
            _ => return Err("no such phase is written".to_owned()),
        }
        if !event.get("args").is_none_or(Value::is_object) {
            return Err("args is an object".to_owned());
        }
        *self.counts.entry((name, phase)).or_default() += 1;
        Ok(())
    }

    /// Names of the process and of tracks.
    fn name(&mut self, event: &Value, kind: &str, pid: u64) -> Result<(), String> {
        text(&event["args"], "name")?;
        let is_first = match kind {
            "process_name" => self.processes.insert(pid),
            "thread_name" => self.named.insert(whole(event, "tid")?),
            _ => return Err("only processes and tracks have names".to_owned()),
        };
        if is_first { Ok(()) } else { Err("it has a name already".to_owned()) }
    }

    fn finish(mut self) -> Result<Counts, String> {
        if let Some(open) = self.open.keys().next() {
            return Err(format!("{open:?} does not end"));
        }
        for (track, slices) in &mut self.slices {
            slices.sort_by(|a, b| a.0.total_cmp(&b.0));
            for pair in slices.windows(2) {
                if pair[0].1 > pair[1].0 + ROUNDING_US {
                    return Err(format!("slices of track {track} overlap: {pair:?}"));
                }
            }
        }
        match self.used.difference(&self.named).next() {
            Some(track) => Err(format!("track {track} has no name")),
            None => Ok(self.counts),
        }
    }
}

/// A text that is not empty and has no control characters, which the reader takes for the end of the file.
fn text(event: &Value, key: &str) -> Result<String, String> {
    let found = event[key].as_str().filter(|text| !text.is_empty() && !text.contains(char::is_control));
    found.map(str::to_owned).ok_or_else(|| format!("{key} is a text"))
}

fn whole(event: &Value, key: &str) -> Result<u64, String> {
    let found = event[key].as_u64().filter(|number| u32::try_from(*number).is_ok());
    found.ok_or_else(|| format!("{key} is a whole number of 32 bits"))
}

fn time(event: &Value, key: &str) -> Result<f64, String> {
    let found = event[key].as_f64().filter(|time| time.is_finite() && *time >= 0.0);
    found.ok_or_else(|| format!("{key} is a time in microseconds"))
}

#[test]
fn what_readers_of_traces_drop_is_refused() {
    use serde_json::json;

    let track = json!({"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "cpu"}});
    let slice = |ts: f64| json!({"name": "a", "cat": "c", "ph": "X", "pid": 1, "tid": 1, "ts": ts, "dur": 2.0});
    let edge =
        |phase: &str, ts: f64| json!({"name": "a", "cat": "c", "id": "1", "ph": phase, "pid": 1, "tid": 1, "ts": ts});
    let with = |mut event: Value, key: &str, value: Value| {
        event[key] = value;
        event
    };
    let counter = json!({"name": "a", "ph": "C", "pid": 1, "ts": 1.0, "args": {"used": 1}});
    let instant = json!({"name": "a", "ph": "i", "s": "t", "pid": 1, "tid": 1, "ts": 1.0});
    let whole = [slice(1.0), slice(3.0), edge("b", 1.0), edge("e", 1.0), counter.clone(), instant.clone()];
    let all = |events: &[Value]| check(&[std::slice::from_ref(&track), events].concat());
    assert_eq!(all(&whole).unwrap().values().sum::<usize>(), 7);
    let broken: [(&[Value], &str); 14] = [
        (&[slice(1.0), slice(2.0)], "overlap"),
        (&[with(slice(1.0), "dur", Value::Null)], "dur is a time"),
        (&[with(slice(1.0), "ts", json!("1"))], "ts is a time"),
        (&[with(slice(1.0), "ts", json!(-1.0))], "ts is a time"),
        (&[with(slice(1.0), "tid", json!(2))], "track 2 has no name"),
        (&[with(slice(1.0), "pid", Value::Null)], "pid is a whole number"),
        (&[with(slice(1.0), "name", json!("a\nb"))], "name is a text"),
        (&[edge("b", 1.0)], "does not end"),
        (&[edge("e", 1.0)], "it has not begun"),
        (&[edge("b", 2.0), edge("e", 1.0)], "ends before it begins"),
        (&[with(edge("b", 1.0), "id", json!(""))], "id is a text"),
        (&[with(counter, "args", json!({"used": null}))], "a value of a counter"),
        (&[with(instant, "s", json!("x"))], "the scope"),
        (std::slice::from_ref(&track), "it has a name already"),
    ];
    for (events, reason) in broken {
        let refused = all(events).unwrap_err();
        assert!(refused.contains(reason), "{refused}");
    }
}
