//! Why a command stopped, and the exit code for it.
//! Prints nothing.

use magray_engine::{
    EmbedError, LoadError, Refusal,
    engine::EngineError,
    gpu::Declined,
    health::LedgerError,
    store::{NameError, PullError, StoreError},
};

pub(crate) use crate::exit_code::Exit;
use crate::{
    config::ConfigError,
    control::{AskError, RefusalCode},
    generation::JobError,
    input::InputError,
    output::OutputError,
    remote::RemoteError,
    server::StartError,
};

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
    #[error("'{model}' is not in the store{hint}: pull it with `magray pull {model}`")]
    NotPulled { model: String, hint: String },
    #[error(
        "'{name}' is no well-known model; did you mean '{meant}'? Write org/name for another, or ./{name} for a folder"
    )]
    UnknownModel { name: String, meant: String },
    #[error("'{name}' is not in the store, which holds {there}")]
    NotStored { name: String, there: String },
    #[error("cannot read the model's files: {0}")]
    Model(std::io::Error),
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
    #[error(transparent)]
    Job(JobError),
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error(transparent)]
    Index(magray_index::Error),
    #[error("{0}; `--server URL` asks the server that has it open")]
    FolderInUse(magray_index::Error),
    #[error("the system refused a thread: {0}")]
    Thread(std::io::Error),
    #[error(transparent)]
    Worker(#[from] magray_engine::ServeError),
    #[error("cannot find this program's own file to start workers from: {0}")]
    OwnProgram(std::io::Error),
    #[error(transparent)]
    Serve(#[from] StartError),
    #[error("no magray is running{}: there is no model to move", pid.map(|pid| format!(" with pid {pid}")).unwrap_or_default())]
    NoEngine { pid: Option<u32> },
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error("the terminal refused: {0}")]
    Terminal(std::io::Error),
    #[error("the demonstration failed: {0}")]
    Demo(String),
    #[error("the critics rejected the text")]
    Rejected,
    #[error("the critics could not decide: one that counts gave no verdict")]
    Undecided,
    #[error("{0}; gpu.sandbox = \"off\" uses GPUs without it")]
    NotConfined(String),
}

impl Failure {
    /// The code to exit with; `None` when the reader of our output has left, which is no failure.
    pub(crate) fn exit(&self) -> Option<Exit> {
        Some(match self {
            Self::Usage(_) | Self::Config(_) => Exit::Usage,
            Self::Input(_) => Exit::Input,
            Self::Output(OutputError::ReaderGone) => return None,
            Self::Output(OutputError::UnknownEnding { .. } | OutputError::OtherRecipe { .. }) => Exit::Usage,
            Self::Output(_) => Exit::Disk,
            Self::Name(_) | Self::Model(_) => Exit::Model,
            Self::NotPulled { .. } | Self::UnknownModel { .. } | Self::NotStored { .. } => Exit::Model,
            Self::Store(error) => exit_of_store(error),
            Self::Pull(PullError::Store(error)) => exit_of_store(error),
            Self::Pull(_) => Exit::Pull,
            Self::Load { reason, .. } => exit_of_load(reason),
            Self::Device(_) | Self::NoSuchGpu(_) => Exit::Device,
            Self::Ledger(_) => Exit::Disk,
            Self::Embed(error) => exit_of_embed(error),
            Self::Engine(error) | Self::Job(JobError::Engine(error)) => exit_of_engine(error),
            Self::Job(_) => Exit::Usage,
            Self::Remote(RemoteError::Unreachable { .. }) => Exit::NoEngine,
            Self::Remote(RemoteError::Refused { status: 404, .. }) => Exit::Model,
            Self::Remote(_) => Exit::NotDone,
            Self::Index(error) => exit_of_index(error),
            Self::FolderInUse(_) => Exit::NotDone,
            Self::Thread(_) => Exit::Internal,
            Self::Worker(magray_engine::ServeError::NoSupervisor) => Exit::Usage,
            Self::Worker(_) => Exit::Internal,
            Self::Serve(error) => exit_of_start(error),
            Self::Rejected => Exit::Rejected,
            Self::Undecided => Exit::Undecided,
            Self::NotConfined(_) => Exit::Device,
            Self::NoEngine { .. } => Exit::NoEngine,
            Self::Ask(error) => exit_of_ask(error),
            Self::OwnProgram(_) | Self::Demo(_) | Self::Terminal(_) => Exit::Internal,
        })
    }
}

impl From<JobError> for Failure {
    fn from(error: JobError) -> Self {
        match error {
            JobError::Engine(error) => Self::Engine(error),
            error => Self::Job(error),
        }
    }
}

impl From<magray_index::Error> for Failure {
    fn from(error: magray_index::Error) -> Self {
        match error {
            magray_index::Error::Locked { .. } => Self::FolderInUse(error),
            error => Self::Index(error),
        }
    }
}

fn exit_of_index(error: &magray_index::Error) -> Exit {
    use magray_index::Error;
    match error {
        Error::NotFound { .. } | Error::Exists { .. } | Error::BadInput(_) => Exit::Input,
        Error::Locked { .. } | Error::Replaced => Exit::NotDone,
        Error::Full | Error::ReadOnly | Error::Corrupt { .. } | Error::Store(_) => Exit::Disk,
    }
}

fn exit_of_store(error: &StoreError) -> Exit {
    match error {
        StoreError::Disk(_) => Exit::Disk,
        StoreError::Name(_) | StoreError::FolderMissing { .. } | StoreError::NotStored { .. } => Exit::Model,
        StoreError::Damaged { .. } | StoreError::Busy { .. } => Exit::Model,
    }
}

fn exit_of_start(error: &StartError) -> Exit {
    match error {
        StartError::System(_) => Exit::Internal,
        StartError::Load { reason, .. } => exit_of_load(reason),
        StartError::Device(_) => Exit::Device,
        _ => Exit::Usage,
    }
}

fn exit_of_ask(error: &AskError) -> Exit {
    match error {
        AskError::Refused { refusal, .. } if refusal.code == RefusalCode::UnknownModel => Exit::Model,
        AskError::Gone { .. } => Exit::NoEngine,
        AskError::Refused { .. } | AskError::Silent { .. } | AskError::Unreachable { .. } => Exit::NotDone,
    }
}

fn exit_of_load(error: &LoadError) -> Exit {
    match error {
        LoadError::Cpu(_) | LoadError::Device(_) | LoadError::NoOnnx | LoadError::GpuLayers(_) | LoadError::KvBits => {
            Exit::Device
        }
        LoadError::SeveralGpus { .. } | LoadError::NoPlace { .. } => Exit::Device,
        LoadError::Spec(_) | LoadError::Weights(_) | LoadError::Tokenizer(_) | LoadError::Executor(_) => Exit::Model,
        LoadError::TooLarge { .. } => Exit::Model,
        LoadError::Faults(_) => Exit::Usage,
        LoadError::Full(_) | LoadError::Thread(_) => Exit::Internal,
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
        EmbedError::UnknownPrompt { .. } | EmbedError::Context { .. } => Exit::Usage,
        EmbedError::Sampling(_) | EmbedError::Constraint(_) => Exit::Usage,
        EmbedError::UnknownId { .. } | EmbedError::TokenCount { .. } | EmbedError::LongPrompt { .. } => Exit::Input,
        EmbedError::Tokenize(_) | EmbedError::WrongTask { .. } | EmbedError::Constrained(_) => Exit::Model,
        EmbedError::Gpu(_) | EmbedError::Executor(_) => Exit::Device,
        // Only a synthetic model has none, and no command gives texts to one.
        EmbedError::NoTokenizer => Exit::Internal,
    }
}
