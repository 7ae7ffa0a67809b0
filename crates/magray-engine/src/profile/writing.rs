//! Writes entries as events of the Chrome trace format, an array of JSON, which Perfetto reads.
//! Lets no two slices of a track overlap, which readers would drop.

use super::{Entry, Place};
use serde_json::Value;
use std::collections::{HashMap, hash_map};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::time::Duration;

/// Bytes of whole events that are handed to the system at once.
const PIECE_BYTES: usize = 64 << 10;
/// The track of what belongs to no device.
const SERVER_TRACK: u64 = 1;

/// A trace that is being written.
pub(super) struct TraceFile {
    file: File,
    piece: String,
    bytes: u64,
    bytes_max: u64,
    pid: u32,
    models: Vec<String>,
    /// By track: when its last slice ended, in microseconds.
    ends: HashMap<u64, f64>,
    /// Numbers those requests of HTTP that have none of their own.
    http: u64,
}

/// What a slice or a request is called, and what is said of it in JSON. Both are written as they are.
struct Told<'a> {
    name: &'a str,
    args: &'a str,
}

impl TraceFile {
    pub(super) fn begin(file: File, bytes_max: u64) -> io::Result<Self> {
        let (ends, models) = (HashMap::new(), Vec::new());
        let pid = std::process::id();
        let mut begun = Self { file, piece: String::new(), bytes: 0, bytes_max, pid, models, ends, http: 0 };
        let name = format!("magray {}", env!("CARGO_PKG_VERSION"));
        begun.piece.push_str("[\n");
        begun.piece.push_str(&format!(r#"{{"name":"process_name","ph":"M","pid":{pid},"args":{{"name":"{name}"}}}}"#));
        begun.name_track(SERVER_TRACK, "requests");
        begun.flush()?;
        Ok(begun)
    }

    /// Adds what happened; `false`: the file is full.
    pub(super) fn add(&mut self, at: Duration, entry: &Entry) -> io::Result<bool> {
        if self.bytes + self.piece.len() as u64 > self.bytes_max {
            return Ok(false);
        }
        self.write(micros(at), entry);
        if self.piece.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(true)
    }

    pub(super) fn end(mut self, at: Duration, lost: u64) -> io::Result<()> {
        let args = format!(r#"{{"lost":{lost}}}"#);
        self.instant(SERVER_TRACK, micros(at), Told { name: "end of the profile", args: &args });
        self.piece.push_str("\n]\n");
        self.flush()
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(self.piece.as_bytes())?;
        self.bytes += self.piece.len() as u64;
        self.piece.clear();
        Ok(())
    }

    fn write(&mut self, now: f64, entry: &Entry) {
        match entry {
            Entry::Model { number, name } => {
                self.models.resize(self.models.len().max(number + 1), String::new());
                self.models[*number] = escaped(name);
            }
            Entry::Http { route, status, took, read } => {
                self.http += 1;
                let (id, start) = (format!("h{}", self.http), now - micros(*took));
                let args = format!(r#"{{"status":{status},"read_ms":{:.3}}}"#, micros(*read) / 1e3);
                self.span(("http", &id), (start, now), Told { name: &escaped(route), args: &args });
            }
            Entry::Request { id, model, texts, tokens, queued, computed, replays, fallback } => {
                let (id, model) = (format!("r{id}"), self.model(*model));
                let computing = now - micros(*computed);
                let start = computing - micros(*queued);
                let fallback = fallback.map_or_else(|| "null".to_owned(), |reason| format!(r#""{reason}""#));
                let args = format!(
                    r#"{{"model":"{model}","texts":{texts},"tokens":{tokens},"queue_ms":{:.3},"compute_ms":{:.3},"replays":{replays},"fallback":{fallback}}}"#,
                    micros(*queued) / 1e3,
                    micros(*computed) / 1e3,
                );
                self.edge(("request", &id), ('b', start), Told { name: "request", args: &args });
                self.span(("request", &id), (computing, now), Told { name: "compute", args: "{}" });
                self.edge(("request", &id), ('e', now), Told { name: "request", args: "{}" });
            }
            Entry::Refused { reason } => {
                let args = format!(r#"{{"reason":"{reason}"}}"#);
                self.instant(SERVER_TRACK, now, Told { name: "refused", args: &args });
            }
            Entry::Batch { at, model, requests, texts, tokens, took } => {
                let model = self.model(*model);
                let args = format!(r#"{{"model":"{model}","requests":{requests},"texts":{texts},"tokens":{tokens}}}"#);
                self.slice((at, Kind::Computes), (now, *took), Told { name: "batch", args: &args });
            }
            Entry::Step { at, model, sequences, tokens, new_tokens, took } => {
                let model = self.model(*model);
                let args = format!(
                    r#"{{"model":"{model}","sequences":{sequences},"tokens":{tokens},"new_tokens":{new_tokens}}}"#
                );
                self.slice((at, Kind::Computes), (now, *took), Told { name: "step", args: &args });
            }
            Entry::Load { at, model, bytes, took, from_host } => {
                let model = self.model(*model);
                let args = format!(r#"{{"model":"{model}","bytes":{bytes},"from_host":{from_host}}}"#);
                let name = if *from_host { "copy in" } else { "load" };
                self.slice((at, Kind::Moves), (now, *took), Told { name, args: &args });
            }
            Entry::Offload { at, model, took } => {
                let args = format!(r#"{{"model":"{}"}}"#, self.model(*model));
                self.slice((at, Kind::Moves), (now, *took), Told { name: "offload", args: &args });
            }
            Entry::Image { model, is_there } => {
                let name = if *is_there { "image in host memory" } else { "image released" };
                let args = format!(r#"{{"model":"{}"}}"#, self.model(*model));
                self.instant(SERVER_TRACK, now, Told { name, args: &args });
            }
            Entry::Note { at, what } => {
                let track = self.track(at, Kind::Computes);
                self.instant(track, now, Told { name: what, args: "{}" });
            }
            Entry::Memory { at, used, held } => {
                let (name, pid) = (at.name, self.pid);
                self.put(format_args!(
                    r#"{{"name":"memory of {name}","ph":"C","pid":{pid},"ts":{now:.3},"args":{{"used":{used},"held":{held}}}}}"#
                ));
            }
        }
    }

    /// A slice of a device's track, which begins no sooner than the one before it ended.
    fn slice(&mut self, (at, kind): (&Place, Kind), (now, took): (f64, Duration), told: Told<'_>) {
        let (track, pid) = (self.track(at, kind), self.pid);
        let last = self.ends.get(&track).copied().unwrap_or(0.0);
        let start = (now - micros(took)).max(last).min(now);
        self.ends.insert(track, now);
        let (Told { name, args }, category, lasts) = (told, kind.category(), now - start);
        self.put(format_args!(
            r#"{{"name":"{name}","cat":"{category}","ph":"X","pid":{pid},"tid":{track},"ts":{start:.3},"dur":{lasts:.3},"args":{args}}}"#
        ));
    }

    /// A part of something that overlaps others of its kind; parts of one thing have its id.
    fn span(&mut self, of: (&str, &str), (start, end): (f64, f64), told: Told<'_>) {
        let name = told.name;
        self.edge(of, ('b', start), Told { name, args: told.args });
        self.edge(of, ('e', end), Told { name, args: "{}" });
    }

    fn edge(&mut self, (category, id): (&str, &str), (phase, ts): (char, f64), told: Told<'_>) {
        let (Told { name, args }, pid, ts) = (told, self.pid, ts.max(0.0));
        self.put(format_args!(
            r#"{{"name":"{name}","cat":"{category}","ph":"{phase}","id":"{id}","pid":{pid},"tid":{SERVER_TRACK},"ts":{ts:.3},"args":{args}}}"#
        ));
    }

    fn instant(&mut self, track: u64, ts: f64, told: Told<'_>) {
        let (Told { name, args }, pid) = (told, self.pid);
        self.put(format_args!(
            r#"{{"name":"{name}","cat":"event","ph":"i","s":"t","pid":{pid},"tid":{track},"ts":{ts:.3},"args":{args}}}"#
        ));
    }

    /// The number of a device's track, which gets its name with its first event.
    fn track(&mut self, at: &Place, kind: Kind) -> u64 {
        let track = 10 + 2 * at.device as u64 + u64::from(kind == Kind::Moves);
        if let hash_map::Entry::Vacant(end) = self.ends.entry(track) {
            end.insert(0.0);
            let name = if kind == Kind::Moves { format!("{} moves", at.name) } else { at.name.to_string() };
            self.name_track(track, &name);
        }
        track
    }

    fn name_track(&mut self, track: u64, name: &str) {
        let pid = self.pid;
        self.put(format_args!(
            r#"{{"name":"thread_name","ph":"M","pid":{pid},"tid":{track},"args":{{"name":"{name}"}}}}"#
        ));
    }

    /// A model's name as it stands in JSON.
    fn model(&self, number: usize) -> String {
        let known = self.models.get(number).filter(|name| !name.is_empty());
        known.cloned().unwrap_or_else(|| format!("model {number}"))
    }

    fn put(&mut self, event: std::fmt::Arguments<'_>) {
        self.piece.push_str(",\n");
        // Writing to a string cannot fail.
        let _ = self.piece.write_fmt(event);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Computes,
    Moves,
}

impl Kind {
    fn category(self) -> &'static str {
        match self {
            Self::Computes => "compute",
            Self::Moves => "move",
        }
    }
}

/// A text as it stands between the quotes of JSON.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Nanoseconds are as fine as readers go.
fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}
