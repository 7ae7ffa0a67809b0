//! What the store keeps: locks, leftovers, damage, listing, checking, removing.
//! Never reaches beyond its temporary folder.

use super::super::lock::ModelLock;
use super::super::{Damage, Depth, FileFault, ModelRef, PullError, PullEvent, Store, StoreError};
use super::fake_hub::{FakeHub, REPO};
use super::{Shop, fake_model, hub_at, model_ref, names_in, words};
use std::fs;
use std::sync::mpsc;

#[test]
fn two_pulls_at_once_make_one_download() {
    let hub = FakeHub::start();
    let options = hub_at(&hub.endpoint());
    let shop = Shop::new();
    let (store, model) = (&shop.store, &model_ref(REPO));
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        let mut second = None;
        let mut tell = Some(tell);
        // The first holds the lock when it starts; it goes on once the second one is seen waiting.
        let first = store.pull(model, &options, &mut |event| {
            if matches!(event, PullEvent::Started { .. }) {
                let (tell, options) = (tell.take().unwrap(), &options);
                second = Some(
                    scope.spawn(move || store.pull(model, options, &mut |event| tell.send(words(event)).unwrap())),
                );
                assert_eq!(told.recv().unwrap(), "waiting for tiny/model");
            }
        });
        let second = second.unwrap().join().unwrap();
        assert_eq!(first.unwrap(), second.unwrap());
        assert_eq!(told.iter().count(), 0, "the second pull must find the model there");
    });
    assert_eq!(hub.seen().len(), 6);
}

#[test]
fn leftovers_of_killed_pulls_are_removed_but_not_those_under_way() {
    let hub = FakeHub::start();
    let mut shop = Shop::new();
    let tmp = shop.store.root().join("tmp");
    for folder in ["tiny--model/model", "tiny--model~old", "dead--model/work/wheel", "live--model/model", "notes"] {
        fs::create_dir_all(tmp.join(folder)).unwrap();
        fs::write(tmp.join(folder).join("config.json"), "half").unwrap();
    }
    let _alive = ModelLock::acquire(&shop.store.root().join("locks/live--model.lock"), &mut || ()).unwrap();
    assert_eq!(shop.find(REPO), None);
    let dir = shop.pull(REPO, &hub_at(&hub.endpoint())).unwrap();
    assert_eq!(fs::read(dir.join("config.json")).unwrap(), fake_model::files()[0].1);
    assert_eq!(names_in(&tmp), ["live--model", "notes"]);
}

#[test]
fn a_damaged_model_is_not_found_and_is_pulled_anew() {
    let hub = FakeHub::start();
    let mut shop = Shop::new();
    let options = hub_at(&hub.endpoint());
    let dir = shop.pull(REPO, &options).unwrap();
    let weights = dir.join("model.safetensors");
    let manifest = dir.join("magray-model.json");
    let record = fs::read_to_string(&manifest).unwrap();
    let harms: [(&str, &dyn Fn()); 5] = [
        ("has 3 bytes", &|| fs::write(&weights, "cut").unwrap()),
        ("'model.safetensors' is missing", &|| fs::remove_file(&weights).unwrap()),
        ("is missing", &|| fs::remove_file(&manifest).unwrap()),
        ("cannot be read", &|| fs::write(&manifest, "{").unwrap()),
        ("is no file name", &|| fs::write(&manifest, record.replace("1_Pooling", "..")).unwrap()),
    ];
    for (reason, harm) in harms {
        harm();
        assert_eq!(shop.find(REPO), None, "{reason}");
        let listed = shop.store.list().unwrap();
        assert!(listed[0].state.as_ref().unwrap_err().to_string().contains(reason));
        shop.events.clear();
        shop.pull(REPO, &options).unwrap();
        assert!(
            shop.events[0].starts_with("replacing tiny/model") && shop.events[0].contains(reason),
            "{:?}",
            shop.events
        );
        assert_eq!(fs::read(&weights).unwrap(), fake_model::weights());
    }
    assert!(names_in(&shop.store.root().join("tmp")).is_empty());
}

#[test]
fn verify_reads_every_byte_only_on_demand() {
    let hub = FakeHub::start();
    let mut shop = Shop::new();
    let dir = shop.pull(REPO, &hub_at(&hub.endpoint())).unwrap();
    assert_eq!(shop.store.verify(REPO, Depth::Hashes).unwrap(), []);
    let mut flipped = fake_model::weights();
    *flipped.last_mut().unwrap() ^= 1;
    fs::write(dir.join("model.safetensors"), flipped).unwrap();
    fs::write(dir.join("config.json"), "").unwrap();
    fs::remove_file(dir.join("1_Pooling/config.json")).unwrap();
    let names = |faults: Vec<FileFault>| {
        let name = |fault| match fault {
            FileFault::Missing { file } => format!("{file} missing"),
            FileFault::WrongSize { file, .. } => format!("{file} size"),
            FileFault::WrongHash { file, .. } => format!("{file} hash"),
        };
        faults.into_iter().map(name).collect::<Vec<_>>()
    };
    let sizes = names(shop.store.verify(REPO, Depth::Sizes).unwrap());
    assert_eq!(sizes, ["1_Pooling/config.json missing", "config.json size"]);
    let hashes = names(shop.store.verify(REPO, Depth::Hashes).unwrap());
    assert_eq!(hashes, ["1_Pooling/config.json missing", "config.json size", "model.safetensors hash"]);
    fs::remove_file(dir.join("magray-model.json")).unwrap();
    let damaged = shop.store.verify(REPO, Depth::Sizes);
    assert!(matches!(damaged, Err(StoreError::Damaged { damage: Damage::NoManifest, .. })));
    assert!(matches!(shop.store.verify("no/model", Depth::Sizes), Err(StoreError::NotStored { .. })));
}

#[test]
fn models_are_listed_by_name_and_removed_one_by_one() {
    let hub = FakeHub::start();
    let mut shop = Shop::new();
    let names = |shop: &Shop| shop.store.list().unwrap().into_iter().map(|model| model.name).collect::<Vec<_>>();
    assert!(names(&shop).is_empty());
    shop.pull("tiny/model@v1/x", &hub_at(&hub.endpoint())).unwrap();
    shop.pull(REPO, &hub_at(&hub.endpoint())).unwrap();
    fs::create_dir_all(shop.store.root().join("models/not a model")).unwrap();
    fs::write(shop.store.root().join("models/a--file"), "").unwrap();
    assert_eq!(names(&shop), ["tiny/model", "tiny/model@v1/x"]);

    let lock = ModelLock::acquire(&shop.store.root().join("locks/tiny--model.lock"), &mut || ()).unwrap();
    assert!(matches!(shop.store.remove(REPO), Err(StoreError::Busy { .. })));
    drop(lock);
    shop.store.remove(REPO).unwrap();
    assert_eq!(names(&shop), ["tiny/model@v1/x"]);
    assert!(matches!(shop.store.remove(REPO), Err(StoreError::NotStored { .. })));
    // A model without its record can be removed too.
    fs::remove_file(shop.store.root().join("models/tiny--model@v1%2Fx/magray-model.json")).unwrap();
    shop.store.remove("tiny/model@v1/x").unwrap();
    assert!(names(&shop).is_empty());
}

#[test]
fn remove_takes_no_name_that_leads_out_of_the_store() {
    let shop = Shop::new();
    let outside = shop.store.root().parent().unwrap().join("precious");
    fs::create_dir_all(&outside).unwrap();
    fs::create_dir_all(shop.store.root().join("models")).unwrap();
    for name in
        ["", ".", "..", "../precious", "../../precious", "a/../../../precious", "/", outside.to_str().unwrap(), "a\0b"]
    {
        assert!(matches!(shop.store.remove(name), Err(StoreError::Name(_))), "{name:?}");
        assert!(matches!(shop.store.verify(name, Depth::Sizes), Err(StoreError::Name(_))), "{name:?}");
    }
    assert!(outside.is_dir() && shop.store.root().join("models").is_dir());
}

#[test]
fn a_folder_is_used_in_place() {
    let mut shop = Shop::new();
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().to_str().unwrap();
    assert_eq!(shop.find(name).unwrap(), folder.path());
    assert_eq!(shop.pull(name, &hub_at("http://127.0.0.1:1")).unwrap(), folder.path());
    assert!(!shop.store.root().exists(), "a folder needs no store");
    let missing = ModelRef::Folder(folder.path().join("missing"));
    assert!(matches!(shop.store.find(&missing), Err(StoreError::FolderMissing { .. })));
    let error = shop.store.pull(&missing, &hub_at("http://127.0.0.1:1"), &mut |_| ()).unwrap_err();
    assert!(matches!(error, PullError::Store(StoreError::FolderMissing { .. })));
}

#[test]
fn a_root_that_is_a_file_is_an_error_and_stays_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("file");
    fs::write(&root, "mine").unwrap();
    let error =
        Store::open(root.clone()).pull(&model_ref(REPO), &hub_at("http://127.0.0.1:1"), &mut |_| ()).unwrap_err();
    assert!(matches!(error, PullError::Store(StoreError::Disk(_))), "{error}");
    assert_eq!(fs::read(root).unwrap(), b"mine");
}
