//! Sends one JSON object to a web address, trying again where that may help.
//! Never logs the address: many of them hold a secret.

use super::AlertOptions;
use serde_json::Value;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use ureq::{Agent, Proxy};

/// Tries for one message.
const TRIES: u32 = 3;

/// A web address.
#[derive(Debug)]
pub(super) struct Webhook {
    agent: Agent,
    url: String,
    retry_delay: Duration,
}

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum Undelivered {
    /// Trying again would not help.
    #[error("the webhook refused it with status {0}: check gpu.monitoring.alert_webhook")]
    Refused(u16),
    /// It did not help, or there was no time for it.
    #[error("the webhook could not be reached in {tries} tries ({reason})")]
    Unreachable { tries: u32, reason: String },
}

impl Webhook {
    /// `None` where no address is set.
    pub(super) fn new(options: &AlertOptions) -> Option<Self> {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            // A message that is sent on would arrive without its content.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(options.timeout))
            .proxy(if options.proxy_from_env { Proxy::try_from_env() } else { None })
            .user_agent(concat!("magray/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        let url = options.webhook.clone()?;
        Some(Self { agent, url, retry_delay: options.retry_delay })
    }

    /// Sends; once `is_closing` has ended nothing is tried again.
    pub(super) fn post(&self, message: &Value, is_closing: &Receiver<()>) -> Result<(), Undelivered> {
        let body = message.to_string();
        let mut delay = self.retry_delay;
        let mut tries = 0;
        loop {
            tries += 1;
            let reason = match self.try_post(&body) {
                Ok(status) if (200..300).contains(&status) => return Ok(()),
                Ok(status) if is_passing(status) => format!("status {status}"),
                Ok(status) => return Err(Undelivered::Refused(status)),
                Err(reason) => reason,
            };
            let is_last = tries == TRIES || is_closing.recv_timeout(delay) == Err(RecvTimeoutError::Disconnected);
            if is_last {
                return Err(Undelivered::Unreachable { tries, reason });
            }
            delay = delay.saturating_mul(2);
        }
    }

    fn try_post(&self, body: &str) -> Result<u16, String> {
        let request = self.agent.post(&self.url).content_type("application/json");
        match request.send(body) {
            Ok(response) => Ok(response.status().as_u16()),
            // This one repeats the address.
            Err(ureq::Error::BadUri(_)) => Err("the address is not a valid one".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Whether the same message may be taken in a moment.
fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..=599)
}
