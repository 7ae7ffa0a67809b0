//! Models come and go while the server runs: pulled, loaded, unloaded, deleted, and called by other names.
//! One at a time; requests for others go on meanwhile, and requests that a model has taken are answered before it goes.

use std::time::Duration;

use magray_engine::{
    LoadError, PrecisionChoice,
    engine::{EngineModel, ModelSource},
    executors::BackendChoice,
    spec::SpecError,
    store::{HubError, ModelRef, PullError, PullEvent, StoreError},
};
use tokio::task::JoinError;
use tracing::Instrument;

use super::{
    app::App,
    errors::{Kind, Problem},
};

/// A model that goes has this long for the requests that it has taken; its own limit of time ends each of them.
const GOES_WITHIN: Duration = Duration::from_secs(120);

/// The name of a model of the hub or the store. Folders of this machine are not for clients to name.
fn hub_name(name: &str) -> Result<ModelRef, Problem> {
    // Ollama's clients put a tag behind it.
    let reference = ModelRef::parse(name.trim_end_matches(":latest"));
    match reference.map_err(|error| Problem::invalid("model", error.to_string()))? {
        ModelRef::Folder(_) => {
            Err(Problem::invalid("model", "name a model of the hub, org/name or org/name@revision, and not a folder"))
        }
        reference @ ModelRef::Hub(_) => Ok(reference),
    }
}

/// Does something with the models on a thread that may block, also where the caller has left. A few at a time.
pub(crate) async fn change_models<T: Send + 'static>(
    app: &App,
    change: impl FnOnce(&App) -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let permit = app.begin_move().ok_or_else(too_many)?;
    let (own, span) = (app.clone(), tracing::Span::current());
    let changing = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        span.in_scope(|| change(&own))
    });
    let failed = |_: JoinError| Err(Problem::new(Kind::Internal, "changing the models failed"));
    changing.in_current_span().await.unwrap_or_else(failed)
}

/// Brings a model into the store and serves it; its number. Blocks.
pub(crate) fn pull_model(app: &App, name: &str, on_event: &mut dyn FnMut(PullEvent<'_>)) -> Result<usize, Problem> {
    let reference = hub_name(name)?;
    let (store, settings) = app.catalogue().store()?;
    store.pull(&reference, &settings.pull_options(false), on_event).map_err(pull_problem)?;
    load_model(app, name)
}

/// Serves a model of the store; its number. Blocks.
pub(crate) fn load_model(app: &App, name: &str) -> Result<usize, Problem> {
    let reference = hub_name(name)?;
    let shown = reference.to_string();
    let (store, _) = app.catalogue().store()?;
    let folder = store.find(&reference).map_err(store_problem)?.ok_or_else(|| {
        let message = format!("'{shown}' is not in the store: pull it first");
        Problem::new(Kind::NoSuchModel, message).about("model")
    })?;
    let _only_one = app.catalogue().begin_adding();
    if let Some((number, _)) = app.models().iter().find(|(_, model)| model.name == shown) {
        return Ok(number);
    }
    let wrong = |error: SpecError| load_problem(&shown, &error.into());
    let (source, _) = ModelSource::in_folder(folder, BackendChoice::Auto, PrecisionChoice::Auto).map_err(wrong)?;
    let does = source.spec().map_err(wrong)?.does();
    let assigned = app.catalogue().assigned(&shown, does).filter(|_| !source.is_onnx());
    let plan = app.catalogue().plan_of(&shown);
    let added = app.engine().add_model(EngineModel { name: shown.clone(), assigned, source, plan });
    added.map_err(|error| load_problem(&shown, &error))?;
    let full = |error: magray_engine::RosterFull| load_problem(&shown, &error.into());
    app.metrics().add_model(&shown, does).map_err(full)?;
    let number = app.models().add(app.engine()).map_err(full)?;
    tracing::warn!(target: "magray::server", model = shown, "a model came");
    Ok(number)
}

/// Does not serve a model any more; its files stay. Waits for the requests that it has taken. Blocks.
pub(crate) fn unload_model(app: &App, name: &str) -> Result<String, Problem> {
    let number = app.models().named_exactly(name)?;
    let shown = app.models().get(number).name.clone();
    app.models().remove(number);
    app.engine().remove_model(number, GOES_WITHIN)?;
    tracing::warn!(target: "magray::server", model = shown, "a model went");
    Ok(shown)
}

/// Does not serve a model any more, and deletes its files from the store. Blocks.
pub(crate) fn delete_model(app: &App, name: &str) -> Result<String, Problem> {
    let (store, _) = app.catalogue().store()?;
    let served = app.models().named_exactly(name);
    let stored = match &served {
        Ok(number) => {
            let source = app.engine().model_source(*number);
            let folder = source.and_then(ModelSource::folder);
            let is_stored = |model: &magray_engine::store::StoredModel| folder == Some(&*model.dir);
            let known = store.list().map_err(store_problem)?.into_iter().find(is_stored);
            known.map(|model| model.name).ok_or_else(|| {
                Problem::invalid("model", "its files are not in the store: unload it, and delete them by hand")
            })?
        }
        Err(unknown) => {
            let reference = hub_name(name)?;
            store.find(&reference).map_err(store_problem)?.ok_or_else(|| unknown.clone())?;
            reference.to_string()
        }
    };
    if served.is_ok() {
        unload_model(app, name)?;
    }
    store.remove(&stored).map_err(store_problem)?;
    Ok(stored)
}

/// Lets a name mean a model, or nothing any more.
pub(crate) fn set_alias(app: &App, alias: &str, model: Option<&str>) -> Result<(), Problem> {
    const ALIAS_BYTES_MAX: usize = 256;
    const ALIASES_MAX: usize = 1024;
    if alias.trim() != alias || alias.is_empty() || alias.len() > ALIAS_BYTES_MAX || alias.contains(['=', ',']) {
        let message = format!("an alias has 1 to {ALIAS_BYTES_MAX} bytes, no spaces around it, and neither = nor ,");
        return Err(Problem::invalid("alias", message));
    }
    if app.models().aliases().len() >= ALIASES_MAX && model.is_some() {
        return Err(Problem::too_large("alias", format!("there are {ALIASES_MAX} aliases already: remove some")));
    }
    let number = model.map(|model| app.models().named_exactly(model)).transpose()?;
    app.models().set_alias(alias, number);
    Ok(())
}

pub(super) fn too_many() -> Problem {
    let message = "too many requests to move models are under way: retry when they are done";
    Problem::busy(Kind::Busy, message, Duration::from_secs(1))
}

fn load_problem(name: &str, error: &LoadError) -> Problem {
    Problem::invalid("model", format!("cannot load '{name}': {error}"))
}

fn store_problem(error: StoreError) -> Problem {
    let kind = match error {
        StoreError::Name(_) => Kind::Invalid,
        StoreError::NotStored { .. } | StoreError::FolderMissing { .. } => Kind::NoSuchModel,
        StoreError::Busy { .. } => Kind::Busy,
        StoreError::Disk(_) | StoreError::Damaged { .. } => Kind::Unavailable,
    };
    Problem::new(kind, error.to_string()).about("model")
}

fn pull_problem(error: PullError) -> Problem {
    let kind = match error {
        PullError::Store(error) => return store_problem(error),
        PullError::Hub(HubError::NoSuchRepo { .. } | HubError::NoSuchRevision { .. }) => Kind::NoSuchModel,
        PullError::NoPackage { .. } | PullError::Unusable { .. } => Kind::Invalid,
        PullError::Hub(_) | PullError::Pip(_) | PullError::AllSources { .. } => Kind::Unavailable,
    };
    Problem::new(kind, error.to_string()).about("model")
}
