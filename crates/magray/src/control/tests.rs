//! A control socket with something like an engine behind it: what is answered, what is refused, and who waits for whom.
//! Clients are real connections; nothing is timed.

use std::{
    fs,
    io::{Read, Write},
    os::unix::{fs::MetadataExt, net::UnixStream},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

use magray_engine::{
    DeviceName,
    engine::{EngineError, Moved, Priority, Residency},
};
use serde_json::json;

use super::{
    subject::{Change, Controlled},
    *,
};

const MINUTE: u64 = 60_000;

/// Two models. Every preheat waits until the test opens the gate.
struct Fake {
    changes: Mutex<Vec<(usize, Change, Duration)>>,
    waiting: Sender<()>,
    gate: Mutex<Receiver<()>>,
}

impl Controlled for Fake {
    fn report(&self) -> EngineReport {
        let model = |(number, name): (usize, &str)| ModelReport {
            number,
            name: name.to_owned(),
            location: "gpu".to_owned(),
            requests: 0,
            idle_s: 1.5,
            bytes: 1000,
            loads: 1,
            offloads: 0,
            idle_timeout_s: None,
            offload_after_use: false,
            pinned: false,
            priority: "normal".to_owned(),
            residency: vec![DeviceResidency::of(DeviceName::Cuda(0), Residency::OnDevice)],
            layers: None,
        };
        EngineReport {
            pid: std::process::id(),
            magray: "0".to_owned(),
            uptime_s: 1.0,
            requests: 0,
            waiting: 0,
            wait_s: None,
            tokens: 0,
            gpu_memory_allocated_gb: 0.0,
            tensorrt: false,
            performance: PerformanceReport::default(),
            devices: Vec::new(),
            models: vec![model((0, "a")), model((1, "org/b"))],
        }
    }

    fn clear_cache(&self) -> Cleared {
        Cleared { devices: Vec::new() }
    }

    fn change(&self, model: usize, change: Change, within: Duration) -> Result<Moved, EngineError> {
        self.changes.lock().unwrap().push((model, change, within));
        match change {
            Change::Preheat(_) => {
                self.waiting.send(()).unwrap();
                self.gate.lock().unwrap().recv().map_err(|_| EngineError::Draining)?;
            }
            Change::Release => return Err(EngineError::NotYet { within }),
            _ => {}
        }
        Ok(Moved { took: Duration::from_millis(3), residency: vec![(DeviceName::Cuda(0), Residency::OnCpu)] })
    }
}

struct Rig {
    home: tempfile::TempDir,
    fake: Arc<Fake>,
    socket: Option<ControlSocket>,
    has_come: Mutex<Receiver<()>>,
    gate: Sender<()>,
}

impl Rig {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let (waiting, has_come) = channel();
        let (gate, gated) = channel();
        let fake = Arc::new(Fake { changes: Mutex::default(), waiting, gate: Mutex::new(gated) });
        let subject: Arc<dyn Controlled> = Arc::clone(&fake) as _;
        let has_come = Mutex::new(has_come);
        let mut rig = Self { home, fake, socket: None, has_come, gate };
        // The first cannot be made: it is no folder.
        fs::write(rig.home.path().join("file"), "").unwrap();
        rig.socket = Some(ControlSocket::open(&rig.folders(), subject).unwrap());
        rig
    }

    fn folders(&self) -> Vec<PathBuf> {
        vec![self.home.path().join("file").join("magray"), self.home.path().join("run")]
    }

    fn running(&self) -> Vec<Running> {
        running(&self.folders())
    }

    fn path(&self) -> PathBuf {
        self.folders()[1].join(format!("{}.sock", std::process::id()))
    }

    fn ask(&self, request: &Request) -> Result<Reply, RefusalCode> {
        self.running()[0].ask(request).map_err(|error| match error {
            AskError::Refused { refusal, .. } => refusal.code,
            other => panic!("{other}"),
        })
    }

    fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(self.path()).unwrap();
        // A refused client may not take the rest of the line.
        let _ = stream.write_all(bytes);
        let mut reply = String::new();
        let _ = stream.read_to_string(&mut reply);
        reply
    }
}

#[test]
fn a_socket_is_found_while_it_is_there_and_is_its_users_alone() {
    let mut rig = Rig::new();
    assert_eq!(rig.running().iter().map(|running| running.pid).collect::<Vec<_>>(), [std::process::id()]);
    assert_eq!(fs::metadata(&rig.folders()[1]).unwrap().mode() & 0o777, 0o700);
    let known = rig.running().remove(0);
    rig.socket = None;
    assert_eq!(fs::read_dir(&rig.folders()[1]).unwrap().count(), 0);
    assert!(rig.running().is_empty());
    assert!(matches!(known.ask(&Request::Status {}), Err(AskError::Gone { .. })));
}

#[test]
fn a_process_without_a_folder_gets_an_error() {
    let rig = Rig::new();
    let subject: Arc<dyn Controlled> = Arc::clone(&rig.fake) as _;
    let error = ControlSocket::open(&[], Arc::clone(&subject)).unwrap_err().to_string();
    assert!(error.contains("control.folder"), "{error}");
    let deep = rig.home.path().join("d".repeat(120));
    let error = ControlSocket::open(&[deep], subject).unwrap_err().to_string();
    assert!(error.contains("cannot be made in") && error.contains("control.folder"), "{error}");
}

#[test]
fn what_is_asked_is_done_with_the_models_that_are_meant() {
    let rig = Rig::new();
    let Ok(Reply::Status(status)) = rig.ask(&Request::Status {}) else { panic!("no status") };
    assert_eq!(json!(status), json!(rig.fake.report()));
    let offload = |model: Option<&str>| Request::Offload { model: model.map(str::to_owned), within_ms: MINUTE };
    let Ok(Reply::Done(done)) = rig.ask(&offload(Some("org/b"))) else { panic!("not done") };
    assert_eq!((done.models.len(), done.models[0].model.as_str(), done.models[0].took_ms), (1, "org/b", 3.0));
    assert_eq!(done.models[0].residency[0].place, "on_cpu");
    assert!(rig.ask(&Request::Pin { model: None, pinned: true }).is_ok());
    assert!(rig.ask(&Request::Timeout { model: Some("a".to_owned()), idle: Idle::AfterMs(0) }).is_ok());
    let changes: Vec<(usize, Change)> = rig.fake.changes.lock().unwrap().iter().map(|(a, b, _)| (*a, *b)).collect();
    let expected =
        [(1, Change::Offload), (0, Change::Pin(true)), (1, Change::Pin(true)), (0, Change::Idle(Idle::AfterMs(0)))];
    assert_eq!(changes, expected);
}

#[test]
fn no_client_waits_for_a_model_longer_than_the_bound() {
    let rig = Rig::new();
    rig.ask(&Request::Offload { model: Some("a".to_owned()), within_ms: u64::MAX / 2 }).unwrap();
    let changes = rig.fake.changes.lock().unwrap();
    assert!(changes[0].2 <= server::WITHIN_MAX, "{changes:?}");
}

#[test]
fn what_cannot_be_done_is_refused_with_its_reason() {
    let rig = Rig::new();
    let preheat = Request::Preheat { model: Some("nobody".to_owned()), within_ms: MINUTE, priority: Priority::Normal };
    let error = rig.running()[0].ask(&preheat).unwrap_err().to_string();
    assert!(error.contains("there is no model 'nobody': it has a, org/b"), "{error}");
    let release = Request::Release { model: Some("a".to_owned()), within_ms: 5 };
    assert_eq!(rig.ask(&release), Err(RefusalCode::NotYet));
    for (line, code) in [
        ("status\n", "not_understood"),
        ("{}\n", "wrong_version"),
        ("{\"version\": 2, \"ask\": \"status\"}\n", "wrong_version"),
        ("{\"version\": 1, \"ask\": \"explode\"}\n", "not_understood"),
        ("\u{0}\u{7f}\n", "not_understood"),
    ] {
        let reply = rig.raw(line.as_bytes());
        assert!(reply.contains(&format!("\"code\":\"{code}\"")) && reply.ends_with('\n'), "{line:?}: {reply}");
    }
    let reply = rig.raw(&[0xff, 0xfe, b'\n']);
    assert!(reply.contains("not_understood"), "{reply}");
    // Bytes without an end are not collected for ever.
    rig.raw(&vec![b'x'; 1 << 20]);
    assert!(rig.ask(&Request::Status {}).is_ok());
}

#[test]
fn silent_clients_hold_up_only_clients_beyond_the_bound() {
    let rig = Rig::new();
    let connect = || UnixStream::connect(rig.path()).unwrap();
    // Far fewer than the bound, and half of them with half a line.
    let silent: Vec<UnixStream> = (0..8).map(|_| connect()).collect();
    for stream in silent.iter().step_by(2) {
        (&*stream).write_all(b"{\"version\":").unwrap();
    }
    assert!(rig.ask(&Request::Status {}).is_ok());
    // One more than there are slots: at least one is refused at once, and none hangs.
    let many: Vec<UnixStream> = (0..16).map(|_| connect()).collect();
    let refused = many.iter().filter(|stream| {
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut stream: &UnixStream = stream;
        stream.read(&mut [0; 64]).is_ok_and(|count| count > 0)
    });
    assert!(refused.count() > 0);
    drop((silent, many));
    // Their places are free again as soon as their threads have noticed.
    let is_heard =
        (0..1000).any(|_| rig.running().first().is_some_and(|running| running.ask(&Request::Status {}).is_ok()));
    assert!(is_heard);
}

#[test]
fn those_who_wait_for_models_leave_room_for_those_who_only_ask() {
    let rig = Rig::new();
    let preheat = Request::Preheat { model: Some("a".to_owned()), within_ms: MINUTE, priority: Priority::Normal };
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..8).map(|_| scope.spawn(|| rig.ask(&preheat).is_ok())).collect();
        // All of them wait; only then is it known that no slot is left.
        (0..8).for_each(|_| rig.has_come.lock().unwrap().recv().unwrap());
        assert!(rig.ask(&Request::Status {}).is_ok());
        assert_eq!(rig.ask(&preheat), Err(RefusalCode::Busy));
        (0..8).for_each(|_| rig.gate.send(()).unwrap());
        assert!(waiters.into_iter().all(|waiter| waiter.join().unwrap()));
    });
}
