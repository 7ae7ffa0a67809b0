//! The Hugging Face hub as a source: lists a repository, then fetches the files of the model.
//! Never trusts a name, size or hash before it is checked; knows nothing of the store's layout.

mod download;
mod http;
mod listing;

pub use http::RetryPolicy;

use super::disk::Disk;
use super::manifest::{Origin, Source};
use super::model_ref::HubModel;
use super::pull_error::{DEFAULT_ENDPOINT, HubError, PullError};
use super::pull_event::{Delivery, OnEvent, PullEvent};
use http::{Attempts, Client, Trouble};
use listing::Listing;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// How the hub is reached.
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// The address of the hub or of a mirror, with no user name in it.
    pub endpoint: String,
    /// Opens private and gated repositories of this hub. Sent to the endpoint's own host and port, and only by https.
    pub token: Option<Token>,
    /// How often a request is repeated, and after what delay.
    pub retry: RetryPolicy,
    /// How long a connection may take to come about. Short: a wall that swallows packets should show soon.
    pub connect_timeout: Duration,
    /// How long the hub may be silent in the middle of an answer.
    pub read_timeout: Duration,
    /// Use the proxy that the environment names (`HTTPS_PROXY`, `NO_PROXY` and so on), if any.
    pub proxy_from_env: bool,
}

impl Default for HubOptions {
    fn default() -> Self {
        Self {
            endpoint: DEFAULT_ENDPOINT.to_owned(),
            token: None,
            retry: RetryPolicy::default(),
            connect_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(30),
            proxy_from_env: true,
        }
    }
}

/// A secret for the hub; it shows in no log.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Takes a token; white space around it does not count.
    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// A hub, ready to be asked.
pub(super) struct Hub {
    client: Client,
    endpoint: String,
}

impl Hub {
    pub(super) fn new(options: &HubOptions) -> Result<Self, HubError> {
        let endpoint = options.endpoint.trim_end_matches('/').to_owned();
        let host = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
        // A user in the address would end up in records and messages; a path is what some mirrors have.
        let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '@' | '?' | '#');
        if !host.is_some_and(|host| !host.is_empty() && host.chars().all(plain)) {
            return Err(HubError::BadEndpoint { endpoint });
        }
        let token = options.token.as_ref().map(|token| token.0.clone());
        if token.as_ref().is_some_and(|token| token.is_empty() || !token.chars().all(|c| c.is_ascii_graphic())) {
            return Err(HubError::BadToken);
        }
        Ok(Self { client: Client::new(options, token), endpoint })
    }

    /// Fetches all files of a model into a folder.
    pub(super) fn fetch_model(
        &self,
        model: &HubModel,
        dir: &Path,
        disk: Disk,
        on_event: OnEvent<'_>,
    ) -> Result<Delivery, PullError> {
        let listing = self.list(model, on_event)?;
        let wanted = listing.choose_files(model.repo())?;
        // Sizes that are not listed count as nothing here; the files are bounded as they come.
        let listed = wanted.iter().filter_map(|file| file.size).fold(0, u64::saturating_add);
        disk.check_room(dir, listed)?;
        let bytes = wanted.iter().all(|file| file.size.is_some()).then_some(listed);
        on_event(PullEvent::Listed { files: wanted.len(), bytes });
        let mut files = Vec::with_capacity(wanted.len());
        for file in &wanted {
            // By commit, not by branch: all files are of one state even if someone pushes meanwhile.
            let url = format!("{}/{}/resolve/{}/{}", self.endpoint, model.repo(), listing.commit(), file.name);
            let job = download::Job { repo: model.repo(), url: &url, file, target: &dir.join(&file.name), disk };
            files.push(download::fetch_file(&self.client, &job, on_event)?);
        }
        let location = format!("{}/{}", self.endpoint, model.repo());
        let origin = Origin { source: Source::Hub, location, revision: listing.commit().to_owned() };
        Ok(Delivery { origin, files })
    }

    fn list(&self, model: &HubModel, on_event: OnEvent<'_>) -> Result<Listing, HubError> {
        let revision = model.revision().unwrap_or("main");
        let (repo, branch) = (model.repo(), revision.replace('/', "%2F"));
        let url = format!("{}/api/models/{repo}/revision/{branch}?blobs=true", self.endpoint);
        let mut attempts = Attempts::new(&self.client, "the list of files");
        loop {
            let trouble = match self.client.get_text(&url) {
                Ok(text) => return Listing::parse(repo, &text),
                Err(trouble) => trouble,
            };
            match trouble {
                // Not repeated: without a network the user, or the next source, should know at once.
                Trouble::Unreachable { reason } => {
                    return Err(HubError::Unreachable { endpoint: self.endpoint.clone(), reason });
                }
                Trouble::Passing { reason, wait } => attempts.failed(reason, wait, on_event)?,
                Trouble::Status { status: 404, code } if code.as_deref() == Some("RevisionNotFound") => {
                    return Err(HubError::NoSuchRevision { repo: repo.to_owned(), revision: revision.to_owned() });
                }
                Trouble::Redirect { to, reason } => return Err(HubError::BadRedirect { to, reason }),
                Trouble::Status { status: 404, .. } => return Err(HubError::NoSuchRepo { repo: repo.to_owned() }),
                Trouble::Status { status, .. } => return Err(self.client.refusal(status, repo, &url)),
            }
        }
    }
}
