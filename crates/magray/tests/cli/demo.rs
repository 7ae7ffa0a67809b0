//! `magray demo` as a new user calls it: in an empty home, without a model, a GPU or a network.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up has to fail")]

use std::{
    io::{BufRead, BufReader, Lines, Read, Write},
    net::TcpStream,
    process::{Child, ChildStdout, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::runner::Home;

/// A demonstration that runs, and what it tells.
struct Demo {
    child: Child,
    events: Lines<BufReader<ChildStdout>>,
    /// Everything that was told, for messages.
    told: Vec<Value>,
    _home: Home,
}

impl Demo {
    fn start(args: &[&str]) -> Self {
        let home = Home::new();
        let mut command = home.command(&["demo", "--json", "--port", "0", "--rate", "40"]);
        command.args(args).stdin(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let events = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, events, told: Vec::new(), _home: home }
    }

    /// Reads until an event of this kind.
    fn wait_for(&mut self, kind: &str) -> Value {
        loop {
            let line = self.events.next();
            let Some(line) = line else { panic!("it ended without '{kind}': {:#?}", self.told) };
            let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
            self.told.push(event.clone());
            if event["event"] == kind {
                return event;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Reads the summary, checks that nothing was lost and that it ends well.
    fn end(mut self) -> Value {
        let summary = self.wait_for("summary");
        for count in ["lost", "refused", "wrong", "answered_twice"] {
            assert_eq!(summary[count], 0, "{count}: {:#?}", self.told);
        }
        assert_eq!(summary["sent"], summary["answered"]);
        assert!(summary["sent"].as_u64().unwrap() > 20, "{summary:#}");
        assert!(self.events.next().is_none());
        assert!(self.child.wait().unwrap().success(), "{:#?}", self.told);
        summary
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Status and body of an answer.
fn ask(page: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
    let address = page.split('/').nth(2).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

#[test]
fn faults_of_the_plan_lose_nothing_and_are_told() {
    let mut demo = Demo::start(&["--for", "8", "--faults", "sim:0/kill@3s, sim:1/wrong@4s, sim:0/oom@5s"]);
    let started = demo.wait_for("started");
    assert_eq!(started["devices"], json!(["sim:0", "sim:1"]));
    assert_eq!((&started["model"], &started["made"]), (&json!("tiny-random"), &json!(true)));
    let fault = demo.wait_for("fault");
    assert_eq!((&fault["device"], &fault["fault"]), (&json!("sim:0"), &json!("killed")));
    let aftermath = demo.wait_for("aftermath");
    assert_eq!(aftermath["refused"], 0);
    let summary = demo.end();
    assert!(summary["faults"].as_object().unwrap().len() >= 2, "{summary:#}");
    assert!(summary["complaints"].as_array().unwrap().is_empty());
}

#[test]
fn faults_that_are_asked_for_happen_and_ctrl_c_ends_it_with_a_summary() {
    let mut demo = Demo::start(&["--faults", "none", "--for", "60"]);
    let page = demo.wait_for("started")["page"].as_str().unwrap().to_owned();
    demo.wait_for("count");
    let inject = |device: &str, fault: &str| {
        ask(&page, "POST", "/ui/faults", &json!({"device": device, "fault": fault}).to_string())
    };
    // Other faults happen with a batch, which a device that is not needed may never get.
    assert_eq!(inject("sim:0", "kill"), (200, json!({"device": "sim:0", "fault": "kill"})));
    let told = demo.wait_for("fault");
    assert_eq!((&told["device"], &told["fault"]), (&json!("sim:0"), &json!("killed")));
    demo.wait_for("aftermath");
    assert_eq!(inject("sim:7", "kill").0, 422);
    assert_eq!(inject("cpu", "kill").0, 422);
    let (status, answer) = inject("sim:0", "fire");
    assert_eq!(status, 422, "{answer}");
    assert!(answer.to_string().contains("use kill, hang, oom, wrong or gpu_fault"), "{answer}");
    demo.signal(Signal::INT);
    demo.end();
}

#[test]
fn a_worker_that_a_user_kills_is_told_of() {
    let mut demo = Demo::start(&["--faults", "none", "--for", "60"]);
    let page = demo.wait_for("started")["page"].as_str().unwrap().to_owned();
    demo.wait_for("count");
    let (_, status) = ask(&page, "GET", "/gpu/status", "");
    let pid = status["devices"][1]["worker_pid"].as_u64().unwrap() as i32;
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    assert_eq!(demo.wait_for("fault")["fault"], "killed");
    let aftermath = demo.wait_for("aftermath");
    assert!(aftermath["back_after_s"].as_f64().is_some(), "{aftermath}");
    demo.signal(Signal::TERM);
    demo.end();
}

#[test]
fn plans_and_ports_that_are_none_are_refused() {
    let home = Home::new();
    let answer = home.call(&["demo", "--faults", "fire@1s", "--no-open"]).run();
    assert_eq!(answer.code, 2, "{}", answer.stderr);
    assert!(answer.stderr.contains("there is no fault 'fire'"), "{}", answer.stderr);
}
