//! Reads the settings again while the server runs: applies those that can change, and names those that need a restart.
//! A configuration that is wrong changes nothing.

use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::{
    errors::{Kind, Problem},
    keys::Keys,
    live::Live,
    models::Models,
    tls::Tls,
};
use crate::{
    config::{Config, ConfigError, LiveSettings, ModelPlans, ServerSettings},
    logging,
};

type Settle = Box<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>;

pub(crate) struct Reloader {
    settle: Settle,
    tls: Option<Tls>,
    in_force: Mutex<Vec<(&'static str, String)>>,
}

/// What can change while the server runs.
pub(crate) struct Changed {
    pub(crate) live: LiveSettings,
    /// `None`: as they are.
    pub(crate) aliases: Option<Vec<(String, usize)>>,
    pub(crate) plans: ModelPlans,
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

/// How long models stay on a GPU.
pub(super) const TIMEOUTS: [&str; 4] =
    ["gpu.idle_timeout_s", "gpu.models.idle_timeout_s", "gpu.memory.offload_to_cpu", "gpu.memory.offload_after_use"];

const LIVE: [&str; 24] = [
    TIMEOUTS[0],
    TIMEOUTS[1],
    TIMEOUTS[2],
    TIMEOUTS[3],
    "gpu.models.pinned",
    "gpu.models.priority",
    "server.aliases",
    "server.api_keys",
    "server.api_keys_file",
    "server.admin_keys",
    "server.admin_keys_file",
    "server.requests_per_minute",
    "server.tokens_per_minute",
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

    /// Reads the settings again, and applies those that can change to the version in force: `apply` gets them with the names
    /// of those that have changed. Blocks while files are read.
    pub(crate) fn reload(
        &self,
        before: &Live,
        models: &Models,
        apply: impl FnOnce(Changed, &[&str]),
    ) -> Result<Reloaded, Problem> {
        let refused = |error: ConfigError| {
            Problem::new(Kind::Invalid, format!("nothing has changed, because the configuration is wrong: {error}"))
        };
        let config = (self.settle)().map_err(refused)?;
        let ServerSettings { live, aliases, .. } = config.server().map_err(refused)?;
        let plans = config.engine().map_err(refused)?.plans;
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        let now = shown(&config);
        let has_changed = |(now, before): (&(&str, String), &(&str, String))| now.1 != before.1;
        // Names that were given by hand stay as long as the settings name the same ones.
        let are_renamed = now.iter().zip(in_force.iter()).any(|both| both.0.0 == "server.aliases" && has_changed(both));
        let wrong = |reason| Problem::new(Kind::Invalid, format!("nothing has changed: server.aliases: {reason}"));
        let aliases = are_renamed.then(|| models.resolve(&aliases).map_err(wrong)).transpose()?;
        if let Some(tls) = &self.tls {
            tls.reload().map_err(|error| Problem::new(Kind::Invalid, format!("nothing has changed: {error}")))?;
        }
        let (mut changed, mut needs_restart) = (Vec::new(), Vec::new());
        let mut keys = Vec::new();
        for ((key, after), (_, value)) in now.iter().zip(in_force.iter_mut()) {
            if after == value {
                continue;
            }
            if LIVE.contains(key) {
                changed.push((*key).to_owned());
                keys.push(*key);
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
        apply(Changed { live, aliases, plans }, &keys);
        logging::set_level(&config.log_level());
        let list = |keys: &[String]| if keys.is_empty() { "nothing".to_owned() } else { keys.join(" ") };
        tracing::info!(
            target: "magray::settings",
            changed = list(&changed),
            needs_restart = list(&needs_restart),
            "the settings were read again"
        );
        Ok(Reloaded { changed, needs_restart, certificate: self.tls.is_some() })
    }
}

/// Every setting with its value, in the order of the table. Secrets are compared and never printed.
fn shown(config: &Config) -> Vec<(&'static str, String)> {
    let settings = config.entries.iter().map(|entry| (entry.setting.key, entry.value.to_string()));
    settings.chain([("critics", config.critics_shown())]).collect()
}
