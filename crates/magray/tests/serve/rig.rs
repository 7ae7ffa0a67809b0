//! Starts the binary in a home of its own, on a port of its own, and ends it with the test.
//! Hands on nothing of the environment that the tests run in.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use magray_engine::testing::tiny_decoder;

use crate::http::{LONG, Reply, Request};

/// A server that is about to be started.
pub(crate) struct Setup {
    home: tempfile::TempDir,
    command: Command,
}

/// A server that runs.
pub(crate) struct Server {
    home: tempfile::TempDir,
    child: Child,
    pub(crate) address: SocketAddr,
    said: Arc<Mutex<String>>,
    listening: Option<JoinHandle<()>>,
}

/// The file of settings in the home of a server.
const SETTINGS: &str = "magray.toml";

/// A tiny model of the engine's fixtures.
pub(crate) fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../magray-engine/tests/fixtures").join(name);
    path.canonicalize().unwrap().to_str().unwrap().to_owned()
}

/// A template that shows tools and thinks where it is told to.
const TEMPLATE: &str = "{%- if tools %}<|tools|>{{ tools | tojson }}\n{% endif %}{%- for message in messages %}\
    <|{{ message.role }}|>{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>\
    {{ call.function | tojson }}</tool_call>{% endfor %}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\
    {% if enable_thinking is defined and enable_thinking %}<think>\n{% else %}{# </think> #}{% endif %}{% endif %}";

/// Writes a language model of random weights, and a template unless it is not to have one.
pub(crate) fn write_generator(folder: &Path, has_template: bool) {
    /// Tokens are bytes, and descriptions of tools are long.
    const CONTEXT: usize = 8192;
    fs::create_dir_all(folder).unwrap();
    tiny_decoder::write(folder, 1).unwrap();
    let config = fs::read_to_string(folder.join("config.json")).unwrap();
    let known = format!("\"max_position_embeddings\":{}", tiny_decoder::CONTEXT);
    assert!(config.contains(&known));
    let config = config.replace(&known, &format!("\"max_position_embeddings\":{CONTEXT}"));
    fs::write(folder.join("config.json"), config).unwrap();
    if has_template {
        let told = serde_json::json!({"chat_template": TEMPLATE, "eos_token": "<end>"});
        fs::write(folder.join("tokenizer_config.json"), told.to_string()).unwrap();
    }
}

impl Setup {
    /// With one thread and these flags.
    pub(crate) fn new(args: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_magray"));
        command.args(["serve", "--threads", "1"]).args(args).env_clear().env("MAGRAY_PORT", "0");
        command.current_dir(home.path()).env("HOME", home.path()).env("HF_ENDPOINT", "http://127.0.0.1:1");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).env("MAGRAY_CONFIG", SETTINGS);
        // What devices do is tried with the same texts again and again.
        command.env("MAGRAY_TEXT_CACHE", "0");
        Self { home, command }.settings("")
    }

    /// With a model that embeds, and on the CPU alone.
    pub(crate) fn embedder() -> Self {
        Self::new(&["--device", "cpu", "--model", &fixture("bert")])
    }

    /// With models that embed, rank and classify.
    pub(crate) fn all_kinds() -> Self {
        let (embed, rank, classify) = (fixture("bert"), fixture("xlm-roberta-classify"), fixture("bert-classify"));
        Self::new(&["--device", "cpu", "--model", &embed, "--model", &rank, "--model", &classify])
    }

    /// With these and one that generates.
    pub(crate) fn every_kind() -> Self {
        Self::all_kinds().with_generator()
    }

    /// And with a language model named `tiny`.
    pub(crate) fn with_generator(self) -> Self {
        let folder = self.home.path().join("tiny");
        write_generator(&folder, true);
        self.arg("--model").arg(folder)
    }

    /// With a simulated GPU that must be used, and that fails as planned.
    pub(crate) fn on_gpu(faults: &str) -> Self {
        let setup = Self::new(&["--device", "require-gpu", "--simulated-gpus", "1", "--model", &fixture("bert")]);
        setup.env("MAGRAY_FAULTS", faults)
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// With these settings in a file.
    pub(crate) fn settings(self, toml: &str) -> Self {
        fs::write(self.home.path().join(SETTINGS), toml).unwrap();
        self
    }

    pub(crate) fn file(&self, name: &str, content: &str) -> String {
        let path = self.home.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Starts it and waits until it listens.
    #[track_caller]
    pub(crate) fn start(mut self) -> Server {
        let mut child = self.command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let said = Arc::new(Mutex::new(String::new()));
        let address = loop {
            let mut line = String::new();
            if stderr.read_line(&mut line).unwrap() == 0 {
                panic!("the server ended: {}", said.lock().unwrap());
            }
            said.lock().unwrap().push_str(&line);
            let after = line.split_once("listening on ").and_then(|(_, after)| Some(after.split_once("://")?.1));
            if let Some(address) = after.and_then(|after| after.split(' ').next()) {
                break address.parse().unwrap();
            }
        };
        let own = Arc::clone(&said);
        let listening = std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                own.lock().unwrap().push_str(&format!("{line}\n"));
            }
        });
        Server { home: self.home, child, address, said, listening: Some(listening) }
    }

    /// On this port.
    pub(crate) fn port(mut self, port: u16) -> Self {
        self.command.arg("--port").arg(port.to_string());
        self
    }

    /// Starts it and expects it to refuse: its exit code and what it says.
    #[track_caller]
    pub(crate) fn refused(mut self) -> (i32, String) {
        let output = self.command.spawn().unwrap().wait_with_output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }
}

/// Whether a server says this within a while.
pub(crate) fn said_soon(server: &Server, what: &str) -> bool {
    let until = Instant::now() + LONG;
    while Instant::now() < until {
        if server.said().contains(what) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

impl Server {
    pub(crate) fn request(&self, method: &str, path: &str) -> Request {
        Request::new(self.address, method, path)
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Reply {
        self.request("GET", path).send()
    }

    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: &str) -> Reply {
        self.request("POST", path).header("content-type", "application/json").body(body).send()
    }

    /// Posts and checks that it is refused with this status and message.
    #[track_caller]
    pub(crate) fn check_refused(&self, path: &str, body: &str, status: u16, message: &str) {
        let reply = self.post(path, body);
        assert_eq!(reply.status, status, "{path} {body}: {}", reply.text());
        assert!(reply.text().contains(message), "{path} {body}: {}", reply.text());
    }

    /// What another magray in the same home prints.
    #[track_caller]
    pub(crate) fn beside(&self, args: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_magray"));
        command.args(args).env_clear().current_dir(self.home.path()).env("HOME", self.home.path());
        command.env("MAGRAY_CONFIG", SETTINGS);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Writes its settings' file anew.
    pub(crate) fn settings(&self, toml: &str) {
        fs::write(self.home.path().join(SETTINGS), toml).unwrap();
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// What it has said so far.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits until it has ended by itself.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let until = Instant::now() + LONG;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "the server did not end: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(listening) = self.listening.take() {
            let _ = listening.join();
        }
    }
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < until, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(5));
    }
}
