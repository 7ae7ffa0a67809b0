//! The exit codes and what leads to each.
//! Prints nothing.

use std::process::ExitCode;

use magray_engine::{
    EmbedError, LoadError, Refusal,
    engine::EngineError,
    gpu::{CudaError, Declined},
    health::LedgerError,
    store::{NameError, PullError, StoreError},
};

#[cfg(unix)]
use crate::control::{AskError, RefusalCode};
use crate::{commands::bench::alloc::TraceError, config::ConfigError, input::InputError, output::OutputError};

/// How a command ends when it does not succeed. The codes are a promise to scripts: they never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Internal,
    Usage,
    Input,
    Model,
    Pull,
    Disk,
    Device,
    NoEngine,
    NotDone,
    Interrupted,
}

impl Exit {
    /// Every code, in the order of its number.
    pub(crate) const ALL: [Self; 10] = [
        Self::Internal,
        Self::Usage,
        Self::Input,
        Self::Model,
        Self::Pull,
        Self::Disk,
        Self::Device,
        Self::NoEngine,
        Self::NotDone,
        Self::Interrupted,
    ];

    /// The number that the shell sees.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Internal => 1,
            Self::Usage => 2,
            Self::Input => 3,
            Self::Model => 4,
            Self::Pull => 5,
            Self::Disk => 6,
            Self::Device => 7,
            Self::NoEngine => 8,
            Self::NotDone => 9,
            Self::Interrupted => 130,
        }
    }

    /// What it says, as a phrase.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Internal => "a fault of magray itself",
            Self::Usage => "the command line or the configuration is wrong",
            Self::Input => "the input cannot be read, or a text in it is not acceptable",
            Self::Model => "there is no such model, or it is broken",
            Self::Pull => "a model could not be pulled: network, hub or pip",
            Self::Disk => "the disk or the output refused a write",
            Self::Device => "the device or CPU path asked for is not available, or failed",
            Self::NoEngine => "no magray is running that could do it",
            Self::NotDone => "a magray that runs did not do it, or not in time",
            Self::Interrupted => "interrupted (Ctrl-C or a termination signal); no half-written output is left",
        }
    }

    /// The list for `magray --help`.
    pub(crate) fn table() -> String {
        let lines: Vec<String> =
            Self::ALL.iter().map(|exit| format!("  {:>3}  {}", exit.code(), exit.meaning())).collect();
        format!("Exit codes:\n    0  success\n{}", lines.join("\n"))
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why a command stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Pull(#[from] PullError),
    #[error("'{model}' is not in the store: pull it with `magray pull {model}`")]
    NotPulled { model: String },
    #[error("cannot load '{model}': {reason}")]
    Load { model: String, reason: Box<LoadError> },
    #[error(transparent)]
    Device(Refusal),
    #[error("{0}; `magray gpu info` lists the GPUs, and a GPU that is gone is reset by its UUID (cuda:GPU-...)")]
    NoSuchGpu(Declined),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Embed(#[from] EmbedError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("the system refused a thread: {0}")]
    Thread(std::io::Error),
    #[error("there is no GPU whose memory could be measured: {0}; `--device simulated` measures the pool without one")]
    NoGpuToMeasure(Declined),
    #[error("the GPU gave no memory: {0}")]
    Memory(CudaError),
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[cfg(unix)]
    #[error(transparent)]
    Worker(#[from] magray_engine::ServeError),
    #[cfg(unix)]
    #[error("cannot find this program's own file to start workers from: {0}")]
    OwnProgram(std::io::Error),
    #[cfg(unix)]
    #[error(transparent)]
    Serve(#[from] crate::server::StartError),
    #[cfg(unix)]
    #[error("no magray is running{}: there is no model to move", pid.map(|pid| format!(" with pid {pid}")).unwrap_or_default())]
    NoEngine { pid: Option<u32> },
    #[cfg(unix)]
    #[error(transparent)]
    Ask(#[from] AskError),
    #[cfg(unix)]
    #[error("{0}; gpu.sandbox = \"off\" uses GPUs without it")]
    NotConfined(String),
    /// A check of magray by itself that it did not pass.
    #[cfg(unix)]
    #[error("{0}")]
    Broken(String),
}

impl Failure {
    /// The code to exit with; `None` when the reader of our output has left, which is no failure.
    pub(crate) fn exit(&self) -> Option<Exit> {
        Some(match self {
            Self::Usage(_) | Self::Config(_) => Exit::Usage,
            Self::Input(_) => Exit::Input,
            Self::Output(OutputError::ReaderGone) => return None,
            Self::Output(_) => Exit::Disk,
            Self::Name(_) | Self::NotPulled { .. } => Exit::Model,
            Self::Store(error) => exit_of_store(error),
            Self::Pull(PullError::Store(error)) => exit_of_store(error),
            Self::Pull(_) => Exit::Pull,
            Self::Load { reason, .. } => exit_of_load(reason),
            Self::Device(_) | Self::NoSuchGpu(_) => Exit::Device,
            Self::Ledger(_) => Exit::Disk,
            Self::Embed(error) => exit_of_embed(error),
            Self::Engine(error) => exit_of_engine(error),
            Self::Thread(_) => Exit::Internal,
            Self::NoGpuToMeasure(_) | Self::Memory(_) => Exit::Device,
            Self::Trace(_) => Exit::Input,
            #[cfg(unix)]
            Self::Worker(magray_engine::ServeError::NoSupervisor) => Exit::Usage,
            #[cfg(unix)]
            Self::Worker(_) => Exit::Internal,
            #[cfg(unix)]
            Self::Serve(crate::server::StartError::System(_)) => Exit::Internal,
            #[cfg(unix)]
            Self::Serve(_) => Exit::Usage,
            #[cfg(unix)]
            Self::NotConfined(_) => Exit::Device,
            #[cfg(unix)]
            Self::NoEngine { .. } => Exit::NoEngine,
            #[cfg(unix)]
            Self::Ask(error) => exit_of_ask(error),
            #[cfg(unix)]
            Self::OwnProgram(_) | Self::Broken(_) => Exit::Internal,
        })
    }
}

fn exit_of_store(error: &StoreError) -> Exit {
    match error {
        StoreError::Disk(_) => Exit::Disk,
        StoreError::Name(_) | StoreError::FolderMissing { .. } | StoreError::NotStored { .. } => Exit::Model,
        StoreError::Damaged { .. } | StoreError::Busy { .. } => Exit::Model,
    }
}

#[cfg(unix)]
fn exit_of_ask(error: &AskError) -> Exit {
    match error {
        AskError::Refused { refusal, .. } if refusal.code == RefusalCode::UnknownModel => Exit::Model,
        AskError::Gone { .. } => Exit::NoEngine,
        AskError::Refused { .. } | AskError::Silent { .. } | AskError::Unreachable { .. } => Exit::NotDone,
    }
}

fn exit_of_load(error: &LoadError) -> Exit {
    match error {
        LoadError::Cpu(_) | LoadError::Device(_) => Exit::Device,
        LoadError::Spec(_) | LoadError::Weights(_) | LoadError::Tokenizer(_) => Exit::Model,
        LoadError::Thread(_) => Exit::Internal,
    }
}

fn exit_of_engine(error: &EngineError) -> Exit {
    match error {
        EngineError::Text(error) => exit_of_embed(error),
        EngineError::NoDevice { .. } => Exit::Device,
        _ => Exit::Internal,
    }
}

fn exit_of_embed(error: &EmbedError) -> Exit {
    match error {
        EmbedError::UnknownPrompt { .. } => Exit::Usage,
        EmbedError::UnknownId { .. } | EmbedError::TokenCount { .. } => Exit::Input,
        EmbedError::Tokenize(_) | EmbedError::WrongTask { .. } => Exit::Model,
        EmbedError::Gpu(_) | EmbedError::NoSpare { .. } => Exit::Device,
        // Only a synthetic model has none, and no command gives texts to one.
        EmbedError::NoTokenizer => Exit::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_rise() {
        let codes = Exit::ALL.map(Exit::code);
        assert!(codes.is_sorted_by(|a, b| a < b), "{codes:?}");
    }
}
