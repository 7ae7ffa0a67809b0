//! One file a command; this one holds what all of them are given.
//! Never reads the command line.

pub(crate) mod bench;
pub(crate) mod chat;
mod compute_args;
pub(crate) mod config;
mod constraint_args;
pub(crate) mod demo;
pub(crate) mod embed;
pub(crate) mod evaluate;
pub(crate) mod generate;
pub(crate) mod gpu;
pub(crate) mod index;
mod input_args;
pub(crate) mod manual;
pub(crate) mod mcp;
pub(crate) mod models;
pub(crate) mod pull;
pub(crate) mod rerank;
mod sampling_args;
pub(crate) mod search;
pub(crate) mod serve;
mod server_args;
pub(crate) mod similarity;
pub(crate) mod top;
pub(crate) mod version;
pub(crate) mod worker;

use std::{
    env,
    path::{Path, PathBuf},
};

use crate::{
    config::{Config, ConfigError, FlagValue, Inputs, unknown_variables},
    console::Console,
    logging,
};

pub(crate) struct Context {
    pub(crate) console: Console,
    config_file: Option<PathBuf>,
}

impl Context {
    pub(crate) fn new(console: Console, config_file: Option<PathBuf>) -> Self {
        Self { console, config_file }
    }

    /// Settles all settings, and starts the log as they say; these flags win over the rest.
    pub(crate) fn settle(&self, flags: &[FlagValue]) -> Result<Config, ConfigError> {
        self.settle_with_log(flags, false)
    }

    /// As [`Context::settle`], with a log that tells which models move and which devices come and go.
    pub(crate) fn settle_for_server(&self, flags: &[FlagValue]) -> Result<Config, ConfigError> {
        self.settle_with_log(flags, true)
    }

    fn settle_with_log(&self, flags: &[FlagValue], shows_moves: bool) -> Result<Config, ConfigError> {
        let config = read_settings(self.config_file.as_deref(), flags)?;
        logging::start(&config.log_level(), config.log_format(), shows_moves);
        for warning in unknown_variables(env::vars_os().map(|(name, _)| name)) {
            self.console.warn(warning);
        }
        Ok(config)
    }
}

fn read_settings(file: Option<&Path>, flags: &[FlagValue]) -> Result<Config, ConfigError> {
    // Without a current folder (it was removed) there is no file in it either.
    let folder = env::current_dir().unwrap_or_default();
    Config::resolve(&Inputs { file, flags, env: &|name| env::var_os(name), folder: &folder })
}
