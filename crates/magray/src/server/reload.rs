//! Reads the settings again while the server runs: applies what can change, and says what cannot.
//! A configuration that is wrong changes nothing.

use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::{
    errors::{Kind, Problem},
    state::App,
    tls::Tls,
};
use crate::{
    config::{Config, ConfigError, ServerSettings},
    logging,
};

/// Reads the settings again.
type Settle = Box<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>;

/// Knows the settings that hold and how to read them again.
pub(crate) struct Reloader {
    settle: Settle,
    tls: Option<Tls>,
    /// By key: what is shown of each setting that holds.
    holding: Mutex<Vec<(&'static str, String)>>,
}

/// What came of it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Reloaded {
    /// Settings that have changed and hold now.
    changed: Vec<String>,
    /// Settings that have changed and hold after a restart.
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

/// The settings that can change while the server runs.
const LIVE: [&str; 15] = [
    "server.api_keys",
    "server.api_keys_file",
    "server.admin_keys",
    "server.admin_keys_file",
    "server.requests_per_minute",
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
        Self { settle, tls, holding: Mutex::new(shown(config)) }
    }
}

impl App {
    /// Reads the settings again and applies what can change. Blocks while files are read.
    pub(crate) fn reload(&self) -> Result<Reloaded, Problem> {
        let reloader = self.reloader();
        let refused = |error: ConfigError| {
            Problem::new(Kind::Invalid, format!("nothing has changed, because the configuration is wrong: {error}"))
        };
        let config = (reloader.settle)().map_err(refused)?;
        let ServerSettings { live, .. } = config.server().map_err(refused)?;
        if let Some(tls) = &reloader.tls {
            tls.reload().map_err(|error| Problem::new(Kind::Invalid, format!("nothing has changed: {error}")))?;
        }
        let mut holding = reloader.holding.lock().unwrap_or_else(PoisonError::into_inner);
        let now = shown(&config);
        let (mut changed, mut needs_restart) = (Vec::new(), Vec::new());
        for ((key, after), (_, before)) in now.iter().zip(holding.iter_mut()) {
            if after == before {
                continue;
            }
            if LIVE.contains(key) {
                changed.push((*key).to_owned());
                before.clone_from(after);
            } else {
                needs_restart.push((*key).to_owned());
            }
        }
        // A file of keys may have changed though its name has not.
        let (users, admins) = live.keys.differ(&self.live().keys);
        for (has_changed, setting) in [(users, "server.api_keys"), (admins, "server.admin_keys")] {
            let is_told = changed.iter().any(|key: &String| key.starts_with(setting));
            if has_changed && !is_told {
                changed.push(format!("{setting}_file"));
            }
        }
        self.change(live);
        logging::set_level(&config.log_level());
        tracing::warn!(
            target: "magray::server",
            changed = changed.join(" "),
            needs_restart = needs_restart.join(" "),
            "the settings were read again"
        );
        Ok(Reloaded { changed, needs_restart, certificate: reloader.tls.is_some() })
    }
}

/// Every setting with its value, in the order of the table. Secrets are compared here and shown nowhere.
fn shown(config: &Config) -> Vec<(&'static str, String)> {
    config.entries.iter().map(|entry| (entry.setting.key, entry.value.to_string())).collect()
}
