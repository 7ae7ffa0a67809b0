//! How long a model stays loaded, as Ollama's clients say it with each request.
//! Changes nothing for callers that may not change anything.

use std::time::Duration;

use http::HeaderMap;
use magray_engine::engine::{Move, Priority};

use crate::server::{
    apis::gpu, app::App, errors::Problem, keys::Access, requests::ollama_chat::KeepAlive, scope::RequestScope,
};

/// What a request says of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keeping {
    model: usize,
    /// `None`: nothing.
    timeout: Option<Timeout>,
}

#[derive(Clone, Copy, Debug)]
enum Timeout {
    Never,
    After(Duration),
}

/// What has become of a model for a request that asked nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resident {
    Loaded,
    Unloaded,
}

/// The longest time that is told apart from for ever.
const TIMEOUT_S_MAX: f64 = 1e9;

impl Keeping {
    pub(super) fn of(app: &App, model: Option<&str>, keep_alive: Option<&KeepAlive>) -> Result<Self, Problem> {
        let model = app.generator(model)?;
        let unreadable = || Problem::invalid("keep_alive", "keep_alive is a number of seconds, or a text such as 5m");
        let timeout = match keep_alive {
            None => None,
            Some(keep_alive) => Some(match keep_alive.seconds().ok_or_else(unreadable)? {
                Some(seconds) if seconds <= TIMEOUT_S_MAX => Timeout::After(Duration::from_secs_f64(seconds)),
                _ => Timeout::Never,
            }),
        };
        Ok(Self { model, timeout })
    }

    pub(super) fn model(&self) -> usize {
        self.model
    }

    /// Loads the model, or unloads it where it is to stay no time at all.
    pub(super) async fn move_model(
        &self,
        app: &App,
        headers: &HeaderMap,
        scope: &RequestScope,
    ) -> Result<Resident, Problem> {
        let name = &app.models().get(self.model).name;
        if matches!(self.timeout, Some(Timeout::After(time)) if time.is_zero()) {
            app.admit(&app.live(), headers, Access::Change, scope.peer)?;
            gpu::moved(app, Some(name), Move::Release).await?;
            return Ok(Resident::Unloaded);
        }
        self.apply(app, headers, scope);
        gpu::moved(app, Some(name), Move::Preheat(Priority::Normal)).await?;
        Ok(Resident::Loaded)
    }

    /// Lets the model stay as long as the request says, if its caller may.
    pub(super) fn apply(&self, app: &App, headers: &HeaderMap, scope: &RequestScope) {
        let Some(timeout) = self.timeout else { return };
        if app.admit(&app.live(), headers, Access::Change, scope.peer).is_err() {
            return;
        }
        let timeout = match timeout {
            Timeout::Never => None,
            Timeout::After(time) => Some(time),
        };
        if let Err(error) = app.engine().set_idle_timeout(self.model, timeout) {
            // It has gone meanwhile.
            tracing::debug!(target: "magray::server", %error, "a model kept its timeout");
        }
    }
}
