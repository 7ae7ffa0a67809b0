//! `magray gpu profile`: what took how long, by a file that `--profile` wrote.
//! Reads one that a killed program left, too; judges nothing.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    fs,
    path::PathBuf,
};

use clap::Args;
use serde::{Deserialize, Serialize, de::IgnoredAny};

use super::super::Context;
use crate::{exit::Failure, input::InputError, output};

const EXAMPLES: &str = "\
Examples:
  magray serve --profile trace.json
  magray embed -f texts.txt --output vectors.npy --profile trace.json
  magray gpu profile trace.json             a table: what happened how often and how long it took
  magray gpu profile trace.json --json

The file is a Chrome trace: ui.perfetto.dev and chrome://tracing show it over time.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GpuProfileArgs {
    /// The file
    file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A larger file would take several times its size of memory.
const FILE_BYTES_MAX: u64 = 1 << 30;

#[derive(Debug, Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    ph: Cow<'a, str>,
    #[serde(borrow, default)]
    cat: Cow<'a, str>,
    #[serde(borrow, default)]
    id: Cow<'a, str>,
    /// Microseconds.
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    tid: u64,
    #[serde(borrow, default)]
    args: Told<'a>,
}

#[derive(Debug, Default, Deserialize)]
struct Told<'a> {
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(default)]
    lost: Option<u64>,
    #[serde(default)]
    queue_ms: Option<f64>,
}

/// What a profile says in short.
#[derive(Debug, PartialEq, Serialize)]
struct Summary {
    /// From the first thing that happened to the last.
    duration_s: f64,
    /// Requests that the engine answered.
    requests: usize,
    /// Entries that were left out for want of room; null where the program was killed before it could say.
    lost: Option<u64>,
    rows: Vec<Row>,
}

/// All of one kind.
#[derive(Debug, PartialEq, Serialize)]
struct Row {
    /// Where it happened: a device, what a device moves, requests of the engine or of HTTP.
    at: String,
    what: String,
    count: usize,
    /// Of what takes no time, all times are null.
    total_s: Option<f64>,
    mean_ms: Option<f64>,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    max_ms: Option<f64>,
    /// The part of the whole time, where only one happens at once.
    share: Option<f64>,
}

pub(crate) fn run(args: &GpuProfileArgs, _: &Context) -> Result<(), Failure> {
    let unreadable = |reason: String| InputError::Profile { path: args.file.clone(), reason };
    let size = fs::metadata(&args.file).map_err(|error| unreadable(error.to_string()))?.len();
    if size > FILE_BYTES_MAX {
        return Err(unreadable(format!("it is larger than {} MiB", FILE_BYTES_MAX >> 20)).into());
    }
    let text = fs::read_to_string(&args.file).map_err(|error| unreadable(error.to_string()))?;
    let whole = completed(&text);
    let events: Vec<Event<'_>> =
        serde_json::from_str(&whole).map_err(|error| unreadable(format!("it is no array of trace events: {error}")))?;
    let summary = Summary::of(&events);
    let text = if args.json { serde_json::to_string(&summary).unwrap_or_default() + "\n" } else { summary.table() };
    Ok(output::print(&text)?)
}

/// The text with its last bracket. A program that was killed has not written it, and half of an event may stand before.
fn completed(text: &str) -> Cow<'_, str> {
    let trimmed = text.trim_end();
    if trimmed.ends_with(']') {
        return Cow::Borrowed(trimmed);
    }
    let is_whole = |line: &str| serde_json::from_str::<IgnoredAny>(line.trim_end().trim_end_matches(',')).is_ok();
    let kept = if trimmed.lines().next_back().is_some_and(is_whole) {
        trimmed
    } else {
        trimmed.rfind('\n').map_or(trimmed, |end| &trimmed[..end])
    };
    Cow::Owned(format!("{}]", kept.trim_end().trim_end_matches(',')))
}

/// Times of one kind, in microseconds.
#[derive(Default)]
struct Times {
    all: Vec<f64>,
    instants: usize,
    is_alone: bool,
}

impl Summary {
    fn of(events: &[Event<'_>]) -> Self {
        let mut tracks: HashMap<u64, &str> = HashMap::new();
        let mut begun: HashMap<(&str, &str, &str), f64> = HashMap::new();
        let mut kinds: BTreeMap<(String, String), Times> = BTreeMap::new();
        let (mut first, mut last) = (f64::INFINITY, 0.0_f64);
        let (mut requests, mut lost) = (0, None);
        for event in events {
            let name = event.name.as_ref();
            match event.ph.as_ref() {
                "M" => {
                    if let (true, Some(track)) = (name == "thread_name", event.args.name.as_deref()) {
                        tracks.insert(event.tid, track);
                    }
                    continue;
                }
                "X" => {
                    let at = tracks.get(&event.tid).map_or_else(|| event.tid.to_string(), |track| (*track).to_owned());
                    let kind = kinds.entry((at, name.to_owned())).or_default();
                    kind.all.push(event.dur);
                    kind.is_alone = true;
                }
                "b" => {
                    begun.insert((event.cat.as_ref(), event.id.as_ref(), name), event.ts);
                    if let Some(queued) = event.args.queue_ms {
                        requests += 1;
                        let kind = kinds.entry((event.cat.to_string(), "queue".to_owned())).or_default();
                        kind.all.push(queued * 1e3);
                    }
                }
                "e" => {
                    if let Some(start) = begun.remove(&(event.cat.as_ref(), event.id.as_ref(), name)) {
                        kinds.entry((event.cat.to_string(), name.to_owned())).or_default().all.push(event.ts - start);
                    }
                }
                "i" => {
                    lost = event.args.lost.or(lost);
                    let at = tracks.get(&event.tid).map_or("", |track| *track).to_owned();
                    kinds.entry((at, name.to_owned())).or_default().instants += 1;
                }
                _ => {}
            }
            (first, last) = (first.min(event.ts), last.max(event.ts + event.dur));
        }
        let duration = (last - first).max(0.0);
        let rows = kinds.into_iter().map(|((at, what), times)| Row::of(at, what, times, duration)).collect();
        Self { duration_s: duration / 1e6, requests, lost, rows }
    }

    fn table(&self) -> String {
        let lost = match self.lost {
            Some(0) => "nothing was lost".to_owned(),
            Some(lost) => format!("{lost} entries were lost for want of room"),
            None => "it was not finished: its program was killed, or still runs".to_owned(),
        };
        let mut text = format!("{:.1} s, {} requests; {lost}\n\n", self.duration_s, self.requests);
        let head = ["at", "what", "count", "total", "mean", "p50", "p99", "max", "share"].map(str::to_owned);
        let rows: Vec<[String; 9]> = std::iter::once(head).chain(self.rows.iter().map(Row::cells)).collect();
        let widths: Vec<usize> =
            (0..9).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
        for row in rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                // Names to the left, figures to the right.
                let _ = match column {
                    0 | 1 => write!(line, "{cell:<width$}  "),
                    _ => write!(line, "{cell:>width$}  "),
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

impl Row {
    fn of(at: String, what: String, mut times: Times, duration: f64) -> Self {
        times.all.sort_unstable_by(f64::total_cmp);
        let (all, total) = (&times.all, times.all.iter().sum::<f64>());
        let has_times = !all.is_empty();
        let ms = |micros: f64| has_times.then_some(micros / 1e3);
        let at_share = |share: f64| all.get((share * all.len().saturating_sub(1) as f64) as usize).copied();
        Self {
            at,
            what,
            count: all.len() + times.instants,
            total_s: has_times.then_some(total / 1e6),
            mean_ms: ms(total / all.len().max(1) as f64),
            p50_ms: at_share(0.5).and_then(ms),
            p99_ms: at_share(0.99).and_then(ms),
            max_ms: all.last().copied().and_then(ms),
            share: (times.is_alone && duration > 0.0).then_some(total / duration),
        }
    }

    fn cells(&self) -> [String; 9] {
        let ms = |time: Option<f64>| time.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2} ms"));
        [
            self.at.clone(),
            self.what.clone(),
            self.count.to_string(),
            self.total_s.map_or_else(|| "-".to_owned(), |total| format!("{total:.2} s")),
            ms(self.mean_ms),
            ms(self.p50_ms),
            ms(self.p99_ms),
            ms(self.max_ms),
            self.share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    const TRACE: &str = r#"[
{"name":"thread_name","ph":"M","pid":1,"tid":1,"args":{"name":"requests"}},
{"name":"thread_name","ph":"M","pid":1,"tid":10,"args":{"name":"cpu"}},
{"name":"request","cat":"request","ph":"b","id":"r1","pid":1,"tid":1,"ts":0,"args":{"model":"a","queue_ms":1.0}},
{"name":"compute","cat":"request","ph":"b","id":"r1","pid":1,"tid":1,"ts":1000,"args":{}},
{"name":"batch","cat":"compute","ph":"X","pid":1,"tid":10,"ts":1000,"dur":3000,"args":{"texts":2}},
{"name":"compute","cat":"request","ph":"e","id":"r1","pid":1,"tid":1,"ts":4000,"args":{}},
{"name":"request","cat":"request","ph":"e","id":"r1","pid":1,"tid":1,"ts":4000,"args":{}},
{"name":"memory of cuda:0","ph":"C","pid":1,"ts":4500,"args":{"used":1,"held":2}},
{"name":"end of the profile","cat":"event","ph":"i","s":"t","pid":1,"tid":1,"ts":6000,"args":{"lost":0}}
]
"#;

    fn summary(text: &str) -> Summary {
        Summary::of(&serde_json::from_str::<Vec<Event<'_>>>(&completed(text)).unwrap())
    }

    #[test]
    fn the_table_says_what_took_how_long() {
        expect![[r#"
            0.0 s, 1 requests; nothing was lost

            at        what                count   total     mean      p50      p99      max   share
            cpu       batch                   1  0.00 s  3.00 ms  3.00 ms  3.00 ms  3.00 ms  50.0 %
            request   compute                 1  0.00 s  3.00 ms  3.00 ms  3.00 ms  3.00 ms       -
            request   queue                   1  0.00 s  1.00 ms  1.00 ms  1.00 ms  1.00 ms       -
            request   request                 1  0.00 s  4.00 ms  4.00 ms  4.00 ms  4.00 ms       -
            requests  end of the profile      1       -        -        -        -        -       -
        "#]]
        .assert_eq(&summary(TRACE).table());
    }

    #[test]
    fn a_file_that_ends_anywhere_is_read_to_its_last_whole_event() {
        let whole = summary(TRACE);
        let first_event = TRACE.find("},").unwrap() + 2;
        for end in first_event..TRACE.trim_end().len() {
            let part = summary(&TRACE[..end]);
            assert!(part.rows.len() <= whole.rows.len(), "{end}");
        }
        let unfinished = summary(&TRACE[..TRACE.find(",\n{\"name\":\"end").unwrap()]);
        assert_eq!((unfinished.requests, unfinished.lost), (1, None));
    }
}
