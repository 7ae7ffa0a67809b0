//! A hub on this machine that serves one tiny model and misbehaves as told.
//! Never reached from elsewhere; ends with its owner.

use super::fake_model;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

pub(super) const REPO: &str = "tiny/model";
pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What the hub does with a request for one path.
#[derive(Clone, Debug)]
pub(super) enum Act {
    /// A status without content, with further header lines.
    Status(u16, &'static str),
    /// Announces everything, sends this many bytes, hangs up.
    Cut(usize),
    /// Sends the whole file although a part was asked for.
    IgnoreRange,
    /// Sends something else.
    Content(Vec<u8>),
    /// Sends this many bytes, announces no length, and hangs up.
    Unsized(usize),
    /// Announces this many bytes and sends none.
    Announced(u64),
    /// Sends the reader to another path.
    Redirect(String),
}

/// A request as the hub saw it: the path, and its header lines in small letters.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) path: String,
    pub(super) headers: HashMap<String, String>,
}

#[derive(Default)]
struct State {
    seen: Vec<Seen>,
    /// Acts for a path, used up from the front; afterwards the hub behaves.
    acts: HashMap<String, Vec<Act>>,
    /// Behaviour for a path that stays.
    always: HashMap<String, Act>,
}

pub(super) struct FakeHub {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
}

impl FakeHub {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                // A client that hangs up is part of the game.
                if serve(stream.unwrap(), &shared).unwrap_or(false) {
                    return;
                }
            }
        });
        Self { address, state, thread: Some(thread) }
    }

    pub(super) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Makes the next requests for a path go wrong.
    pub(super) fn next(&self, path: &str, acts: &[Act]) {
        self.state.lock().unwrap().acts.insert(path.to_owned(), acts.to_vec());
    }

    /// Makes all requests for a path end like this.
    pub(super) fn always(&self, path: &str, act: Act) {
        self.state.lock().unwrap().always.insert(path.to_owned(), act);
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.state.lock().unwrap().seen.clone()
    }

    pub(super) fn requests_of(&self, path: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.path == path).collect()
    }
}

impl Drop for FakeHub {
    fn drop(&mut self) {
        if let Ok(mut stream) = TcpStream::connect(self.address) {
            let _ = stream.write_all(b"GET /stop HTTP/1.1\r\n\r\n");
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The path of the listing at a revision.
pub(super) fn listing_path(revision: &str) -> String {
    format!("/api/models/{REPO}/revision/{revision}?blobs=true")
}

/// The path of a file.
pub(super) fn file_path(name: &str) -> String {
    format!("/{REPO}/resolve/{COMMIT}/{name}")
}

/// The hub's list of files; `change` may tell lies about one.
pub(super) fn listing(change: impl Fn(&str, &mut u64, &mut String)) -> Vec<u8> {
    let siblings: Vec<String> = fake_model::files()
        .iter()
        .map(|(name, content)| {
            let mut size = content.len() as u64;
            let mut sha256: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
            change(name, &mut size, &mut sha256);
            let lfs = match name.ends_with(".safetensors") {
                true => format!(r#","lfs":{{"sha256":"{sha256}","size":{size},"pointerSize":130}}"#),
                false => String::new(),
            };
            format!(r#"{{"rfilename":"{name}","blobId":"x","size":{size}{lfs}}}"#)
        })
        .chain([r#"{"rfilename":"README.md","size":5}"#.to_owned()])
        .collect();
    format!(r#"{{"id":"{REPO}","sha":"{COMMIT}","siblings":[{}]}}"#, siblings.join(",")).into_bytes()
}

/// Answers one request and hangs up; true when it was the owner's farewell.
fn serve(mut stream: TcpStream, state: &Mutex<State>) -> std::io::Result<bool> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = HashMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    if path == "/stop" {
        return Ok(true);
    }
    let range_from =
        headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let act = {
        let mut state = state.lock().unwrap();
        state.seen.push(Seen { path: path.clone(), headers });
        let queued = state.acts.get_mut(&path).filter(|acts| !acts.is_empty()).map(|acts| acts.remove(0));
        queued.or_else(|| state.always.get(&path).cloned())
    };
    let content = content_of(&path);
    let whole = |stream: &mut TcpStream, content: &[u8], sent: usize| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", content.len());
        stream.write_all(head.as_bytes())?;
        stream.write_all(&content[..sent])
    };
    match (act, content) {
        (Some(Act::Status(status, extra)), _) => status_only(&mut stream, status, extra)?,
        (Some(Act::Redirect(to)), _) => status_only(&mut stream, 307, &format!("Location: {to}\r\n"))?,
        (Some(Act::Content(content)), _) => whole(&mut stream, &content, content.len())?,
        (Some(Act::Unsized(count)), _) => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
            stream.write_all(&vec![b' '; count])?;
        }
        (Some(Act::Announced(count)), _) => {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {count}\r\nConnection: close\r\n\r\n");
            stream.write_all(head.as_bytes())?;
        }
        (_, None) => status_only(&mut stream, 404, "")?,
        (Some(Act::Cut(sent)), Some(content)) => whole(&mut stream, &content, sent)?,
        (Some(Act::IgnoreRange), Some(content)) => whole(&mut stream, &content, content.len())?,
        (None, Some(content)) => match range_from {
            None => whole(&mut stream, &content, content.len())?,
            Some(from) => part(&mut stream, &content, from)?,
        },
    }
    Ok(false)
}

fn content_of(path: &str) -> Option<Vec<u8>> {
    if path == listing_path("main") || path == listing_path("v1%2Fx") {
        return Some(listing(|_, _, _| {}));
    }
    let name = path.strip_prefix(&file_path("")).or_else(|| path.strip_prefix("/elsewhere/"))?;
    fake_model::files().into_iter().find(|(file, _)| *file == name).map(|(_, content)| content)
}

fn part(stream: &mut TcpStream, content: &[u8], from: usize) -> std::io::Result<()> {
    let (length, total) = (content.len() - from, content.len());
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {length}\r\nContent-Range: bytes {from}-{}/{total}\r\n\
         Connection: close\r\n\r\n",
        total - 1
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(&content[from..])
}

fn status_only(stream: &mut TcpStream, status: u16, extra: &str) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 {status} X\r\n{extra}Content-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())
}
