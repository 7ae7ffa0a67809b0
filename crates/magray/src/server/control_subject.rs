//! The server as its control socket sees it: the engine, and the models that are served.
//! Asks for no key: the socket is for the same user's programs.

use std::time::Duration;

use magray_engine::engine::{EngineError, Moved};

use super::{
    app::App,
    errors::{Kind, Problem},
    model_changes::{load_model, set_alias, unload_model},
};
use crate::control::{Change, Cleared, Controlled, EngineReport, EngineSubject, Refusal, RefusalCode, ServedChange};

pub(super) struct ServerSubject {
    pub(super) engine: EngineSubject,
    pub(super) app: App,
}

impl Controlled for ServerSubject {
    fn report(&self) -> EngineReport {
        self.engine.report()
    }

    fn clear_cache(&self) -> Cleared {
        self.engine.clear_cache()
    }

    fn metrics(&self) -> Result<String, Refusal> {
        Ok(self.app.render_metrics())
    }

    fn change(&self, model: usize, change: Change, within: Duration) -> Result<Moved, EngineError> {
        self.engine.change(model, change, within)
    }

    fn change_served(&self, change: ServedChange<'_>) -> Result<Vec<String>, Refusal> {
        let app = &self.app;
        let done = match change {
            ServedChange::Load(model) => load_model(app, model).map(drop),
            ServedChange::Unload(model) => unload_model(app, model).map(drop),
            ServedChange::Alias(alias, model) => set_alias(app, alias, model),
        };
        done.map_err(refusal)?;
        Ok(app.models().iter().map(|(_, model)| model.name.clone()).collect())
    }
}

fn refusal(problem: Problem) -> Refusal {
    let code = match problem.kind {
        Kind::NoSuchModel => RefusalCode::UnknownModel,
        Kind::Expired => RefusalCode::NotYet,
        _ => RefusalCode::Impossible,
    };
    Refusal::new(code, problem.message)
}
