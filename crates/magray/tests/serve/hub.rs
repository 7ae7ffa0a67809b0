//! A hub on the loopback address that has the fixtures as repositories: `test/bert`, `test/bert-classify`, ...
//! Knows a listing and files, and no ranges.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    thread::JoinHandle,
};

use sha2::{Digest, Sha256};

use crate::rig::fixture;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

pub(crate) struct Hub {
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Hub {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            // A client that hangs up is no reason to end.
            while !serve(listener.accept().unwrap().0).unwrap_or(false) {}
        });
        Self { address, thread: Some(thread) }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        if let Ok(mut stream) = TcpStream::connect(self.address) {
            let _ = stream.write_all(b"GET /stop HTTP/1.1\r\n\r\n");
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers one request and hangs up; whether it was the owner's farewell.
fn serve(mut stream: TcpStream) -> std::io::Result<bool> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let path = request.split(' ').nth(1).unwrap_or_default();
    let (status, content) = content_of(path).map_or((404, Vec::new()), |content| (200, content));
    let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", content.len());
    stream.write_all(head.as_bytes())?;
    stream.write_all(&content)?;
    Ok(path == "/stop")
}

fn content_of(path: &str) -> Option<Vec<u8>> {
    if let Some(rest) = path.strip_prefix("/api/models/test/") {
        return listing(rest.strip_suffix("/revision/main?blobs=true")?);
    }
    let (name, file) = path.strip_prefix("/test/")?.split_once(&format!("/resolve/{COMMIT}/"))?;
    fs::read(Path::new(&fixture(name)).join(file)).ok()
}

fn listing(name: &str) -> Option<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../magray-engine/tests/fixtures").join(name);
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder).ok()?.flatten() {
        let below = entry.path();
        match below.is_dir() {
            true => files.extend(fs::read_dir(&below).ok()?.flatten().map(|file| file.path())),
            false => files.push(below),
        }
    }
    let sibling = |file: &std::path::PathBuf| {
        let (content, name) = (fs::read(file).ok()?, file.strip_prefix(&folder).ok()?.to_str()?);
        let sha256: String = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
        let size = content.len();
        let lfs = format!(r#","lfs":{{"sha256":"{sha256}","size":{size},"pointerSize":130}}"#);
        let lfs = if name.ends_with(".safetensors") { lfs } else { String::new() };
        Some(format!(r#"{{"rfilename":"{name}","blobId":"x","size":{size}{lfs}}}"#))
    };
    let siblings: Vec<String> = files.iter().filter_map(sibling).collect();
    let listing = format!(r#"{{"id":"test/{name}","sha":"{COMMIT}","siblings":[{}]}}"#, siblings.join(","));
    Some(listing.into_bytes())
}
