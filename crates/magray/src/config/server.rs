//! The settings of the server, checked.
//! Reads the files of keys; opens no socket.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use super::{
    Config, ConfigError, Value,
    key_file::{WrittenKey, read_key_file},
};

#[derive(Clone)]
pub(crate) struct ServerSettings {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// As people name them; the first is the default.
    pub(crate) models: Vec<String>,
    /// Other names, each with the model that it means.
    pub(crate) aliases: Vec<(String, String)>,
    pub(crate) is_preloading: bool,
    pub(crate) openai_token_file: Option<PathBuf>,
    /// The certificate chain and its key.
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
    pub(crate) cors_origins: Vec<String>,
    pub(crate) connections_max: usize,
    /// Requests with a longer predicted wait are refused.
    pub(crate) queue_wait_max: Duration,
    /// Texts whose rows are remembered.
    pub(crate) text_cache: usize,
    pub(crate) head_within: Duration,
    /// From being told to stop to accepting no more connections.
    pub(crate) drain_delay: Duration,
    pub(crate) drain_within: Duration,
    /// Whether metrics have the names of vLLM too.
    pub(crate) has_vllm_metrics: bool,
    pub(crate) otlp_endpoint: Option<String>,
    pub(crate) live: LiveSettings,
}

/// What can change while the server runs.
#[derive(Clone)]
pub(crate) struct LiveSettings {
    /// Keys of users; without any, everyone may compute.
    pub(crate) api_keys: Vec<WrittenKey>,
    pub(crate) admin_keys: Vec<WrittenKey>,
    /// Names that the server answers to beside its own: host names, addresses, `*.domain`, or `*`.
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) requests_per_minute: Option<u64>,
    pub(crate) tokens_per_minute: Option<u64>,
    /// Names of keys of users that may ask for a high priority, or `*`.
    pub(crate) high_priority_keys: Vec<String>,
    pub(crate) limits: RequestLimits,
    pub(crate) held_bytes_max: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestLimits {
    pub(crate) body_bytes_max: usize,
    pub(crate) texts_max: usize,
    pub(crate) text_bytes_max: usize,
    pub(crate) tokens_max: usize,
    /// From the first byte of a body to its last.
    pub(crate) body_within: Duration,
    /// From the head of a request to its answer.
    pub(crate) answer_within: Duration,
    /// Whether texts that are longer than the model reads are cut where the request does not say.
    pub(crate) is_cutting: bool,
}

impl Config {
    pub(crate) fn server(&self) -> Result<ServerSettings, ConfigError> {
        let seconds = |key: &str| Duration::from_secs(self.whole(key).unwrap_or_default() as u64);
        let named = self.texts("server.models");
        let tls = match (self.path("server.tls_cert"), self.path("server.tls_key")) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(ConfigError::HalfTls),
        };
        Ok(ServerSettings {
            host: self.text("server.host").unwrap_or_default(),
            port: self.whole("server.port").and_then(|port| u16::try_from(port).ok()).unwrap_or_default(),
            models: if named.is_empty() { self.text("model.name").into_iter().collect() } else { named },
            aliases: self.aliases()?,
            openai_token_file: self.path("server.openai_token_file"),
            is_preloading: self.is_on("gpu.memory.preload"),
            tls,
            cors_origins: self.cors_origins()?,
            connections_max: self.whole("server.connections_max").unwrap_or(1),
            queue_wait_max: self.queue_wait(),
            text_cache: self.whole("server.text_cache").unwrap_or_default(),
            head_within: seconds("server.head_timeout_s"),
            drain_delay: seconds("server.drain_delay_s"),
            drain_within: seconds("server.drain_timeout_s"),
            has_vllm_metrics: self.is_on("server.vllm_metrics"),
            otlp_endpoint: self.text("server.tracing.otlp_endpoint"),
            live: LiveSettings {
                api_keys: self.keys("server.api_keys", "server.api_keys_file")?,
                admin_keys: self.keys("server.admin_keys", "server.admin_keys_file")?,
                allowed_hosts: self.allowed_hosts()?,
                requests_per_minute: self.whole("server.requests_per_minute").map(|rate| rate as u64),
                tokens_per_minute: self.whole("server.tokens_per_minute").map(|rate| rate as u64),
                high_priority_keys: self.texts("server.high_priority_keys"),
                limits: self.request_limits(),
                held_bytes_max: self.whole("server.held_bytes_max").unwrap_or_default() as u64,
            },
        })
    }

    /// A day at most.
    fn queue_wait(&self) -> Duration {
        let Value::Number(seconds) = self.entry("server.queue_wait_s").value else { return Duration::ZERO };
        Duration::from_secs_f64(seconds.clamp(0.0, 86_400.0))
    }

    fn request_limits(&self) -> RequestLimits {
        let whole = |key: &str| self.whole(key).unwrap_or(usize::MAX);
        RequestLimits {
            body_bytes_max: whole("server.body_bytes_max"),
            texts_max: whole("server.texts_max"),
            text_bytes_max: whole("server.text_bytes_max"),
            tokens_max: whole("server.tokens_max"),
            body_within: Duration::from_secs(whole("server.body_timeout_s") as u64),
            answer_within: Duration::from_secs(whole("server.request_timeout_s") as u64),
            is_cutting: self.is_on("server.truncate"),
        }
    }

    fn keys(&self, setting: &str, file: &str) -> Result<Vec<WrittenKey>, ConfigError> {
        let mut keys: Vec<_> = self.texts(setting).into_iter().map(WrittenKey::unnamed).collect();
        if let Some(path) = self.path(file) {
            keys.extend(read_key_file(&path, &format!("{file}, {}", self.entry(file).source))?);
        }
        Ok(keys)
    }

    fn aliases(&self) -> Result<Vec<(String, String)>, ConfigError> {
        let entry = self.entry("server.aliases");
        let wrong = |shown: &str| ConfigError::BadValue {
            location: format!("server.aliases ({})", entry.source),
            shown: shown.to_owned(),
            allowed: "alias=model, separated by commas".to_owned(),
        };
        let pair = |text: String| match text.split_once('=').map(|(alias, model)| (alias.trim(), model.trim())) {
            Some((alias, model)) if !alias.is_empty() && !model.is_empty() => Ok((alias.to_owned(), model.to_owned())),
            _ => Err(wrong(&text)),
        };
        self.texts("server.aliases").into_iter().map(pair).collect()
    }

    fn cors_origins(&self) -> Result<Vec<String>, ConfigError> {
        let entry = self.entry("server.cors_origins");
        let origins = self.texts("server.cors_origins");
        // `*` beside others would be meant for less than it does.
        let is_all = origins == ["*"];
        match origins.iter().find(|origin| !is_all && !is_origin(origin)) {
            None => Ok(origins),
            Some(wrong) => Err(ConfigError::BadValue {
                location: format!("server.cors_origins ({})", entry.source),
                shown: wrong.clone(),
                allowed: "scheme://host or scheme://host:port, separated by commas, or * alone".to_owned(),
            }),
        }
    }

    fn allowed_hosts(&self) -> Result<Vec<String>, ConfigError> {
        let entry = self.entry("server.allowed_hosts");
        let hosts = self.texts("server.allowed_hosts");
        match hosts.iter().find(|host| !is_host_pattern(host)) {
            None => Ok(hosts),
            Some(wrong) => Err(ConfigError::BadValue {
                location: format!("server.allowed_hosts ({})", entry.source),
                shown: wrong.clone(),
                allowed: "names and addresses without ports, such as embed.example.com or *.example.com, or *"
                    .to_owned(),
            }),
        }
    }

    pub(super) fn texts(&self, key: &str) -> Vec<String> {
        match &self.entry(key).value {
            Value::List(items) => items.clone(),
            _ => Vec::new(),
        }
    }
}

fn is_origin(text: &str) -> bool {
    let Some((scheme, host)) = text.split_once("://") else { return false };
    let is_scheme =
        !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let is_host =
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte));
    is_scheme && is_host
}

/// Whether a text can stand in `server.allowed_hosts`: a name or address without a port, `*.domain`, or `*`.
fn is_host_pattern(text: &str) -> bool {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if text == "*" || bare.parse::<IpAddr>().is_ok() {
        return true;
    }
    let name = text.strip_prefix("*.").unwrap_or(text);
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    name.trim_end_matches('.').split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_names_without_ports_and_paths() {
        for right in ["*", "a", "a.example", "*.a.example", "a_b-c.example.", "10.0.0.1", "::1", "[::1]"] {
            assert!(is_host_pattern(right), "{right}");
        }
        for wrong in ["", "a:80", "http://a", "a/b", "a.*", "*a.example", "*.", "a..b", "a b"] {
            assert!(!is_host_pattern(wrong), "{wrong}");
        }
    }
}
