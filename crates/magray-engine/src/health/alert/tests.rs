//! Alerts against a web server on the loopback address.

use super::*;
use magray_core::schedule::{Fallback, Fault};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Answers with the statuses it is told, then with 204, and hands on what it was sent.
struct Server {
    address: SocketAddr,
    bodies: Receiver<Value>,
}

impl Server {
    fn start(statuses: impl IntoIterator<Item = u16>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, bodies) = channel();
        let mut statuses: VecDeque<u16> = statuses.into_iter().collect();
        // Ends with the process: the listener cannot be woken otherwise.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let body = read_request(&stream.unwrap(), statuses.pop_front().unwrap_or(204));
                if sender.send(body).is_err() {
                    return;
                }
            }
        });
        Self { address, bodies }
    }

    fn options(&self) -> AlertOptions {
        AlertOptions {
            webhook: Some(format!("http://{}/hook", self.address)),
            retry_delay: Duration::from_millis(1),
            timeout: Duration::from_secs(60),
            proxy_from_env: false,
            ..AlertOptions::default()
        }
    }
}

fn read_request(stream: &TcpStream, status: u16) -> Value {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    let mut line = String::new();
    assert!(reader.read_line(&mut line).unwrap() > 0 && line.starts_with("POST /hook "), "{line}");
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        match line.trim().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap(),
            Some(("content-type", kind)) => assert_eq!(kind, "application/json"),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let mut stream = stream;
    write!(stream, "HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
    serde_json::from_slice(&body).unwrap()
}

fn alert(change: Change) -> Alert {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_599);
    Alert { device: "cuda:1".to_owned(), change, host: "rack7".to_owned(), time }
}

fn lost(is_permanent: bool) -> Alert {
    alert(Change::Left { reason: Fallback::Ruled(Fault::Xid(79)), is_permanent })
}

#[test]
fn a_device_that_leaves_and_returns_is_told_as_json() {
    let server = Server::start([]);
    let alerts = Alerts::new(server.options());
    alerts.tell(lost(true));
    alerts.tell(alert(Change::Returned));
    assert_eq!(
        server.bodies.recv().unwrap(),
        json!({
            "source": concat!("magray/", env!("CARGO_PKG_VERSION")),
            "time": "2025-12-31T23:59:59Z",
            "host": "rack7",
            "device": "cuda:1",
            "event": "left",
            "reason": "unhealthy",
            "permanent": true,
            "message": "cuda:1 left the rotation: the driver reported Xid 79, a fault of the hardware; \
                        it stays out until `magray gpu reset cuda:1`",
            "text": "rack7: cuda:1 left the rotation: the driver reported Xid 79, a fault of the hardware; \
                     it stays out until `magray gpu reset cuda:1`",
        })
    );
    let back = server.bodies.recv().unwrap();
    assert_eq!((&back["event"], &back["reason"]), (&json!("returned"), &Value::Null));
}

#[test]
fn a_server_that_is_busy_is_asked_again_and_one_that_refuses_is_not() {
    let server = Server::start([503, 429, 200, 404, 204]);
    let alerts = Alerts::new(server.options());
    alerts.tell(lost(false));
    // Refused with 404, and not tried again: the next message is the next request.
    alerts.tell(lost(true));
    alerts.tell(alert(Change::Returned));
    let seen: Vec<Value> = server.bodies.iter().take(5).collect();
    let permanent: Vec<&Value> = seen.iter().map(|body| &body["permanent"]).collect();
    assert_eq!(permanent, [&json!(false), &json!(false), &json!(false), &json!(true), &json!(false)]);
    assert_eq!(seen[4]["event"], "returned");
}

#[test]
fn after_three_tries_a_message_is_dropped_and_the_next_one_goes_out() {
    let server = Server::start([500, 502, 503]);
    let alerts = Alerts::new(server.options());
    alerts.tell(lost(false));
    alerts.tell(lost(true));
    let permanent: Vec<Value> = server.bodies.iter().take(4).map(|body| body["permanent"].clone()).collect();
    assert_eq!(permanent, [json!(false), json!(false), json!(false), json!(true)]);
}

#[test]
fn what_is_held_back_goes_out_when_the_cooldown_is_over() {
    let server = Server::start([]);
    let alerts = Alerts::new(AlertOptions { cooldown: Duration::from_millis(50), ..server.options() });
    for change in [lost(false), alert(Change::Returned), lost(false)] {
        alerts.tell(change);
    }
    let events: Vec<Value> = server.bodies.iter().take(3).map(|body| body["event"].clone()).collect();
    assert_eq!(events, ["left", "returned", "left"], "the last picture is the true one");
}

#[test]
fn an_address_where_nobody_listens_blocks_nobody() {
    // A port that was free a moment ago.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let webhook = Some(format!("http://{address}/"));
    let retry_delay = Duration::from_secs(1_000_000);
    let mut alerts =
        Alerts::new(AlertOptions { webhook, retry_delay, proxy_from_env: false, ..AlertOptions::default() });
    for at in 0..1000 {
        alerts.tell(Alert { device: format!("cuda:{at}"), ..lost(false) });
    }
    assert!(alerts.close(), "a thread that waits for its next try is not waited for");
}

#[test]
fn without_an_address_there_is_the_log_alone() {
    let alerts = Alerts::new(AlertOptions::default());
    alerts.tell(lost(false));
    alerts.tell(alert(Change::Returned));
}

#[test]
fn an_address_that_is_none_is_not_repeated() {
    let webhook = Some("http://secret token/".to_owned());
    let options = AlertOptions { webhook, retry_delay: Duration::ZERO, ..AlertOptions::default() };
    let (_open, is_closing) = channel::<()>();
    let trouble = Webhook::new(&options).unwrap().post(&json!({}), &is_closing).unwrap_err().to_string();
    assert!(!trouble.contains("secret"), "{trouble}");
}
