//! Servers that would like to have the user's token: one in the clear, one that the first redirects to.
//! Both on the loopback address; they keep every byte that they are sent.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

use crate::runner::Home;

const TOKEN: &str = "hf_token_of_the_user";
/// Ends a server.
const STOP: &[u8] = b"stop\r\n\r\n";

/// A server that gives one answer to everything.
struct Thief {
    address: SocketAddr,
    heard: Arc<Mutex<String>>,
    thread: Option<JoinHandle<()>>,
}

impl Thief {
    fn start(answer: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(String::new()));
        let own = Arc::clone(&heard);
        let thread = std::thread::spawn(move || {
            for mut stream in listener.incoming().map(Result::unwrap) {
                let request = head(&mut stream);
                if request == STOP {
                    return;
                }
                own.lock().unwrap().push_str(&String::from_utf8_lossy(&request));
                // A client that has hung up wants no answer.
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        Self { address, heard, thread: Some(thread) }
    }

    fn with_status(status: &str) -> Self {
        Self::start(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
    }

    fn redirecting_to(other: &Self) -> Self {
        Self::with_status(&format!("302 Found\r\nLocation: {}/stolen", other.endpoint()))
    }

    fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Asserts that it was asked, and not given the token.
    #[track_caller]
    fn assert_got_nothing(&self) {
        let heard = self.heard.lock().unwrap();
        assert!(heard.starts_with("GET /"), "it was not asked: {heard:?}");
        let small = heard.to_ascii_lowercase();
        assert!(!small.contains(TOKEN) && !small.contains("authorization"), "{heard}");
    }
}

impl Drop for Thief {
    fn drop(&mut self) {
        if let Ok(mut stream) = TcpStream::connect(self.address) {
            let _ = stream.write_all(STOP);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads to the end of a request's head.
fn head(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut block = [0; 4096];
    while !bytes.ends_with(b"\r\n\r\n") && bytes.len() < 1 << 16 {
        match stream.read(&mut block) {
            Ok(count @ 1..) => bytes.extend_from_slice(&block[..count]),
            _ => break,
        }
    }
    bytes
}

#[test]
fn a_hub_without_https_and_what_it_redirects_to_never_see_the_token() {
    let home = Home::new();
    let other = Thief::with_status("404 Not Found");
    let hub = Thief::redirecting_to(&other);
    let call = home.call(&["pull", "tiny/model"]).env("HF_ENDPOINT", hub.endpoint()).env("HF_TOKEN", TOKEN);
    let answer = call.run();
    assert_eq!(answer.code, 5, "{}", answer.stderr);
    assert!(answer.stderr.contains("the token is not sent to http://127.0.0.1"), "{}", answer.stderr);
    assert!(!answer.stderr.contains(TOKEN), "{}", answer.stderr);
    hub.assert_got_nothing();
    other.assert_got_nothing();
}

#[test]
fn a_hub_that_asks_for_the_token_in_the_clear_is_told_of_and_not_obeyed() {
    let home = Home::new();
    let hub = Thief::with_status("401 Unauthorized");
    let settings = home.write("mine.toml", format!("[model]\nendpoint = '{}'\n", hub.endpoint()));
    let call = home.call(&["--config", settings.to_str().unwrap(), "pull", "tiny/model"]);
    let answer = call.env("HF_ENDPOINT", "").env("HF_TOKEN", TOKEN).run();
    assert_eq!(answer.code, 5, "{}", answer.stderr);
    hub.assert_got_nothing();
}

#[test]
fn a_found_file_sends_no_request_to_the_hub_that_it_names() {
    let home = Home::new();
    let hub = Thief::with_status("401 Unauthorized");
    home.write("magray.toml", format!("[model]\nendpoint = '{}'\n", hub.endpoint()));
    let answer = home.call(&["embed", "x"]).env("HF_ENDPOINT", "").env("HF_TOKEN", TOKEN).run();
    assert_eq!(answer.code, 2, "{}", answer.stderr);
    assert!(answer.stderr.contains("magray.toml:2: model.endpoint is not taken from a file"), "{}", answer.stderr);
    assert_eq!(hub.heard.lock().unwrap().as_str(), "");
}
