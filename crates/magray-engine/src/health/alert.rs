//! Tells people that a GPU left the rotation or came back: a line of the log, and a message to a web address.
//! Never blocks and never fails the one who tells: what cannot be sent is logged and dropped.

mod gate;
#[cfg(test)]
mod tests;
mod webhook;

use super::timestamps::utc;
use gate::Gate;
use magray_core::schedule::Change;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use webhook::Webhook;

/// Messages that wait for the web address; more are dropped, for they would come too late to help.
const QUEUE_MAX: usize = 32;
/// How long the end of a process waits for messages that are being sent.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// Who is told, and how often.
#[derive(Clone, Debug)]
pub struct AlertOptions {
    /// The address that gets a JSON object by POST; none: only the log.
    pub webhook: Option<String>,
    /// The same news of the same device is told at most once in this time.
    pub cooldown: Duration,
    /// How long a try to send may take.
    pub timeout: Duration,
    /// The time before the second try; the third waits twice as long.
    pub retry_delay: Duration,
    /// Whether the proxy of the environment is used.
    pub proxy_from_env: bool,
}

impl Default for AlertOptions {
    fn default() -> Self {
        Self {
            webhook: None,
            cooldown: Duration::from_secs(60),
            timeout: Duration::from_secs(5),
            retry_delay: Duration::from_secs(1),
            proxy_from_env: true,
        }
    }
}

/// News of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    /// The device, such as `cuda:0`.
    pub device: String,
    /// What happened to it.
    pub change: Change,
    /// The machine that it is in.
    pub host: String,
    /// When.
    pub time: SystemTime,
}

impl Alert {
    /// What happened, as a sentence.
    pub fn message(&self) -> String {
        let device = &self.device;
        match self.change {
            Change::Left { reason, is_permanent: false } => {
                format!("{device} left the rotation: {}", reason)
            }
            Change::Left { reason, is_permanent: true } => {
                format!("{device} left the rotation: {}; it stays out until `magray gpu reset {device}`", reason)
            }
            Change::Returned => format!("{device} is back in the rotation"),
        }
    }

    /// What a web address is sent.
    fn json(&self) -> serde_json::Value {
        let (event, reason, is_permanent) = match self.change {
            Change::Left { reason, is_permanent } => ("left", Some(reason.code()), is_permanent),
            Change::Returned => ("returned", None, false),
        };
        serde_json::json!({
            "source": concat!("magray/", env!("CARGO_PKG_VERSION")),
            "time": utc(self.time),
            "host": self.host,
            "device": self.device,
            "event": event,
            "reason": reason,
            "permanent": is_permanent,
            "message": self.message(),
            // What chat services show of a message.
            "text": format!("{}: {}", self.host, self.message()),
        })
    }

    fn log(&self) {
        match self.change {
            Change::Left { reason, is_permanent } => tracing::warn!(
                target: "magray::health",
                device = self.device,
                reason = reason.code(),
                permanent = is_permanent,
                "{}",
                self.message()
            ),
            Change::Returned => {
                tracing::info!(target: "magray::health", device = self.device, "{}", self.message());
            }
        }
    }
}

/// Tells; what is being sent when it is dropped has two seconds left.
#[derive(Debug)]
pub struct Alerts {
    gate: Arc<Mutex<Gate>>,
    messages: Option<SyncSender<Message>>,
    /// Nothing is ever sent: its end says that there is no time for another try.
    closing: Option<Sender<()>>,
    /// Ends with the thread.
    ended: Receiver<()>,
}

#[derive(Debug)]
enum Message {
    Post(Alert),
    /// The gate holds something back.
    Held,
}

impl Alerts {
    /// Starts the thread that sends. Without a thread there is only the log.
    pub fn new(options: AlertOptions) -> Self {
        let gate = Arc::new(Mutex::new(Gate::new(options.cooldown)));
        let (messages, inbox) = sync_channel(QUEUE_MAX);
        let (closing, is_closing) = channel();
        let (alive, ended) = channel();
        let sending = Sending { gate: Arc::clone(&gate), webhook: Webhook::new(&options), is_closing };
        let thread = thread::Builder::new().name("alerts".to_owned()).spawn(move || {
            sending.run(&inbox);
            drop::<Sender<()>>(alive);
        });
        if let Err(error) = thread {
            tracing::warn!(target: "magray::health", "alerts go only to the log: no thread to send them ({error})");
        }
        Self { gate, messages: Some(messages), closing: Some(closing), ended }
    }

    /// Logs a change, and sends it unless the same was sent a moment ago. A device that is still out when that moment is over is
    /// told of then; one that is back after people heard that it left is always told of.
    pub fn tell(&self, alert: Alert) {
        alert.log();
        let admitted = lock(&self.gate).admit(alert, Instant::now());
        let message = match admitted {
            gate::Admitted::Now(alert) => Message::Post(alert),
            gate::Admitted::Later => Message::Held,
            gate::Admitted::Never => return,
        };
        let is_news = matches!(message, Message::Post(_));
        let is_dropped = self.messages.as_ref().is_some_and(|messages| messages.try_send(message).is_err());
        // With a full queue the thread is awake and looks at the gate by itself.
        if is_dropped && is_news {
            tracing::warn!(target: "magray::health", "an alert was logged and not sent: too many are waiting");
        }
    }
}

impl Alerts {
    /// Ends the thread, which sends what is waiting and tries nothing twice; whether it did so in time.
    fn close(&mut self) -> bool {
        self.closing.take();
        self.messages.take();
        self.ended.recv_timeout(CLOSE_MAX) == Err(RecvTimeoutError::Disconnected)
    }
}

impl Drop for Alerts {
    fn drop(&mut self) {
        if !self.close() {
            tracing::warn!(target: "magray::health", "some alerts were logged and not sent: the webhook is too slow");
        }
    }
}

fn lock(gate: &Mutex<Gate>) -> MutexGuard<'_, Gate> {
    // Nothing that the gate does can leave it half done.
    gate.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that sends.
struct Sending {
    gate: Arc<Mutex<Gate>>,
    webhook: Option<Webhook>,
    is_closing: Receiver<()>,
}

impl Sending {
    fn run(&self, inbox: &Receiver<Message>) {
        loop {
            let due = lock(&self.gate).next_due();
            let received = match due {
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => inbox.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match received {
                Ok(Message::Post(alert)) => self.post(&alert),
                Ok(Message::Held) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let due = lock(&self.gate).take_due(Instant::now());
            due.iter().for_each(|alert| self.post(alert));
        }
    }

    fn post(&self, alert: &Alert) {
        let Some(webhook) = &self.webhook else { return };
        if let Err(trouble) = webhook.post(&alert.json(), &self.is_closing) {
            tracing::warn!(target: "magray::health", device = alert.device, "an alert was logged and not sent: {trouble}");
        }
    }
}
