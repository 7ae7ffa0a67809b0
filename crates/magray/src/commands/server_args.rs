//! Flags of the commands that can let a running server compute.
//! Asks no server.

use clap::Args;
use magray_engine::engine::Priority;

use crate::{
    config::Config,
    remote::{Remote, RemoteOptions},
};

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ServerArgs {
    /// Let this server compute, such as http://127.0.0.1:7860; a key is taken from MAGRAY_API_KEY
    #[arg(long, value_name = "URL", conflicts_with_all = ["device", "precision", "threads", "cpu_path"])]
    pub(crate) server: Option<String>,
    /// How urgent it is to the server: high, normal or low
    #[arg(long, value_name = "PRIORITY", requires = "server")]
    priority: Option<Priority>,
}

impl ServerArgs {
    /// The server, if one is named; its default model unless another is set.
    pub(crate) fn remote(&self, config: &Config) -> Option<Remote> {
        let url = self.server.clone()?;
        let (key, model, priority) = (config.api_key(), config.model_if_set(), self.priority);
        Some(Remote::new(RemoteOptions { url, key, model, priority }))
    }
}
