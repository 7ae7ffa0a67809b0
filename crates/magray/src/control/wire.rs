//! Requests and replies of a control socket: one JSON object a line, each with the version of the protocol.
//! Knows neither sockets nor engines.

use magray_engine::engine::Priority;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::report::{Cleared, DeviceResidency, EngineReport};

/// Goes up when a line of an older magray would be misunderstood.
pub(super) const VERSION: u64 = 1;

const VERSION_KEY: &str = "version";

/// What a client asks for. Where no model is named, all are meant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    Status {},
    /// The page of metrics of a server, as its `/metrics` answers.
    Metrics {},
    /// Off the GPUs.
    Offload {
        model: Option<String>,
        within_ms: u64,
    },
    /// Out of all memory.
    Release {
        model: Option<String>,
        within_ms: u64,
    },
    /// Onto a GPU.
    Preheat {
        model: Option<String>,
        within_ms: u64,
        #[serde(default)]
        priority: Priority,
    },
    /// How much it counts when models compete for memory.
    Priority {
        model: Option<String>,
        priority: Priority,
    },
    /// How long it stays without work.
    Timeout {
        model: Option<String>,
        idle: Idle,
    },
    /// Serve a model of the store.
    Load {
        model: String,
    },
    /// Serve a model no more, and take it out of memory.
    Unload {
        model: String,
    },
    /// Let a name mean a model, or nothing.
    Alias {
        alias: String,
        model: Option<String>,
    },
    /// The GPUs free what they cache.
    ClearCache {},
    /// Whether it is never evicted.
    Pin {
        model: Option<String>,
        pinned: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Idle {
    Never,
    /// 0: at once after use.
    AfterMs(u64),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    Status(EngineReport),
    /// The names of the models that are served after a change.
    Served(Vec<String>),
    Done(Done),
    Cleared(Cleared),
    Metrics(String),
    Refused(Refusal),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) models: Vec<ModelDone>,
    pub(crate) status: EngineReport,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModelDone {
    pub(crate) model: String,
    pub(crate) took_ms: f64,
    pub(crate) residency: Vec<DeviceResidency>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) code: RefusalCode,
    pub(crate) message: String,
}

/// Why; a code never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RefusalCode {
    /// Speak the version that the message names.
    WrongVersion,
    NotUnderstood,
    /// Name one of the models that the message lists.
    UnknownModel,
    /// It goes on, but took longer than the client would wait.
    NotYet,
    /// Another caller asked for the opposite after it.
    Overruled,
    /// It cannot be done, for the reason in the message.
    Impossible,
    /// Too many clients at once: try again.
    Busy,
    Ending,
    /// The client is another user.
    NotYours,
}

impl Refusal {
    pub(crate) fn new(code: RefusalCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// A line, with its end.
pub(super) fn write<T: Serialize>(body: &T) -> String {
    let mut value = serde_json::to_value(body).unwrap_or_else(|error| unreachable!("plain data: {error}"));
    if let Value::Object(fields) = &mut value {
        fields.insert(VERSION_KEY.to_owned(), VERSION.into());
    }
    format!("{value}\n")
}

pub(super) fn read<T: DeserializeOwned>(line: &str) -> Result<T, Refusal> {
    let not_understood = |error: serde_json::Error| Refusal::new(RefusalCode::NotUnderstood, error.to_string());
    let mut value: Value = serde_json::from_str(line).map_err(not_understood)?;
    let Value::Object(fields) = &mut value else {
        return Err(Refusal::new(RefusalCode::NotUnderstood, "a line is one JSON object"));
    };
    match fields.remove(VERSION_KEY).as_ref().and_then(Value::as_u64) {
        Some(VERSION) => serde_json::from_value(value).map_err(not_understood),
        other => {
            let shown = other.map_or_else(|| "none".to_owned(), |version| version.to_string());
            let message = format!(
                "this magray speaks version {VERSION} of its control language, the other side {shown}: \
                 use the same magray for both"
            );
            Err(Refusal::new(RefusalCode::WrongVersion, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let requests = [
            Request::Status {},
            Request::Metrics {},
            Request::Offload { model: None, within_ms: 7 },
            Request::Preheat { model: Some("a \"b\"\nc".to_owned()), within_ms: 7, priority: Priority::High },
            Request::Priority { model: None, priority: Priority::Low },
            Request::Timeout { model: None, idle: Idle::Never },
            Request::Timeout { model: Some("x".to_owned()), idle: Idle::AfterMs(0) },
            Request::ClearCache {},
            Request::Pin { model: Some("x".to_owned()), pinned: false },
        ];
        for request in requests {
            let line = write(&request);
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert_eq!(read::<Request>(&line), Ok(request));
        }
    }

    #[test]
    fn what_is_no_request_is_refused_with_its_reason() {
        let code = |line: &str| read::<Request>(line).map_err(|refusal| refusal.code);
        for nonsense in [
            "",
            "status",
            "[]",
            "null",
            r#"{"version": 1}"#,
            r#"{"version": 1, "ask": "explode"}"#,
            r#"{"version": 1, "ask": "offload", "model": 7, "within_ms": 1}"#,
            r#"{"version": 1, "ask": "offload", "model": "x", "within_ms": -1}"#,
            r#"{"version": 1, "ask": "timeout", "model": null}"#,
            r#"{"version": 1, "ask": "pin", "model": null, "pinned": true, "also": 1}"#,
        ] {
            assert_eq!(code(nonsense), Err(RefusalCode::NotUnderstood), "{nonsense}");
        }
        for other in [r#"{"ask": "status"}"#, r#"{"version": 2, "ask": "status"}"#, r#"{"version": "1"}"#] {
            assert_eq!(code(other), Err(RefusalCode::WrongVersion), "{other}");
        }
    }
}
