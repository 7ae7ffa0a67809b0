//! Reads the settings again while the server runs: applies those that can change, and names those that need a restart.
//! A configuration that is wrong changes nothing.

use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::{
    errors::{Kind, Problem},
    keys::Keys,
    live::Live,
    tls::Tls,
};
use crate::{
    config::{Config, ConfigError, LiveSettings, ServerSettings},
    logging,
};

type Settle = Box<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>;

pub(crate) struct Reloader {
    settle: Settle,
    tls: Option<Tls>,
    in_force: Mutex<Vec<(&'static str, String)>>,
}

/// What a reload did.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Reloaded {
    /// Settings that have changed and are in force.
    changed: Vec<String>,
    /// Settings that have changed and need a restart.
    needs_restart: Vec<String>,
    /// Whether the certificate was read again.
    certificate: bool,
}

impl std::fmt::Display for Reloaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |keys: &[String]| if keys.is_empty() { "nothing".to_owned() } else { keys.join(", ") };
        write!(f, "settings read again; changed: {}", list(&self.changed))?;
        if self.needs_restart.is_empty() {
            Ok(())
        } else {
            write!(f, "; after a restart: {}", list(&self.needs_restart))
        }
    }
}

const LIVE: [&str; 16] = [
    "server.api_keys",
    "server.api_keys_file",
    "server.admin_keys",
    "server.admin_keys_file",
    "server.requests_per_minute",
    "server.high_priority_keys",
    "server.allowed_hosts",
    "server.body_bytes_max",
    "server.held_bytes_max",
    "server.texts_max",
    "server.text_bytes_max",
    "server.tokens_max",
    "server.truncate",
    "server.body_timeout_s",
    "server.request_timeout_s",
    "log.level",
];

impl Reloader {
    pub(crate) fn new(config: &Config, tls: Option<Tls>, settle: Settle) -> Self {
        Self { settle, tls, in_force: Mutex::new(shown(config)) }
    }

    /// Reads the settings again, and applies those that can change to the version in force. Blocks while files are read.
    pub(crate) fn reload(&self, before: &Live, apply: impl FnOnce(LiveSettings)) -> Result<Reloaded, Problem> {
        let refused = |error: ConfigError| {
            Problem::new(Kind::Invalid, format!("nothing has changed, because the configuration is wrong: {error}"))
        };
        let config = (self.settle)().map_err(refused)?;
        let ServerSettings { live, .. } = config.server().map_err(refused)?;
        if let Some(tls) = &self.tls {
            tls.reload().map_err(|error| Problem::new(Kind::Invalid, format!("nothing has changed: {error}")))?;
        }
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        let now = shown(&config);
        let (mut changed, mut needs_restart) = (Vec::new(), Vec::new());
        for ((key, after), (_, value)) in now.iter().zip(in_force.iter_mut()) {
            if after == value {
                continue;
            }
            if LIVE.contains(key) {
                changed.push((*key).to_owned());
                value.clone_from(after);
            } else {
                needs_restart.push((*key).to_owned());
            }
        }
        // A file of keys may have changed though its name has not.
        let (users, admins) = Keys::new(&live.api_keys, &live.admin_keys).differ(before.keys());
        for (has_changed, setting) in [(users, "server.api_keys"), (admins, "server.admin_keys")] {
            let is_named = changed.iter().any(|key: &String| key.starts_with(setting));
            if has_changed && !is_named {
                changed.push(format!("{setting}_file"));
            }
        }
        apply(live);
        logging::set_level(&config.log_level());
        tracing::warn!(
            target: "magray::server",
            changed = changed.join(" "),
            needs_restart = needs_restart.join(" "),
            "the settings were read again"
        );
        Ok(Reloaded { changed, needs_restart, certificate: self.tls.is_some() })
    }
}

/// Every setting with its value, in the order of the table. Secrets are compared and never printed.
fn shown(config: &Config) -> Vec<(&'static str, String)> {
    config.entries.iter().map(|entry| (entry.setting.key, entry.value.to_string())).collect()
}
