//! Fetches one file, goes on where a broken connection left it, and compares it with the listing.
//! Never keeps a file of another size or hash than the hub listed, nor reads on without an end where it lists none.

use super::super::disk::{BLOCK_BYTES, Disk, HashedFile};
use super::super::manifest::{FileFault, StoredFile};
use super::super::pull_error::PullError;
use super::super::pull_event::{OnEvent, PullEvent};
use super::HubError;
use super::http::{Attempts, Client, Trouble};
use super::listing::RemoteFile;
use std::io::{ErrorKind, Read};
use std::path::Path;
use ureq::Body;
use ureq::http::Response;
use ureq::http::header::{CONTENT_LENGTH, CONTENT_RANGE};

/// A try that brought this much was no failure; a large file over a bad line may need many of them.
const PROGRESS_BYTES: u64 = 1024 * 1024;

/// One file to fetch.
pub(super) struct Job<'a> {
    pub(super) repo: &'a str,
    pub(super) url: &'a str,
    pub(super) file: &'a RemoteFile,
    pub(super) target: &'a Path,
    pub(super) disk: Disk,
}

/// Why a try ended.
enum Stop {
    Final(PullError),
    Passing(Trouble),
}

impl<E: Into<PullError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Final(error.into())
    }
}

/// Fetches a file, with as many tries as the policy allows.
pub(super) fn fetch_file(client: &Client, job: &Job<'_>, on_event: OnEvent<'_>) -> Result<StoredFile, PullError> {
    let name = &job.file.name;
    let mut out = HashedFile::create(job.target, job.disk.create)?;
    let mut attempts = Attempts::new(client, name);
    on_event(PullEvent::File { name, done: 0, total: job.file.size });
    loop {
        let before = out.bytes();
        let trouble = match fetch_rest(client, job, &mut out, on_event) {
            Ok(()) => break,
            Err(Stop::Final(error)) => return Err(error),
            Err(Stop::Passing(trouble)) => trouble,
        };
        if out.bytes() >= before + PROGRESS_BYTES {
            attempts.progressed();
        }
        match trouble {
            // Unlike for the listing: the hub was there a moment ago, so this may pass.
            Trouble::Unreachable { reason } => attempts.failed(reason, None, on_event)?,
            Trouble::Passing { reason, wait } => attempts.failed(reason, wait, on_event)?,
            Trouble::Redirect { to, reason } => return Err(HubError::BadRedirect { to, reason }.into()),
            Trouble::Status { status: 404, .. } => {
                return Err(HubError::MissingFile { repo: job.repo.to_owned(), file: name.clone() }.into());
            }
            Trouble::Status { status, .. } => return Err(client.refusal(status, job.repo, job.url).into()),
        }
    }
    let (size, sha256) = out.finish()?;
    match &job.file.sha256 {
        Some(expected) if *expected != sha256 => {
            let fault = FileFault::WrongHash { file: name.clone(), expected: expected.clone(), found: sha256 };
            Err(HubError::Content(fault).into())
        }
        _ => Ok(StoredFile { name: name.clone(), size, sha256 }),
    }
}

/// One try: asks for what is missing and appends it.
fn fetch_rest(client: &Client, job: &Job<'_>, out: &mut HashedFile, on_event: OnEvent<'_>) -> Result<(), Stop> {
    let name = &job.file.name;
    let mut response = match client.get(job.url, out.bytes()) {
        // The hub has no such range, so what is here cannot be the beginning of the file.
        Err(Trouble::Status { status: 416, .. }) if out.bytes() > 0 => {
            *out = HashedFile::create(job.target, job.disk.create)?;
            return Err(passing("the server has no such part of the file"));
        }
        answer => answer.map_err(Stop::Passing)?,
    };
    match first_byte(&response) {
        Some(first) if first == out.bytes() => {}
        Some(0) => *out = HashedFile::create(job.target, job.disk.create)?,
        _ => {
            *out = HashedFile::create(job.target, job.disk.create)?;
            return Err(passing("the server sent another part of the file than asked for"));
        }
    }
    let length = response.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let end = length.map(|length| out.bytes().saturating_add(length));
    let total = job.file.size.or(end);
    let limit = job.file.bytes_max();
    let too_large = || HubError::TooLarge { repo: job.repo.to_owned(), file: name.clone(), limit };
    if total.is_some_and(|total| total > limit) {
        return Err(too_large().into());
    }
    let wrong_size = |found: u64| FileFault::WrongSize { file: name.clone(), expected: total.unwrap_or(found), found };
    if let (Some(end), Some(total)) = (end, total)
        && end != total
    {
        return Err(HubError::Content(wrong_size(end)).into());
    }

    let mut reader = response.body_mut().as_reader();
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        let count = match reader.read(&mut block) {
            Ok(0) => break,
            Ok(count) => count,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(passing(&e.to_string())),
        };
        if total.is_none() && out.bytes() + count as u64 > limit {
            return Err(too_large().into());
        }
        out.write(&block[..count])?;
        if total.is_some_and(|total| out.bytes() > total) {
            return Err(HubError::Content(wrong_size(out.bytes())).into());
        }
        on_event(PullEvent::File { name, done: out.bytes(), total });
    }
    match total {
        Some(total) if out.bytes() < total => Err(passing("the connection was closed early")),
        _ => Ok(()),
    }
}

/// Where in the file an answer begins; `None` if that cannot be told.
fn first_byte(response: &Response<Body>) -> Option<u64> {
    if response.status().as_u16() != 206 {
        return Some(0);
    }
    let range = response.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}

fn passing(reason: &str) -> Stop {
    Stop::Passing(Trouble::Passing { reason: reason.to_owned(), wait: None })
}
